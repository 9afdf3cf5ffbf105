"""DeviceDriver: what running programs takes of a device with memory of its own."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod

import numpy as np

from kernelyard.runtime import memory


class DeviceDriver(ABC):
    """An open device: its memory, copies, and waiting. Safe to use from many threads.

    Work is done in the order in which it was asked for. Addresses are numbers; only the driver may follow them.
    """

    kind: str

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """The address of new, uninitialised memory, a multiple of 64. Raises: DeviceError when there is none left."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Give back what `allocate` gave."""

    @abstractmethod
    def upload(self, address: int, array: np.ndarray) -> None:
        """Copy a dense array to the device; the array may change once this returns."""

    @abstractmethod
    def download(self, address: int, array: np.ndarray) -> None:
        """Copy from the device into a dense array, once all work before is done."""


class DeviceMemory:
    """Memory of a device, given back with the object."""

    def __init__(self, driver: DeviceDriver, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = driver.allocate(memory.align(max(nbytes, 1)))
        weakref.finalize(self, driver.free, self.address)


class DeviceWorkspace:
    """`kernelyard.runtime.memory.Workspace`, in a device's memory."""

    def __init__(self, driver: DeviceDriver) -> None:
        self._driver = driver
        self._buffers: list[DeviceMemory] = []

    def __call__(self, nbytes: int) -> int:
        """The address of at least `nbytes`; addresses handed out before stay valid."""
        largest = self._buffers[-1].nbytes if self._buffers else 0
        if nbytes > largest or not self._buffers:
            self._buffers.append(DeviceMemory(self._driver, max(nbytes, 2 * largest)))
        return self._buffers[-1].address
