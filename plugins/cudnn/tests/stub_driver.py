"""A stand-in for the driver's library, libcuda.so.1: cuDNN's engines need one to be loaded, though they plan without a GPU.

There is no device; modules that engines compile "load", so that their plans can be finished, and nothing ever runs.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

NO_DEVICE = 100
FAILING = [
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuCtxGetCurrent",
    "cuCtxGetLimit",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuStreamGetCtx",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetErrorName",
    "cuLinkCreate",
    "cuLinkAddData",
    "cuLinkComplete",
    "cuLinkDestroy",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeTiled",
]
MAKING = [
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryGetKernel",
    "cuKernelGetFunction",
    "cuModuleLoadData",
    "cuModuleGetFunction",
]
SUCCEEDING = ["cuLibraryUnload", "cuModuleUnload", "cuKernelSetAttribute", "cuFuncSetAttribute"]
COUNTING = ["cuKernelGetAttribute", "cuFuncGetAttribute", "cuOccupancyMaxPotentialClusterSize"]


def source() -> str:
    """The library as C."""
    lines = [f"int {name}(void) {{ return {NO_DEVICE}; }}" for name in FAILING]
    lines += [f"int {name}(void **made) {{ *made = (void *)1; return 0; }}" for name in MAKING]
    lines += [f"int {name}(void) {{ return 0; }}" for name in SUCCEEDING]
    lines += [f"int {name}(int *value) {{ *value = 1; return 0; }}" for name in COUNTING]
    lines.append("int cuDriverGetVersion(int *version) { *version = 13000; return 0; }")
    lines.append('int cuGetErrorString(int status, const char **text) { *text = "no device"; return 0; }')
    return "\n".join(lines) + "\n"


def load_stub(folder: Path) -> str:
    """Build and load the library, for all who ask for it by its name; what is missing for that, if something is."""
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        compiler = shutil.which("gcc")
        if compiler is None:
            return "gcc, which builds a stand-in for libcuda.so.1"
        text, library = folder / "driver.c", folder / "libcuda.so.1"
        text.write_text(source(), encoding="utf-8")
        words = [compiler, "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(text)]
        subprocess.run(words, check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return ""
