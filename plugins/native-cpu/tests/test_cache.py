"""Kernels kept on disk: found again by another compile, keyed by all that their code depends on, rebuilt when damaged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernelyard.ir import TensorType
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.target import Target
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard_native_cpu import _native, generator
from kernelyard_native_cpu.generator import CACHE, NativeCpuGenerator
from kernelyard_native_cpu.machine import resolve_machine

SHARED = 1  # each machine's functions that share out tasks are an entry of their own
PROGRAM = """
import numpy as np, kernelyard as ky, kernelyard.ops
from kernelyard.ir import FunctionBuilder, IRModule
b = FunctionBuilder()
x = b.input("x", (33,))
module = IRModule({"main": b.function(b.op("tanh", b.op("add", x, x)))})
exe = ky.compile(module, backends=[])
np.testing.assert_allclose(exe(np.ones(33, np.float32)).numpy(), np.tanh(2.0), rtol=1e-6)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "10")
    monkeypatch.setattr(generator, "CACHE", CACHE)  # not the one that keeps programs for all tests
    return tmp_path / "native-cpu"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that LLVM was given."""
    texts: list[str] = []
    compile_object = _native.compile_object
    monkeypatch.setattr(_native, "compile_object", lambda text, m: texts.append(text) or compile_object(text, m))
    return texts


def generate(factor: float = 2.0, mcpu: str | None = None) -> bytes:
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((10,), "float32"))
    function = b.finish((b.compute((10,), lambda i: x[i] * factor),))
    return NativeCpuGenerator().generate({"scale": function}, Target("cpu", mcpu=mcpu), {}).save_to_bytes()


def test_the_same_kernels_are_compiled_once(folder: Path, compiled: list[str]) -> None:
    first = generate()
    assert len(compiled) == len(list(folder.iterdir())) == 1 + SHARED
    assert generate() == first
    assert len(compiled) == 1 + SHARED


def test_another_text_or_machine_is_another_entry(folder: Path, compiled: list[str]) -> None:
    generate()
    generate(3.0)
    generate(mcpu="x86-64-v2")  # older than any machine that has vectors worth the name
    generate(mcpu="x86-64")
    assert len(compiled) == len(list(folder.iterdir())) == 4 + 3 * SHARED


def test_the_key_has_the_compilers_version_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite

    machine = resolve_machine("x86-64-v3")
    keys = {_native.compilation_key(machine), _native.compilation_key(resolve_machine("x86-64-v2"))}
    monkeypatch.setattr(llvmlite, "__version__", "99.0")
    keys.add(_native.compilation_key(machine))
    monkeypatch.setitem(_native._OPTIONS, "opt", 3)
    keys.add(_native.compilation_key(machine))
    assert len(keys) == 4


def test_a_damaged_entry_is_compiled_anew(folder: Path, compiled: list[str]) -> None:
    first = generate()
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    for _ in range(2):
        assert generate() == first
        assert len(compiled) == 2 * (1 + SHARED)


def test_it_can_be_turned_off(folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "0")
    assert generate() == generate()
    assert len(compiled) == 2 * (1 + SHARED)
    assert not folder.exists()


def test_several_processes_may_compile_at_once(folder: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors.decode()
    assert CACHE.use().entries == 1 + SHARED


def test_doctor_says_where_it_is(folder: Path) -> None:
    generate()
    fact = NativeCpuGenerator().facts()["kernel cache"]
    assert fact.startswith(f"{folder}, {1 + SHARED} entries, ")
    assert fact.endswith("at most 10 MB")
    assert CACHE.use().nbytes > 0


def test_llvm_is_not_loaded_where_all_kernels_are_there(folder: Path) -> None:
    shown = [
        subprocess.run(
            [sys.executable, "-c", f"{PROGRAM}\nimport sys; print('llvmlite.binding' in sys.modules)"],
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert shown == [["True"], ["False"]]


def test_llvm_is_asked_for_its_version_once_for_each_installation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    put = DiskCache.put
    monkeypatch.setattr(DiskCache, "put", lambda self, key, data: asked.append(key) or put(self, key, data))
    ask = _native.llvm_version.__wrapped__
    version = _native.llvm_version()
    assert ask() == ask() == version
    assert len(asked) == 1
    library = tmp_path / "libllvmlite.so"
    library.write_bytes(b"another")
    state = _native._library_state
    monkeypatch.setattr(_native, "_library_state", lambda _: state(tmp_path))
    assert ask() == ask() == version
    library.write_bytes(b"yet another")
    assert ask() == version
    assert len(set(asked)) == len(asked) == 3
