"""NVRTC, the CUDA compiler that is a library: from source text to a cubin. It needs no GPU and no driver.

Source: CUDA Toolkit documentation, "NVRTC", sections "Compilation" and "Supported Compile Options".
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from pathlib import Path

from kernelyard.errors import ToolchainError

# The wheels nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvrtc (13) fill folders of one package: the library is here, and the
# headers of the same release are there, where they are installed.
PACKAGE = "nvidia"
LAYOUTS = (("cu13/lib", "cu13/include"), ("cuda_nvrtc/lib", "cuda_runtime/include"))


def find() -> tuple[str, tuple[Path, ...]] | None:
    """The library and the folders of its headers: from a wheel, else the system's; None without one."""
    found = next(_in_wheels(), None)
    if found is not None:
        return found
    name = find_library("nvrtc")
    return (name, ()) if name else None


def _in_wheels() -> Iterator[tuple[str, tuple[Path, ...]]]:
    package = importlib.util.find_spec(PACKAGE)
    for root in package.submodule_search_locations or () if package else ():
        for libraries, headers in LAYOUTS:
            folder = Path(root, headers)
            for path in sorted(Path(root, libraries).glob("libnvrtc.so.*")):
                yield str(path), ((folder,) if folder.is_dir() else ())


def compile_cubin(library: str, source: str, options: Sequence[str]) -> bytes:
    """The cubin of CUDA C++ text.

    Raises: ToolchainError with what the compiler said.
    """
    program = _Program(library, source)
    try:
        return program.compile(options)
    finally:
        program.destroy()


class _Program:
    def __init__(self, library: str, source: str) -> None:
        try:
            self._nvrtc = ctypes.CDLL(library)
            self._nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise ToolchainError("NVRTC cannot be loaded", where=library, found=error) from error
        self._library, self._handle = library, ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(self._handle), source.encode(), b"extern.cu", 0, None, None)

    def compile(self, options: Sequence[str]) -> bytes:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if self._nvrtc.nvrtcCompileProgram(self._handle, len(options), words):
            log = self._read("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0\n")
            raise ToolchainError("the CUDA compiler failed", where="NVRTC", found=log.decode(errors="replace"))
        return self._read("nvrtcGetCUBINSize", "nvrtcGetCUBIN")

    def _read(self, size_of: str, content_of: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(size_of, self._handle, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(content_of, self._handle, content)
        return content.raw

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._nvrtc, name)(*args)
        if status:
            said = self._nvrtc.nvrtcGetErrorString(status).decode(errors="replace")
            raise ToolchainError("NVRTC failed", where=self._library, found=f"{name}: {said}")

    def destroy(self) -> None:
        self._nvrtc.nvrtcDestroyProgram(ctypes.byref(self._handle))
