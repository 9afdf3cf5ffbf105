"""Which CUDA compiler is used where NVRTC itself is broken, and what is said of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kernelyard.errors import ToolchainError
from kernelyard_cuda import compiler as cuda_compiler
from kernelyard_cuda import nvrtc
from kernelyard_cuda.libraries import NVRTC

from .fake_nvrtc import CUBIN, fake_nvrtc

KERNEL = 'extern "C" __global__ void kernel() {}'
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; exit; fi
while [ "$1" != -o ]; do shift; done
printf nvcc > "$2"
"""


@pytest.fixture
def working(tmp_path: Path) -> str:
    """An NVRTC that has its builtins."""
    folder = tmp_path / "working"
    folder.mkdir()
    return str(fake_nvrtc(folder, has_builtins=True))


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine whose NVRTC has lost its builtins, and that has no nvcc."""
    library = str(fake_nvrtc(tmp_path, has_builtins=False))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))
    for variable in ("NVCC", NVRTC.variable):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(nvrtc, "find", lambda: (library, ()))
    return library


@pytest.fixture
def nvcc(broken: str, tmp_path: Path) -> Path:
    """What is called nvcc on that machine."""
    command = tmp_path / "bin/nvcc"
    command.write_text(NVCC, encoding="utf-8")
    command.chmod(0o755)
    return command


def test_nvcc_is_used_where_nvrtc_cannot_compile(broken: str, nvcc: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        compiler = cuda_compiler.find_kernel_compiler()
    assert compiler is not None
    assert compiler.name == f"nvcc 13.0 ({nvcc})"
    assert compiler.cubin(KERNEL, "sm_90") == b"nvcc"
    assert cuda_compiler.compile_cubin(KERNEL, "sm_90") == b"nvcc"
    (record,) = caplog.records
    assert str(nvcc) in record.getMessage()
    assert "failed to open libnvrtc-builtins" in record.getMessage()


def test_without_nvcc_the_error_names_both(broken: str) -> None:
    for compile_ in (cuda_compiler.find_kernel_compiler, lambda: cuda_compiler.compile_cubin(KERNEL, "sm_90")):
        with pytest.raises(ToolchainError, match="no CUDA compiler is usable") as caught:
            compile_()
        assert "failed to open libnvrtc-builtins" in str(caught.value.found)
        assert "nvcc: no CUDA compiler was found" in str(caught.value.found)
        assert "pip install" in str(caught.value.hint)


def test_an_nvrtc_that_was_named_is_not_replaced(broken: str, nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NVRTC.variable, broken)
    with pytest.raises(ToolchainError, match="failed to open libnvrtc-builtins"):
        cuda_compiler.find_kernel_compiler()


def test_an_nvrtc_that_cannot_be_loaded_gives_way_too(
    broken: str, nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libnvrtc.so.13").touch()
    monkeypatch.setattr(nvrtc, "find", lambda: (str(tmp_path / "libnvrtc.so.13"), ()))
    compiler = cuda_compiler.find_kernel_compiler()
    assert compiler is not None
    assert compiler.nvcc == (str(nvcc),)


def test_an_nvrtc_that_works_is_preferred(
    working: str, broken: str, nvcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "find", lambda: (working, ()))
    compiler = cuda_compiler.find_kernel_compiler()
    assert compiler is not None
    assert compiler.name == f"NVRTC {nvrtc.version(working)} ({working})"
    assert compiler.cubin(KERNEL, "sm_90") == CUBIN
