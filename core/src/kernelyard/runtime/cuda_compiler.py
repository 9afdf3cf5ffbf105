"""From CUDA C++ to a cubin: by nvcc (`NVCC`, else what is found), else by NVRTC. Neither needs a GPU."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernelyard.errors import ToolchainError
from kernelyard.runtime import nvrtc
from kernelyard.runtime.toolchain import Toolchain

INSTALL_HINT = "pip install nvidia-cuda-nvrtc-cu12, or set NVCC to the compiler of a CUDA toolkit"
CUDA = Toolchain("CUDA", "NVCC", ("nvcc",), INSTALL_HINT)
FLAGS = ("--std=c++17",)


def compile_cubin(
    source: str, arch: str, options: Sequence[str] = (), folders: Sequence[Path] = (), compiler: str | None = None
) -> bytes:
    """The cubin of CUDA C++ text for GPUs of `arch` ("sm_90"). folders: where headers are looked for.

    Raises: ToolchainError with the line that installs a compiler, or with what the compiler said.
    """
    words = [*FLAGS, *(f"-I{folder.absolute()}" for folder in folders), *options]
    try:
        command = CUDA.find(compiler)
    except ToolchainError:
        library = None if compiler or os.environ.get(CUDA.variable) else nvrtc.find()
        if library is None:
            raise
        name, headers = library
        return nvrtc.compile_cubin(name, source, [f"--gpu-architecture={arch}", *words, *(f"-I{h}" for h in headers)])
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
        folder = Path(name)
        (folder / "extern.cu").write_text(source, encoding="utf-8")
        CUDA.run((*command, "-cubin", f"-arch={arch}", *words, "extern.cu", "-o", "extern.cubin"), folder)
        return (folder / "extern.cubin").read_bytes()
