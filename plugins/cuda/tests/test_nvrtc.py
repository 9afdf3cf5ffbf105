"""NVRTC as it is installed, and as CUDA 13.0 has it: builtins are found beside the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelyard.errors import ToolchainError
from kernelyard_cuda import nvrtc
from kernelyard_cuda.libraries import NVRTC, candidates

from .fake_nvrtc import CUBIN, fake_nvrtc

KERNEL = 'extern "C" __global__ void kernel(float* x) { *x = 1; }'


def test_builtins_are_found_beside_a_library_that_does_not_look_there(tmp_path: Path) -> None:
    library = fake_nvrtc(tmp_path, has_builtins=True)
    assert nvrtc.compile_cubin(str(library), KERNEL, []) == CUBIN


def test_builtins_that_are_not_there_are_named(tmp_path: Path) -> None:
    library = fake_nvrtc(tmp_path, has_builtins=False)
    with pytest.raises(ToolchainError, match="failed to open libnvrtc-builtins"):
        nvrtc.compile_cubin(str(library), KERNEL, [])


def test_builtins_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    library = fake_nvrtc(tmp_path, has_builtins=False)
    broken = tmp_path / f"libnvrtc-builtins.so.{nvrtc.version(str(library))}"
    broken.touch()
    with pytest.raises(ToolchainError, match="builtins cannot be loaded") as caught:
        nvrtc.compile_cubin(str(library), KERNEL, [])
    assert caught.value.where == str(broken)


def test_every_nvrtc_of_this_machine_compiles() -> None:
    found = [each.path for each in candidates(NVRTC)]
    if not found:
        pytest.skip("NVRTC is not installed here: pip install nvidia-cuda-nvrtc-cu12")
    for library in found:
        assert nvrtc.compile_cubin(library, KERNEL, ["--gpu-architecture=sm_90"]).startswith(b"\x7fELF"), library
