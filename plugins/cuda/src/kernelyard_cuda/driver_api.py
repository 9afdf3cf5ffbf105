"""The abstract CUDA driver, for code generators and libraries alike, and a probe for a GPU.

`kernelyard_native_cuda.drivers` implements it, for GPUs (`gpu.py`) and for the emulator.
"""

from __future__ import annotations

import ctypes
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from kernelyard.errors import DeviceError
from kernelyard.runtime.device.driver import DeviceDriver

DRIVER = "libcuda.so.1"
COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_ARCH = re.compile(r"sm_([0-9]{1,2})([0-9])[a-z]?")


@cache
def gpu_archs() -> tuple[str, ...]:
    """Return the architectures of the GPUs that NVIDIA's driver finds, such as ("sm_90",), each once.

    Source: CUDA Driver API documentation, "Device Management": cuDeviceGetAttribute.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return ()
    count, device, part = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found: dict[str, None] = {}
    for number in range(count.value):
        arch = "sm_"
        driver.cuDeviceGet(ctypes.byref(device), number)
        for attribute in COMPUTE_CAPABILITY:
            driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, device)
            arch += str(part.value)
        found[arch] = None
    return tuple(found)


def capability_of(arch: str | None) -> tuple[int, int] | None:
    """Return the compute capability that an arch is for; None for none, or for what is no arch.

    Example:
        >>> capability_of("sm_90a"), capability_of("sm_100"), capability_of("gfx90a")
        ((9, 0), (10, 0), None)
    """
    found = _ARCH.fullmatch(arch or "")
    return (int(found[1]), int(found[2])) if found else None


def gpu_is_here() -> bool:
    """Return True where NVIDIA's driver finds a GPU: a model compiled there is to run there, with its libraries."""
    return bool(gpu_archs())


class Launch(ABC):
    """A kernel with its arguments: calling it puts the kernel on the device's stream. Raises: ExecutionError."""

    @abstractmethod
    def __call__(self) -> None: ...

    @abstractmethod
    def move(self, place: int, address: int) -> None:
        """Give the tensor in that place of the arguments, or of that map, another address, for the next calls."""


@dataclass(frozen=True)
class Image:
    """Kernels by name, as CUDA source, and compiled for some GPUs.

    cubins: by arch, such as "sm_90".
    """

    source: str
    kernels: tuple[str, ...]
    cubins: Mapping[str, bytes]


class Argument(NamedTuple):
    """A kernel argument: a number, or the address of a tensor of `nbytes`."""

    value: int
    nbytes: int = 0


class TensorMap(NamedTuple):
    """A kernel argument by which boxes of a tensor are copied to shared memory at once (TMA), in lines of 128 bytes.

    sizes: of the axes, the one along memory first. strides: of the others, in bytes. box: elements along each axis.
    Source: CUDA Driver API documentation, "Tensor Map Object Management": cuTensorMapEncodeTiled.
    """

    tensor: Argument
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


class Grid(NamedTuple):
    """A launch configuration: blocks and threads of a block along x, y and z, and bytes of dynamic shared memory."""

    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared_nbytes: int = 0


class LoadedKernels(ABC):
    """An image on a device."""

    @abstractmethod
    def prepare(self, kernel: str, grid: Grid, arguments: Sequence[Argument], maps: Sequence[TensorMap] = ()) -> Launch:
        """Prepare a kernel launch; the arguments, eight bytes each, and the maps behind them are packed once, now."""


class CudaDriver(DeviceDriver):
    """A device that CUDA kernels run on.

    capability: of the GPU, such as (9, 0); the emulator has the newest one that generated kernels use.
    is_emulator: addresses are the host's, and no library of NVIDIA runs: a plugin computes by what stands in for it.
    """

    kind = "cuda"
    capability: tuple[int, int]
    is_emulator: bool = False

    @property
    def stream(self) -> int:
        """The `CUstream` for the work of libraries: ask for it at each call, as it differs while work is captured."""
        return 0

    @abstractmethod
    def enter(self) -> None:
        """Make the device the calling thread's own, before a library is called."""

    @abstractmethod
    def load(self, image: Image) -> LoadedKernels:
        """Load kernels onto the device. Raises: DeviceError where none of the image's code is for this device."""


def require_cuda(device: DeviceDriver | None, where: str) -> CudaDriver:
    """Return the device that a function of a CUDA module is bound for.

    Raises: DeviceError for another kind of memory.
    """
    if not isinstance(device, CudaDriver):
        raise DeviceError(
            "CUDA kernels cannot run in host memory",
            where=where,
            expected="a CUDA device",
            hint='kernelyard.VirtualMachine(exe, kernelyard.cuda(0)), or kernelyard.cuda("emulator")',
        )
    return device
