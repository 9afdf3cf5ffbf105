"""From a kernel's parameters to its text, and to a cubin; what was compiled is kept between processes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kernelyard.runtime.api import DiskCache
from kernelyard_cuda import nvrtc
from kernelyard_cutlass.code import Code, code_of
from kernelyard_cutlass.kernels import Kernel, entry_of
from kernelyard_cutlass.toolchain import Toolchain, find_toolchain

TEMPLATES = Path(__file__).with_name("templates")
CACHE = DiskCache("cutlass")
# Functions without a mark are the device's: CUTLASS's constant expressions are used on it alone.
FLAGS = ("--std=c++17", "-default-device")


def text_of(kernel: Kernel) -> str:
    """Return the program of a kernel behind the headers: its parameters as macros, and the template.

    Example:
        >>> from kernelyard_cutlass.kernels import TransposeKernel
        >>> text_of(TransposeKernel("float16")).splitlines()[1]
        '#define KY_INPUT cutlass::half_t'
    """
    macros = {"KY_ENTRY": entry_of(kernel), **kernel.defines()}
    lines = [f"#define {name} {value}" for name, value in macros.items()]
    return "\n".join([*lines, _template(kernel.template)[1]])


def headers_of(kernel: Kernel) -> str:
    """Return the lines that include headers, which stand before the program of a kernel."""
    return _template(kernel.template)[0]


@cache
def _template(name: str) -> tuple[str, str]:
    """Return the lines of a template that include headers, and those behind these."""
    lines = (TEMPLATES / f"{name}.cuh").read_text(encoding="utf-8").splitlines(keepends=True)
    headers = [line for line in lines if line.startswith("#include")]
    first = lines.index(headers[-1]) + 1
    return "".join(headers), "".join(lines[first:])


def key_of(kernel: Kernel, arch: str, toolchain: Toolchain) -> str:
    """Return a key of everything that a cubin depends on.

    The text has the dtype, layouts, alignments, tile and epilogue; beside it are the architecture and the versions of
    CUTLASS, the CUDA headers and NVRTC, with where they are.
    """
    found = [toolchain.nvrtc_version, toolchain.nvrtc, toolchain.cutlass_version, *map(str, toolchain.folders)]
    return "\n".join([arch, *FLAGS, *found, headers_of(kernel), text_of(kernel)])


def compile_kernel(kernel: Kernel, arch: str) -> Code:
    """Return the kernel's code for an architecture, compiled unless it was before.

    Raises: BackendUnavailableError where headers or NVRTC are missing; ToolchainError with what the compiler said.
    """
    toolchain = find_toolchain()
    key = key_of(kernel, arch, toolchain)
    cubin = CACHE.get(key)
    if cubin is None:
        options = [f"--gpu-architecture={arch}", *FLAGS, *(f"-I{folder}" for folder in toolchain.folders)]
        cubin = nvrtc.compile_cubin(toolchain.nvrtc, text_of(kernel), options, headers_of(kernel))
        CACHE.put(key, cubin)
    return code_of(kernel, arch, cubin)
