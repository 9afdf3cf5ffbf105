"""The emulator: the text of kernels compiled by the C++ compiler of this machine, and run on the CPU with checks.

See `emulation.h` for what it finds. Its memory is the host's, filled with bytes that make the use of unwritten elements
visible.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np

from kernelyard.errors import DeviceError, ExecutionError, ToolchainError
from kernelyard.runtime.api import (
    DLPACK_CPU,
    DiskCache,
    EnvironmentVariable,
    Toolchain,
    address_of,
    aligned_bytes,
    plugin_cache,
)
from kernelyard_cuda.driver_api import Argument, CudaDriver, Grid, Image, Launch, LoadedKernels, TensorMap
from kernelyard_native_cuda.drivers.tensor_maps import emulate

CPP = Toolchain("C++", "CXX", ("g++", "c++"), "apt install g++ (Debian, Ubuntu), or set CXX to a C++ compiler")
HEADER = Path(__file__).with_name("emulation.h")
HEADERS = sorted(HEADER.parent.glob("*.h"))
# Libraries share no state (hidden). Signed integers wrap, as they do on GPUs; products with sums are rounded
# twice, everywhere alike.
FLAGS = (
    "-std=c++17",
    "-O1",
    "-w",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-exceptions",
)
# What to link. C++'s library, which nothing here needs, would take a third of the time of a short kernel.
LIBRARIES = ("-nodefaultlibs", "-lm", "-lc")
OBJECT, OBJECT_ELSEWHERE = "emulation.o", "-DKERNELYARD_EMULATION_OBJECT"
NAME, PARAMETERS = re.compile(r"\b(\w+)\s*\("), re.compile(r"([^{;]*)\)\s*\{")  # of a function that is defined
CACHE = DiskCache("cuda-emulator")
POISON = 0xC3
RACES_VARIABLE = EnvironmentVariable(
    "KERNELYARD_EMULATOR_RACES", "1: the emulator of GPUs looks for races between threads", "off"
)


class Checks(NamedTuple):
    """Checking options of the emulator, for kernels launched from now on.

    tensors: whether each access of a tensor is recorded, so that races between threads or blocks are found, and tensors
    that overlap. order: of blocks: 0 as they are numbered, 1 the last first, any other a seed to shuffle them by.
    """

    tensors: bool = False
    order: int = 0


@cache
def emulator() -> Emulator:
    """Return the process's emulator. Raises: DeviceError without a C++ compiler."""
    try:
        return Emulator(CPP.find())
    except ToolchainError as error:
        raise DeviceError(
            "the CUDA emulator is unavailable", found=error.message, expected="a C++ compiler", hint=error.hint
        ) from error


class Emulator(CudaDriver):
    """See the module's text. compiler: the words that call it.

    checks: may be set at any time; tensors are recorded from the start where `KERNELYARD_EMULATOR_RACES` is 1.
    """

    index = "emulator"
    dlpack_type = DLPACK_CPU
    capability = (9, 0)
    is_emulator = True

    def __init__(self, compiler: tuple[str, ...]) -> None:
        self.checks = Checks(tensors=RACES_VARIABLE.get() == "1")
        self._compiler = compiler
        self._held: dict[int, np.ndarray] = {}

    def enter(self) -> None:
        """See `CudaDriver.enter`."""

    def allocate(self, nbytes: int) -> int:
        array = aligned_bytes(nbytes)
        array[...] = POISON
        address = address_of(array)
        self._held[address] = array
        return address

    def free(self, address: int, is_shared: bool = False) -> None:
        del self._held[address]

    def upload(self, address: int, array: np.ndarray) -> None:
        ctypes.memmove(address, address_of(array), array.nbytes)

    def download(self, address: int, array: np.ndarray) -> None:
        ctypes.memmove(address_of(array), address, array.nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        ctypes.memmove(to, source, nbytes)

    def synchronize(self) -> None:
        """See `DeviceDriver.synchronize`: all is done when it is asked for."""

    def load(self, image: Image) -> EmulatedKernels:
        """Return the kernels compiled, unless they were before.

        Raises: DeviceError without their text, ToolchainError with what the compiler said.
        """
        if not image.source:
            raise DeviceError(
                "the program has no CUDA source, which the emulator needs",
                found=f"compiled code for {', '.join(image.cubins)}",
                hint='compile it without options={"native-cuda": {"text": False}}',
            )
        code = self.compile(write_emulated_text(image))
        with tempfile.TemporaryDirectory(prefix="kernelyard-") as folder:
            path = Path(folder, "kernels.so")
            path.write_bytes(code)
            return EmulatedKernels(self, ctypes.CDLL(str(path)))

    def compile(self, text: str) -> bytes:
        """Return the shared library of C++ text, compiled unless it was before. Raises: ToolchainError."""
        key = "\n".join(
            (*self._compiler, *FLAGS, *LIBRARIES, *(path.read_text(encoding="utf-8") for path in HEADERS), text)
        )
        code = CACHE.get(key)
        if code is None:
            with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
                folder = Path(name)
                (folder / "kernels.cpp").write_text(text, encoding="utf-8")
                made = precompile(self._compiler, FLAGS)
                kept = (OBJECT_ELSEWHERE, f"-I{made}", str(made / OBJECT)) if made is not None else ()
                words = (
                    *self._compiler,
                    *FLAGS,
                    "-o",
                    "kernels.so",
                    "kernels.cpp",
                    *kept,
                    f"-I{HEADER.parent}",
                    *LIBRARIES,
                )
                CPP.run(words, folder)
                code = (folder / "kernels.so").read_bytes()
            CACHE.put(key, code)
        return code


@cache
def precompile(compiler: tuple[str, ...], flags: tuple[str, ...]) -> Path | None:
    """Return a folder with the emulator's header precompiled, and an object; None where nothing may be kept.

    Most kernels are short, and the emulator takes most of the time of their compilation: the object has what runs the
    blocks of every kernel. A compiler that cannot read the header's file, as one of another version, reads the header
    instead. Raises: ToolchainError.
    """
    kept = plugin_cache("kernelyard-native-cuda")
    if kept is None:
        return None
    text = "\n".join((*compiler, *flags, *(path.read_text(encoding="utf-8") for path in HEADERS)))
    folder = kept / f"emulation-{hashlib.sha256(text.encode()).hexdigest()}"
    header = folder / f"{HEADER.name}.gch"
    if not header.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as name:  # complete before it is read
            made = Path(name)
            words, source = (*compiler, *flags), str(HEADER)
            CPP.run((*words, "-x", "c++", "-c", source, "-o", str(made / OBJECT)), made)
            CPP.run((*words, OBJECT_ELSEWHERE, "-x", "c++-header", source, "-o", str(made / header.name)), made)
            os.replace(made / OBJECT, folder / OBJECT)
            os.replace(made / header.name, header)
    return folder


def write_emulated_text(image: Image) -> str:
    """Return the C++ text of an image: its own, and a function for every kernel that runs it."""
    take = "const emulation::Start* how, const emulation::Slot* slots"
    parameters = _parameters(image)
    starts = (
        f"EXPORTED const char* emulate_{kernel}({take}) {{\n"
        f"  static const char* const names[] = {{{parameters.get(kernel, _names(''))}}};\n"
        f"  return emulation::launch({kernel}, how, slots, names);\n}}"
        for kernel in image.kernels
    )
    return "\n".join(('#include "emulation.h"', image.source, *starts, ""))


def _parameters(image: Image) -> dict[str, str]:
    """Return the names of each kernel's parameters. The text, which may have megabytes, is read once for all."""
    found: dict[str, str] = {}
    kernels = set(image.kernels)
    for name in NAME.finditer(image.source):
        if name[1] in kernels and name[1] not in found and (head := PARAMETERS.match(image.source, name.end())):
            found[name[1]] = _names(head[1])
    return found


def _names(parameters: str) -> str:
    """Return the names in a list of parameters as literals of C++; those that are not found are empty."""
    text = re.sub(r"\([^()]*\)|<[^<>]*>", "", parameters)  # types may have commas
    words = (re.findall(r"[A-Za-z_]\w*", each) for each in text.split(","))
    return ", ".join(f'"{each[-1] if each else ""}"' for each in words)


class EmulatedKernels(LoadedKernels):
    """Kernels as a shared library. One runs at a time: the library has the state of one block."""

    def __init__(self, emulator: Emulator, library: ctypes.CDLL) -> None:
        self._emulator = emulator
        self._library = library
        self._lock = Lock()

    def prepare(self, kernel: str, grid: Grid, arguments: Sequence[Argument], maps: Sequence[TensorMap] = ()) -> Launch:
        """See `LoadedKernels.prepare`."""
        function = getattr(self._library, f"emulate_{kernel}")
        function.restype = ctypes.c_char_p
        return EmulatedLaunch(self._emulator, kernel, function, self._lock, grid, arguments, maps)


class EmulatedLaunch(Launch):
    """See `Launch`."""

    def __init__(
        self,
        emulator: Emulator,
        kernel: str,
        function: Callable[..., bytes | None],
        lock: Lock,
        grid: Grid,
        arguments: Sequence[Argument],
        maps: Sequence[TensorMap] = (),
    ) -> None:
        self._emulator, self._kernel, self._function, self._lock = emulator, kernel, function, lock
        self._grid = (*grid.blocks, *grid.threads, grid.shared_nbytes)
        self._maps = {place: emulate(each) for place, each in enumerate(maps, len(arguments))}
        held = (Argument(ctypes.addressof(each)) for each in self._maps.values())
        words = [word for argument in (*arguments, *held) for word in argument]
        self._slots = (ctypes.c_longlong * len(words))(*words)

    def __call__(self) -> None:
        how = (ctypes.c_uint * 9)(*self._grid, *self._emulator.checks)
        with self._lock:
            message = self._function(how, self._slots)
        if message is not None:
            raise ExecutionError("a kernel failed in the emulator", where=self._kernel, found=message.decode())

    def move(self, place: int, address: int) -> None:
        if place in self._maps:
            self._maps[place].address = address
        else:
            self._slots[2 * place] = address
