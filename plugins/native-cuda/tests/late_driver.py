"""The late driver: a driver library for tests, which cuda-bindings loads where there is no GPU. See `late_driver.cpp`."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kernelyard.errors import DeviceError
from kernelyard_cuda.driver_api import Image
from kernelyard_native_cuda import generator
from kernelyard_native_cuda.drivers import gpu as gpus
from kernelyard_native_cuda.drivers import open_device
from kernelyard_native_cuda.drivers.emulator import CPP, Emulator, write_emulated_text
from kernelyard_native_cuda.drivers.gpu import Gpu

SOURCE = Path(__file__).with_name("late_driver.cpp")
SONAME = "libcuda.so.1"  # what is loaded under this name already is what cuda-bindings gets
KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(")
PARAMETERS = """template <class... A> constexpr int parameters_of(void (*)(A...)) { return sizeof...(A); }
template <class... A> constexpr unsigned maps_of(void (*)(A...)) {
  unsigned all = 0, n = 0;
  ((all |= (unsigned)emulation::Argument<A>::KIND.is_map << n++), ...);
  return all;
}"""


class EmulatedCompiler:
    """A compiler of kernels whose cubins are the emulator's libraries, which the late driver loads."""

    name = "the emulator's"

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def cubin(self, source: str, arch: str, options: Sequence[str] = ()) -> bytes:
        """See `KernelCompiler.cubin`."""
        kernels = tuple(KERNEL.findall(source))
        counts = (
            f"EXPORTED const int parameters_of_{kernel} = parameters_of({kernel});"
            f"EXPORTED const unsigned maps_of_{kernel} = maps_of({kernel});"
            for kernel in kernels
        )
        return self._emulator.compile("\n".join((write_emulated_text(Image(source, kernels, {})), PARAMETERS, *counts)))


@cache
def library() -> ctypes.CDLL:
    """The driver library, compiled and loaded for as long as the process lives. Raises: ToolchainError."""
    flags = ("-std=c++17", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{SONAME}", "-o", SONAME)
    with TemporaryDirectory(prefix="late-driver-") as folder:
        CPP.run((*CPP.find(), *flags, str(SOURCE), "-ldl", "-pthread"), Path(folder))
        loaded = ctypes.CDLL(str(Path(folder, SONAME)))
    loaded.late_driver_complaint.restype = ctypes.c_char_p
    return loaded


def reset(has_device: bool = True) -> None:
    """Finish what is under way, and forget what went wrong."""
    library().late_driver_reset(int(has_device))


def reuse_memory() -> None:
    """Hand out memory again that was given back on the same stream, as pools do, until the next reset."""
    library().late_driver_reuse_memory()


def drop_work() -> None:
    """Do nothing of what is put on streams, until the next reset: what remains is the host's work."""
    library().late_driver_drop_work()


def calls(*functions: str) -> int:
    """Return how often functions of the driver were called."""
    return sum(library().late_driver_count(function.encode()) for function in functions)


def check_that_nothing_went_wrong() -> None:
    """Finish what is under way. Raises: AssertionError with what the driver has found."""
    gpus.gpu(0).call("cuCtxSynchronize")
    assert library().late_driver_complaint().decode() == ""
    assert library().late_driver_captures() == 0


@contextmanager
def late_gpu(emulator: Emulator) -> Iterator[Gpu]:
    """The device 0 by the real cuda-bindings on the late driver; there is none before and after."""
    pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed", exc_type=ImportError)
    reset()
    gpus.gpu.cache_clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(generator, "find_kernel_compiler", lambda: EmulatedCompiler(emulator))
            yield _opened()
    finally:
        reset(has_device=False)
        gpus.gpu.cache_clear()


def _opened() -> Gpu:
    try:
        found = open_device(0)
    except DeviceError as error:
        raise AssertionError(f"cuda-bindings did not load the late driver: {error}") from error
    if not library().late_driver_was_opened():
        pytest.skip("the process has loaded NVIDIA's own driver")
    assert isinstance(found, Gpu)
    return found
