"""The artifact: what is read back is what was written, and damage anywhere is found."""

from __future__ import annotations

import copy
import hashlib
import json
import multiprocessing
import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from kernelyard import errors
from kernelyard.runtime.artifact import container, kyar, safetensors_format
from kernelyard.runtime.artifact.container import HEADER, HEADER_NBYTES, MAGIC, Member, read_container, write_container


@pytest.fixture
def saved(executable, tmp_path):
    path = tmp_path / "model.kyar"
    executable.save(path)
    return path


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_save_and_load_give_the_same_model(executable, saved):
    loaded = kyar.load(saved, threads=1)
    assert loaded.metadata == {"author": "Ada", "labels": "ä,ö"}
    assert loaded.inputs == executable.inputs
    assert loaded.outputs == executable.outputs
    assert loaded.programs == executable.programs
    assert (loaded.report_json, loaded.target, loaded.threads) == ({"regions": []}, "cpu", 1)
    expected, found = executable.run({"x": X}), loaded.run({"x": X})
    np.testing.assert_array_equal(found["y"], expected["y"])
    np.testing.assert_array_equal(found["z"], expected["z"])


def test_the_same_executable_gives_the_same_bytes(make_executable, tmp_path):
    for name in "ab":
        make_executable().save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_bytes_are_those_of_the_file(executable, saved):
    assert executable.to_bytes() == saved.read_bytes()


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_load_takes_bytes(executable, form):
    data = executable.to_bytes()
    loaded = kyar.load(form(data), threads=1)
    del data
    np.testing.assert_array_equal(loaded.run({"x": X})["y"], executable.run({"x": X})["y"])


def test_damaged_bytes_are_found(executable):
    data = bytearray(executable.to_bytes())
    data[len(data) // 2] ^= 1
    with pytest.raises(errors.ArtifactCorruptedError):
        kyar.load(data)
    with pytest.raises(errors.ArtifactCorruptedError):
        kyar.load(b"")


def test_an_executable_is_pickled_by_value(executable):
    executable.threads = 1
    loaded = pickle.loads(pickle.dumps(executable))
    assert loaded.threads == 1
    np.testing.assert_array_equal(loaded.run({"x": X})["y"], executable.run({"x": X})["y"])
    assert copy.deepcopy(executable).inputs == executable.inputs


def test_a_process_pool_takes_an_executable(executable):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(executable.run, [{"x": X}, {"x": 2 * X}])
    for results, scale in zip(found, (1, 2), strict=True):
        np.testing.assert_array_equal(results["y"], executable.run({"x": scale * X})["y"])


def test_a_loaded_executable_can_be_saved_again(saved, tmp_path):
    kyar.load(saved).save(tmp_path / "again.kyar")
    assert (tmp_path / "again.kyar").read_bytes() == saved.read_bytes()


def test_flipping_any_byte_is_found(saved, tmp_path):
    data = saved.read_bytes()
    damaged = tmp_path / "damaged.kyar"
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << (position % 8)
        damaged.write_bytes(changed)
        with pytest.raises(errors.ArtifactCorruptedError):
            read_container(damaged)


@pytest.mark.parametrize("region", ["magic", "schema", "reserved", "length", "hash", "manifest", "module", "constants"])
def test_loading_a_file_with_a_damaged_region_is_refused(saved, tmp_path, region):
    data = bytearray(saved.read_bytes())
    length = struct.unpack_from("<Q", data, 16)[0]
    starts = {
        "magic": 0,
        "schema": 8,
        "reserved": 12,
        "length": 16,
        "hash": 30,
        "manifest": HEADER_NBYTES + length // 2,
    }
    starts |= {"module": data.index(b'{"graphs"') + 5, "constants": len(data) - 3}
    data[starts[region]] ^= 0x10
    saved.write_bytes(data)
    with pytest.raises(errors.ArtifactCorruptedError) as caught:
        kyar.load(saved)
    assert caught.value.hint or caught.value.where


def test_truncation_anywhere_is_found(saved):
    data = saved.read_bytes()
    for length in [*range(70), *range(70, len(data), 97), len(data) - 1]:
        saved.write_bytes(data[:length])
        with pytest.raises(errors.ArtifactCorruptedError):
            read_container(saved)


def test_bytes_after_the_end_are_found(saved):
    saved.write_bytes(saved.read_bytes() + b"\0")
    with pytest.raises(errors.ArtifactCorruptedError, match="damaged"):
        kyar.load(saved)


def test_something_else_is_no_artifact(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x07" * 100)
    with pytest.raises(errors.ArtifactCorruptedError, match="no Kernelyard artifact"):
        kyar.load(path)


def test_a_missing_file_is_an_artifact_error(tmp_path):
    with pytest.raises(errors.ArtifactError, match="cannot read"):
        kyar.load(tmp_path / "nothing.kyar")


def reseal(data: bytes, schema: int, manifest: bytes) -> bytes:
    """A file whose header fits a changed manifest, as an attacker or a newer release would write it."""
    old_length = struct.unpack_from("<Q", data, 16)[0]
    body = data[container.memory.align(HEADER_NBYTES + old_length) :]
    start = HEADER.pack(MAGIC, schema, 0, len(manifest))
    head = (start + hashlib.sha256(start + manifest).digest()).ljust(HEADER_NBYTES, b"\0") + manifest
    return head.ljust(container.memory.align(len(head)), b"\0") + body


def manifest_of(data: bytes) -> dict:
    length = struct.unpack_from("<Q", data, 16)[0]
    return json.loads(data[HEADER_NBYTES : HEADER_NBYTES + length])


def test_a_newer_schema_is_told_from_damage(saved):
    data = saved.read_bytes()
    saved.write_bytes(reseal(data, 2, b'{"unknown": "to us"}'))
    with pytest.raises(errors.ArtifactVersionError, match="newer release") as caught:
        kyar.load(saved)
    assert caught.value.found == "schema 2"
    assert "pip install --upgrade" in (caught.value.hint or "")


def change(*path_and_value):
    *path, key, value = path_and_value

    def apply(manifest):
        for part in path:
            manifest = manifest[part]
        if value is DELETED:
            del manifest[key]
        else:
            manifest[key] = value

    return apply


DELETED = object()


@pytest.mark.parametrize(
    "edit",
    [
        change("programs", DELETED),
        change("programs", 0, "registers", 0, "shape", ["n * (", 4]),
        change("programs", 0, "registers", 0, "shape", [-1, 4]),
        change("programs", 0, "registers", 0, "dtype", "complex64"),
        change("programs", 0, "registers", 0, "index", 7),
        change("programs", 0, "registers", 0, "kind", "secret"),
        change("programs", 0, "registers", 1, "digest", "0" * 64),
        change("programs", 0, "registers", 1, "digest", "../../etc/passwd"),
        change("programs", 0, "registers", 4, "source", 4),
        change("programs", 0, "symbols", []),
        change("programs", 0, "steps", 0, "inputs", [99]),
        change("programs", 0, "steps", 0, "inputs", [3]),
        change("programs", 0, "steps", 0, "outputs", [0]),
        change("programs", 0, "steps", 0, "symbol", "os.system"),
        change("programs", 0, "steps", 0, "module", 3),
        change("programs", 0, "steps", 0, "module", True),
        change("programs", 0, "results", [3]),
        change("programs", 0, "results", [2, 2]),
        change("programs", 0, "outputs", 0, "dtype", "float64"),
        change("modules", 0, "member", "nowhere"),
        change("modules", 0, "constants", ["1" * 64]),
        change("modules", 0, "constants", []),
        change("modules", 0, "requires", "distribution", "evil; rm -rf /"),
        change("members", 0, "nbytes", 1 << 60),
        change("members", 0, "nbytes", 0.5),
        change("members", 1, "name", "modules/0-acme"),
        change("members", []),
        change("metadata", {"a": 1}),
        change("report", []),
        change("report", {"member": 1}),
        change("report", "member", "nowhere"),
        change("target", None),
        lambda manifest: manifest["programs"].append(manifest["programs"][0]),
    ],
)
def test_a_malformed_manifest_is_refused_even_when_its_hash_fits(saved, edit):
    data = saved.read_bytes()
    manifest = manifest_of(data)
    edit(manifest)
    saved.write_bytes(reseal(data, 1, json.dumps(manifest).encode()))
    with pytest.raises(errors.ArtifactCorruptedError) as caught:
        kyar.load(saved)
    assert caught.value.where


def test_a_report_is_read_when_somebody_asks_for_it(saved, monkeypatch):
    texts: list[str] = []
    monkeypatch.setattr(kyar, "read_json", lambda data, where: texts.append(where) or json.loads(bytes(data)))
    loaded = kyar.load(saved)
    loaded.run({"x": X})
    assert not texts
    assert loaded.report_json == loaded.report_json == {"regions": []}
    assert texts == ["reports/0"]


def test_a_report_that_is_no_object_is_told_when_it_is_read(saved):
    manifest = manifest_of(saved.read_bytes())
    manifest["report"]["member"] = "constants.safetensors"
    saved.write_bytes(reseal(saved.read_bytes(), 1, json.dumps(manifest).encode()))
    loaded = kyar.load(saved)
    with pytest.raises(errors.ArtifactCorruptedError, match=r"constants\.safetensors"):
        _ = loaded.report


def test_a_report_in_the_manifest_is_read(saved):
    """As earlier releases wrote it."""
    manifest = manifest_of(saved.read_bytes())
    manifest["report"] = {"regions": [1]}
    saved.write_bytes(reseal(saved.read_bytes(), 1, json.dumps(manifest).encode()))
    assert kyar.load(saved).report_json == {"regions": [1]}


def test_a_missing_runtime_is_named_with_the_pip_line(saved):
    data = saved.read_bytes()
    manifest = manifest_of(data)
    manifest["modules"][0] |= {"kind": "zeus", "requires": {"distribution": "kernelyard-zeus", "version": "1.4"}}
    saved.write_bytes(reseal(data, 1, json.dumps(manifest).encode()))
    with pytest.raises(errors.MissingRuntimeError, match="'zeus' of kernelyard-zeus") as caught:
        kyar.load(saved)
    assert caught.value.hint == "pip install 'kernelyard-zeus>=1.4'"
    assert "acme" in str(caught.value.found)


def compiled_with(saved, version: str) -> None:
    """Rewrite an artifact as that version of the plugin (1.2 is installed) would have written it."""
    data = saved.read_bytes()
    manifest = manifest_of(data)
    manifest["modules"][0]["requires"]["version"] = version
    saved.write_bytes(reseal(data, 1, json.dumps(manifest).encode()))


@pytest.mark.parametrize("version", ["1.2.1", "1.10", "2.0", "of-our-own"])
def test_what_a_newer_plugin_compiled_is_refused_before_the_older_one_runs(saved, version, acme, monkeypatch):
    compiled_with(saved, version)
    monkeypatch.setattr(acme, "load", lambda data, constants: pytest.fail("it ran"))
    with pytest.raises(
        errors.ArtifactVersionError, match="compiled with a newer acme-runtime than is installed"
    ) as caught:
        kyar.load(saved)
    assert caught.value.found == "acme-runtime 1.2"
    assert caught.value.expected == f"acme-runtime {version} or newer"
    assert caught.value.hint == f"pip install 'acme-runtime>={version}', or compile the model again"


@pytest.mark.parametrize("version", ["1.2", "1.1.9", "1.2.0", "1.2rc1"])
def test_a_newer_plugin_runs_what_an_older_one_compiled(saved, version):
    compiled_with(saved, version)
    assert kyar.load(saved).run({"x": X})["y"].shape == (2, 3)


def test_a_loader_that_breaks_is_named(saved, acme, monkeypatch):
    monkeypatch.setattr(acme, "load", lambda data, constants: 1 / 0)
    with pytest.raises(errors.ArtifactError, match="could not load") as caught:
        kyar.load(saved)
    assert caught.value.where == "acme-runtime 1.2"
    monkeypatch.setattr(acme, "load", lambda data, constants: "something else")
    with pytest.raises(errors.PluginContractError):
        kyar.load(saved)


def test_a_failing_save_leaves_nothing_behind(executable, saved, monkeypatch):
    before = saved.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.ArtifactError, match="cannot write") as caught:
        executable.save(saved)
    assert caught.value.found == "No space left on device"
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_saving_into_a_missing_folder_is_refused(executable, tmp_path):
    with pytest.raises(errors.ArtifactError, match="cannot write"):
        executable.save(tmp_path / "missing" / "model.kyar")
    assert os.listdir(tmp_path) == []


def test_a_module_that_nothing_could_load_again_is_not_saved(executable, acme, monkeypatch, tmp_path):
    monkeypatch.setattr(acme.AcmeRuntime, "kind", "unregistered")
    with pytest.raises(errors.ArtifactError, match="cannot be saved"):
        executable.save(tmp_path / "model.kyar")
    assert os.listdir(tmp_path) == []


def overwriting(acme):
    """A loader that works in memory that may be written, as a module's is before it is saved."""

    def load(data, constants):
        module = acme.AcmeRuntime.load_from_bytes(data, constants)
        for array in constants.values():
            array *= 1
        return module

    return load


@pytest.mark.parametrize("fault", [lambda acme: lambda data, constants: 1 / 0, overwriting], ids=["raises", "writes"])
def test_what_its_loader_refuses_is_not_saved(executable, acme, monkeypatch, tmp_path, fault):
    monkeypatch.setattr(acme, "load", fault(acme))
    with pytest.raises(errors.ArtifactError, match="could not load its part") as caught:
        executable.save(tmp_path / "model.kyar")
    assert caught.value.where == "acme-runtime 1.2"
    assert os.listdir(tmp_path) == []


def test_a_library_that_is_not_here_is_not_needed_to_save(executable, acme, monkeypatch, tmp_path):
    def load(data, constants):
        raise errors.BackendUnavailableError("no libacme.so")

    monkeypatch.setattr(acme, "load", load)
    executable.save(tmp_path / "model.kyar")
    with pytest.raises(errors.BackendUnavailableError):
        kyar.load(tmp_path / "model.kyar")


def test_container_members_come_back_aligned(tmp_path):
    path = tmp_path / "members"
    write_container(
        path, {"hello": "you"}, [Member("a", [b"12", b"345"]), Member("empty", []), Member("b", [b"x" * 64])]
    )
    contents = read_container(path)
    assert contents.manifest.text("hello") == "you"
    assert {name: member.tobytes() for name, member in contents.members.items()} == {
        "a": b"12345",
        "empty": b"",
        "b": b"x" * 64,
    }
    assert contents.members["a"].ctypes.data % 64 == 0


def all_dtypes() -> dict[str, np.ndarray]:
    from kernelyard import dtypes

    values = np.array([[0, 1, 1], [1, 0, 1]])
    arrays = {name: values.astype(dtypes.to_numpy(name)) for name in dtypes.DTYPES}
    return {**arrays, "scalar": np.array(3.5), "nothing": np.zeros((0, 4), np.int8), "swapped": values.astype(">i4")}


def test_constants_of_every_dtype_come_back(tmp_path):
    arrays = all_dtypes()
    data = b"".join(bytes(part) for part in safetensors_format.to_parts(arrays))
    found = safetensors_format.from_bytes(np.frombuffer(data, np.uint8), "test")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found[name], array)
        assert not found[name].flags.writeable


def test_constants_are_safetensors_that_the_library_reads(weight):
    data = b"".join(bytes(part) for part in safetensors_format.to_parts({"w": weight, "v": weight[0]}))
    found = safetensors.numpy.load(data)
    np.testing.assert_array_equal(found["w"], weight)
    np.testing.assert_array_equal(found["v"], weight[0])


def test_what_the_library_writes_is_read(weight):
    data = safetensors.numpy.save({"w": weight, "flags": np.array([True, False])})
    found = safetensors_format.from_bytes(np.frombuffer(data, np.uint8), "test")
    np.testing.assert_array_equal(found["w"], weight)
    np.testing.assert_array_equal(found["flags"], [True, False])


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[999999999],"data_offsets":[0,8]}}',
    ],
)
def test_malformed_constants_are_refused(header):
    data = len(header).to_bytes(8, "little") + header + bytes(8)
    with pytest.raises(errors.ArtifactCorruptedError):
        safetensors_format.from_bytes(np.frombuffer(data, np.uint8), "test")


RUN_ALONE = """
import sys
import kernelyard.runtime
from kernelyard.runtime import load
import numpy as np
result = load(sys.argv[1]).run({"x": np.ones((1, 4), np.float32)})
print(result["y"].numpy().tolist())
ours = sorted(name for name in sys.modules if name.split(".")[0] == "kernelyard")
print(" ".join(ours))
print(" ".join(name for name in ("pluggy", "onnx", "safetensors", "click", "rich") if name in sys.modules))
"""


def test_a_saved_artifact_runs_with_the_runtime_alone(saved, acme_path):
    environment = {**os.environ, "PYTHONPATH": str(acme_path)}
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALONE, str(saved)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    values, ours, others = done.stdout.split("\n")[:3]
    assert values == "[[5.5, 6.5, 7.5]]"
    assert others == ""
    allowed = {
        "kernelyard",
        "kernelyard.errors",
        "kernelyard.dtypes",
        "kernelyard.dims",
        "kernelyard.lazy",
        "kernelyard.variables",
        "kernelyard.records",
        "kernelyard.cached_property",
        "kernelyard.runtime",
    }
    assert {
        name for name in ours.split() if not name.startswith(("kernelyard.runtime.", "kernelyard.dims."))
    } <= allowed


def test_no_runtime_module_needs_the_compiler():
    code = """
import importlib, pkgutil, sys, kernelyard.runtime
for info in pkgutil.iter_modules(kernelyard.runtime.__path__):
    importlib.import_module(f"kernelyard.runtime.{info.name}")
allowed = ("runtime", "errors", "dtypes", "dims", "lazy", "records", "cached_property", "variables")
print(sorted(n for n in sys.modules if n.startswith("kernelyard.") and n.split(".")[1] not in allowed))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_importing_the_runtime_loads_nothing_heavy():
    code = "import sys, kernelyard.runtime; print([n for n in ('numpy', 'tvm_ffi', 'llvmlite', 'importlib.metadata') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
