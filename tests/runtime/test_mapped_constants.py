"""Constants of a loaded artifact are the file's own pages: mapped, shared, not copied."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401
from kernelyard import errors
from kernelyard.ir import Constant, FunctionBuilder, IRModule
from kernelyard.ir.expr import operands
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.spec import Fields
from kernelyard.runtime.artifact import container, kyar
from kernelyard.runtime.artifact.container import Member, read_container, write_container
from kernelyard.tir.packing import Packing
from kernelyard.transform.layout.pack_constants import PackConstants
from kernelyard.transform.pipelines import get_pipeline


def root(array: np.ndarray) -> object:
    """What holds an array's memory."""
    base: object = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def anonymous_kib() -> int:
    """Memory of this process that is no file's."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1))


def test_constants_are_views_of_the_mapped_file(executable, tmp_path):
    executable.save(tmp_path / "model.kyar")
    loaded = kyar.load(tmp_path / "model.kyar")
    assert loaded.constants
    for array in loaded.constants.values():
        assert isinstance(root(array), mmap.mmap)
        assert not array.flags.writeable
    assert len({id(root(array)) for array in loaded.constants.values()}) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status tells what memory is a file's")
def test_large_weights_are_not_copied(make_executable, tmp_path):
    weight = np.zeros((1 << 12, 1 << 12), np.float32)  # 64 MiB
    make_executable(weight=weight).save(tmp_path / "large.kyar")
    before = anonymous_kib()
    loaded = kyar.load(tmp_path / "large.kyar")
    (digest,) = [digest for digest, array in loaded.constants.items() if array.nbytes == weight.nbytes]
    assert np.shares_memory(loaded.resident(digest), loaded.constants[digest])
    assert anonymous_kib() - before < weight.nbytes // 1024 // 8


def test_modules_and_programs_share_the_mapping(executable, tmp_path):
    executable.save(tmp_path / "model.kyar")
    loaded = kyar.load(tmp_path / "model.kyar")
    for module in loaded.modules:
        for digest, array in module.constants().items():
            assert np.shares_memory(array, loaded.constants[digest])


def test_a_mapping_outlives_the_file(executable, tmp_path):
    path = tmp_path / "model.kyar"
    executable.save(path)
    loaded = kyar.load(path)
    x = np.ones((2, 4), np.float32)
    expected = executable.run({"x": x})["y"].numpy()
    executable.save(path)  # replaces the file by renaming: the mapped one stays as it is
    path.unlink()
    np.testing.assert_array_equal(loaded.run({"x": x})["y"].numpy(), expected)


def test_the_largest_odd_sized_constant_is_aligned_too(make_executable, tmp_path):
    bias = np.zeros(3, np.float32)
    make_executable(bias=bias).save(tmp_path / "model.kyar")
    loaded = kyar.load(tmp_path / "model.kyar")
    largest = max((a for a in loaded.constants.values()), key=lambda a: a.nbytes)
    assert largest.nbytes % 64
    assert largest.ctypes.data % 64 == 0


def test_an_empty_file_and_a_foreign_library_are_refused(tmp_path):
    (tmp_path / "empty.kyar").write_bytes(b"")
    with pytest.raises(errors.ArtifactCorruptedError, match="damaged"):
        read_container(tmp_path / "empty.kyar")
    with pytest.raises(errors.ArtifactCorruptedError, match="without a Kernelyard artifact"):
        read_container(np._core._multiarray_umath.__file__)


@pytest.mark.parametrize("nbytes", [5, 40, 63, 64, 200])
def test_a_truncated_library_is_refused(tmp_path, nbytes):
    data = Path(np._core._multiarray_umath.__file__).read_bytes()[:nbytes]
    (tmp_path / "cut.so").write_bytes(data)
    with pytest.raises(errors.ArtifactCorruptedError):
        read_container(tmp_path / "cut.so")


def test_a_member_is_found_where_it_was_written(tmp_path):
    write_container(tmp_path / "c", {}, [Member("a", [b"xyz"]), Member("b", [bytes(100)])])
    contents = read_container(tmp_path / "c")
    assert contents.member("a", "test").tobytes() == b"xyz"
    assert contents.member("b", "test").ctypes.data % 64 == 0
    assert isinstance(contents.manifest, Fields)
    assert not container.MAGIC.startswith(container.LIBRARY_MAGIC)


def file_kib() -> int:
    """Pages of files that this process holds."""
    found = re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status tells what memory is a file's")
def test_pages_that_were_read_are_given_back(make_executable, tmp_path):
    weight = np.arange(1 << 24, dtype=np.float32).reshape(1 << 12, 1 << 12)  # 64 MiB
    make_executable(weight=weight).save(tmp_path / "large.kyar")
    before = file_kib()
    loaded = kyar.load(tmp_path / "large.kyar")
    assert file_kib() - before < 16 << 10  # although all bytes were checked
    (array,) = [array for array in loaded.constants.values() if array.nbytes == weight.nbytes]
    np.testing.assert_array_equal(array, weight)
    assert file_kib() - before > 60 << 10
    memory.give_back_pages(array[1:-1])
    assert file_kib() - before < 16 << 10
    np.testing.assert_array_equal(array, weight)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status says what memory belongs to files")
def test_pages_of_weights_are_given_back_once_packed(tmp_path):
    path = tmp_path / "weight"
    np.ones((6, 1 << 20), np.float32).tofile(path)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    weight = np.frombuffer(mapping, np.float32).reshape(6, 1 << 20)
    b = FunctionBuilder()
    product = IRModule({"main": b.function(b.op("matmul", b.input("x", (4, 6)), weight))})
    before = file_kib()
    packed = PackConstants(lambda function, positions: dict.fromkeys(positions, Packing(1, 64)))(
        get_pipeline("legalize")(product)
    )
    values = (each for binding in packed["main"].bindings for each in operands(binding.value))
    (constant,) = (each for each in values if isinstance(each, Constant))
    assert constant.data.shape == (1 << 14, 6, 64)
    assert np.all(constant.data == 1)
    assert file_kib() - before < weight.nbytes >> 12  # a quarter


def test_memory_that_is_no_files_is_left_alone(tmp_path):
    (tmp_path / "numbers").write_bytes(bytes(range(256)) * 64)
    with (tmp_path / "numbers").open("r+b") as file:
        copy_on_write = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    for array in (np.arange(1 << 16), np.zeros(0), np.frombuffer(copy_on_write, np.uint8)):
        wanted = array.copy()
        if array.flags.writeable:
            array += 1
            wanted += 1
        memory.give_back_pages(array)
        np.testing.assert_array_equal(array, wanted)
