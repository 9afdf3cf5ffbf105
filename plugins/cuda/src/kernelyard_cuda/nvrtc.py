"""NVRTC, the CUDA compiler that is a library: from source text to a cubin, or to PTX. It needs no GPU and no driver.

Source: CUDA Toolkit documentation, "NVRTC", sections "Compilation" and "Supported Compile Options".
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from kernelyard.errors import ToolchainError
from kernelyard_cuda.libraries import NVRTC, candidates
from kernelyard_cuda.precompiled_headers import precompiled, with_headers


def find() -> tuple[str, tuple[Path, ...]] | None:
    """Return the library and the folders of its headers; None without one."""
    found = next(candidates(NVRTC), None)
    return (found.path, found.headers) if found is not None else None


def version(library: str) -> str:
    """Return NVRTC's version, such as "12.9". Raises: ToolchainError."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    status = _load(library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if status:
        raise ToolchainError("NVRTC does not say its version", where=library, found=status)
    return f"{major.value}.{minor.value}"


def archs(library: str) -> tuple[str, ...]:
    """Return the architectures that it compiles for, such as "sm_90", oldest first. Raises: ToolchainError."""
    count = ctypes.c_int()
    status = _load(library).nvrtcGetNumSupportedArchs(ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    if status or _load(library).nvrtcGetSupportedArchs(numbers):
        raise ToolchainError("NVRTC does not say what it compiles for", where=library, found=status)
    return tuple(f"sm_{number}" for number in numbers)


def load_builtins(library: str) -> None:
    """Load the library of builtins that lies beside an NVRTC, which opens it by name when it compiles.

    NVRTC 13.0 has no RUNPATH (12.9 and 13.1 have $ORIGIN), so that its own folder is not among those where it looks.
    An NVRTC of the system's library path has its builtins there too. Raises: ToolchainError.
    """
    builtins = Path(library).resolve().with_name(f"libnvrtc-builtins.so.{version(library)}")
    if "/" in library and builtins.is_file():
        try:
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ToolchainError("NVRTC's builtins cannot be loaded", where=str(builtins), found=error) from error


def _load(library: str) -> ctypes.CDLL:
    try:
        nvrtc = ctypes.CDLL(library)
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise ToolchainError("NVRTC cannot be loaded", where=library, found=error) from error
    return nvrtc


def compile_cubin(library: str, source: str, options: Sequence[str], headers: str = "") -> bytes:
    """Return the cubin of CUDA C++ text.

    headers: lines before it that include headers, which are read once for the programs of this process.
    Raises: ToolchainError with what the compiler said.
    """
    return _compile(library, source, options, headers, "CUBIN")


def compile_ptx(library: str, source: str, options: Sequence[str], headers: str = "") -> str:
    """Return the PTX of CUDA C++ text; see `compile_cubin`."""
    return _compile(library, source, options, headers, "PTX").rstrip(b"\0").decode()


def _compile(library: str, source: str, options: Sequence[str], headers: str, form: str) -> bytes:
    text = with_headers(headers, source)
    with precompiled(library, headers, options) as more:
        if more:
            # Their file may not be written, as where a disk is full; what is wrong with the text is found again below.
            with suppress(ToolchainError):
                return _compile_text(library, text, [*options, *more], form)
    return _compile_text(library, text, options, form)


def _compile_text(library: str, text: str, options: Sequence[str], form: str) -> bytes:
    program = _Program(library, text)
    try:
        program.compile(options)
        return program.read(f"nvrtcGet{form}Size", f"nvrtcGet{form}")
    finally:
        program.destroy()


@cache
def failure(library: str) -> ToolchainError | None:
    """Return why a library cannot compile even an empty kernel; None where it works. It is tried once in a process."""
    try:
        compile_cubin(library, 'extern "C" __global__ void empty() {}', [])
    except ToolchainError as error:
        return error
    return None


class _Program:
    def __init__(self, library: str, source: str) -> None:
        load_builtins(library)
        self._nvrtc = _load(library)
        self._library, self._handle = library, ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(self._handle), source.encode(), b"extern.cu", 0, None, None)

    def compile(self, options: Sequence[str]) -> None:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if self._nvrtc.nvrtcCompileProgram(self._handle, len(options), words):
            log = self.read("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0\n")
            raise ToolchainError("the CUDA compiler failed", where="NVRTC", found=log.decode(errors="replace"))

    def read(self, size_of: str, content_of: str) -> bytes:
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
