"""NVRTC as it is installed, and as CUDA 13.0 has it: builtins are found beside the library."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from kernelyard.errors import ToolchainError
from kernelyard_cuda import nvrtc
from kernelyard_cuda.libraries import NVRTC, candidates
from kernelyard_cuda.precompiled_headers import precompiled

from .fake_nvrtc import CUBIN, fake_nvrtc

SM_90 = "--gpu-architecture=sm_90"
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
        assert nvrtc.compile_cubin(library, KERNEL, [SM_90]).startswith(b"\x7fELF"), library


@pytest.fixture
def library() -> str:
    found = nvrtc.find()
    if found is None or not hasattr(ctypes.CDLL(found[0]), "nvrtcSetPCHHeapSize"):
        pytest.skip("NVRTC 12.8 or later is not installed here: pip install nvidia-cuda-nvrtc-cu12")
    return found[0]


def test_headers_of_several_programs_are_read_once(tmp_path: Path, library: str) -> None:
    (tmp_path / "scaled.h").write_text("template <int N> __device__ float scaled(float x) { return N * x; }\n")
    headers, options = '#include "scaled.h"\n', [SM_90, f"-I{tmp_path}"]
    whole = '#include "scaled.h"\n#define FACTOR {}\nextern "C" __global__ void kernel(float* x) {{ *x = scaled<FACTOR>(*x); }}'
    for factor in (2, 3, 4):
        alone = nvrtc.compile_cubin(library, whole.format(factor), options)
        program = whole.format(factor).removeprefix(headers)
        assert nvrtc.compile_cubin(library, program, options, headers) == alone
    with precompiled(library, headers, options) as chosen:
        flag, folder = chosen
        assert flag == "--pch"
        assert [path.suffix for path in Path(folder.removeprefix("--pch-dir=")).iterdir()] == [".pch"]


def test_no_headers_are_shared_with_a_thread_that_compiles(library: str) -> None:
    headers = "#include <cuda_fp16.h>\n"
    with precompiled(library, headers, []), precompiled(library, headers, []) as chosen:
        assert chosen == []


@pytest.mark.parametrize("options", [[], ["--pch", "--pch-dir=/nowhere"]])
def test_without_a_place_for_headers_they_are_read_again(library: str, monkeypatch, options: list[str]) -> None:
    monkeypatch.setattr(nvrtc, "precompiled", lambda *given: nullcontext(options))
    assert nvrtc.compile_cubin(library, KERNEL, [SM_90], "#define TWO 2\n").startswith(b"\x7fELF")
    with pytest.raises(ToolchainError, match="the CUDA compiler failed"):
        nvrtc.compile_cubin(library, "no program", [SM_90], "#define TWO 2\n")


KILLED = """
import os, sys
from pathlib import Path
from kernelyard_cuda import nvrtc
library, headers = sys.argv[1], "#define TWO 2\\n"
for _ in range(2):
    nvrtc.compile_cubin(library, 'extern "C" __global__ void kernel(int* x) { *x = TWO; }', [], headers)
print(*sorted(path.name for path in Path(os.environ["TMPDIR"]).iterdir()), flush=True)
os._exit(0)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, library: str) -> None:
    command = [sys.executable, "-c", KILLED, library]
    runs = [
        subprocess.run(
            command, env={"TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert [len(left) for left in runs] == [1, 1]
    assert runs[0] != runs[1]
