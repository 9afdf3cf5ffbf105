"""A stand-in for NVRTC as CUDA 13.0 has it: it opens its builtins by name, and has no RUNPATH to find them."""

from __future__ import annotations

import shutil
import subprocess
from itertools import count
from pathlib import Path

import pytest

CUBIN = b"a cubin"
TEXT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#define QUOTED(number) #number
#define BUILTINS(minor) "libnvrtc-builtins.so.13." QUOTED(minor)
static const char *said = "", *cubin = "a cubin";
int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = MINOR; return 0; }
const char *nvrtcGetErrorString(int status) { return "an error"; }
int nvrtcCreateProgram(void **program) { *program = (void *)1; return 0; }
int nvrtcDestroyProgram(void **program) { return 0; }
int nvrtcCompileProgram(void *program) {
  if (dlopen(BUILTINS(MINOR), RTLD_LAZY)) return 0;
  said = "failed to open " BUILTINS(MINOR);
  return 7;  /* NVRTC_ERROR_BUILTIN_OPERATION_FAILURE */
}
int nvrtcGetProgramLogSize(void *program, size_t *nbytes) { *nbytes = strlen(said) + 1; return 0; }
int nvrtcGetProgramLog(void *program, char *text) { strcpy(text, said); return 0; }
int nvrtcGetCUBINSize(void *program, size_t *nbytes) { *nbytes = strlen(cubin); return 0; }
int nvrtcGetCUBIN(void *program, char *bytes) { memcpy(bytes, cubin, strlen(cubin)); return 0; }
"""
_minors = count(1000)  # a process that has loaded builtins has them for every NVRTC of that version


def fake_nvrtc(folder: Path, has_builtins: bool) -> Path:
    """Build the library into a folder, with its builtins beside it or without any.

    It has no name of NVRTC's: once it is loaded it would be taken for the one that the process uses.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler, which builds the stand-in for NVRTC")
    minor = next(_minors)
    _build(compiler, folder / "stand_in.so", TEXT, f"-DMINOR={minor}")
    if has_builtins:
        name = f"libnvrtc-builtins.so.13.{minor}"
        _build(compiler, folder / name, "int builtins;", f"-Wl,-soname,{name}")
    return folder / "stand_in.so"


def _build(compiler: str, library: Path, text: str, option: str) -> None:
    source = library.with_name(f"{library.name}.c")
    source.write_text(text, encoding="utf-8")
    subprocess.run([compiler, "-w", "-shared", "-fPIC", option, "-o", library, source, "-ldl"], check=True)
