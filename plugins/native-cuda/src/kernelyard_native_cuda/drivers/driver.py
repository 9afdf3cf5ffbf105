"""CudaDriver: what a device with CUDA kernels gives beside its memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernelyard.runtime.device_driver import DeviceDriver

Launch = Callable[[], None]


@dataclass(frozen=True)
class Image:
    """Kernels by name, as CUDA text, and compiled for some GPUs.

    cubins: by arch, such as "sm_90".
    """

    source: str
    kernels: tuple[str, ...]
    cubins: Mapping[str, bytes]


class Argument(NamedTuple):
    """What a kernel gets in one place: a number, or the address of a tensor of `nbytes`."""

    value: int
    nbytes: int = 0


class LoadedKernels(ABC):
    """An image on a device."""

    @abstractmethod
    def prepare(self, kernel: str, blocks: int, threads: int, arguments: Sequence[Argument]) -> Launch:
        """What runs a kernel over a row of blocks; the arguments are packed now, once.

        Running it raises: ExecutionError.
        """


class CudaDriver(DeviceDriver):
    """A device that CUDA kernels run on."""

    kind = "cuda"

    @abstractmethod
    def load(self, image: Image) -> LoadedKernels:
        """Kernels ready to run. Raises: DeviceError where none of the image's code is for this device."""
