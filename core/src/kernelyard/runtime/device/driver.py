"""DeviceDriver: what running programs takes of a device with memory of its own."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

import numpy as np

from kernelyard.errors import DeviceError, KernelyardError, describe
from kernelyard.runtime.abi import memory
from kernelyard.runtime.device.device import Device


class DeviceDriver(ABC):
    """An open device: its memory, copies, and waiting. Safe to use from many threads.

    Work is done in the order in which it was asked for, on one stream. Addresses are numbers, which only the driver may
    follow. dlpack_type: what DLPack calls its memory (dlpack.h, `DLDeviceType`).
    """

    kind: str
    index: int | str = 0
    dlpack_type: int

    @property
    def device(self) -> Device:
        """The device by kind and index."""
        return Device(self.kind, self.index)

    def devices(self) -> Sequence[Device]:
        """Return the devices of this kind that can be opened here, in order; by default this one alone."""
        return (self.device,)

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Return the address of new, uninitialised memory, a multiple of 64.

        Raises: DeviceError when there is none left.
        """

    @abstractmethod
    def free(self, address: int, is_shared: bool = False) -> None:
        """Give back what `allocate` gave, once all work before is done: on all streams, where it was shared."""

    def free_after(self, address: int, streams: Collection[int | None]) -> None:
        """Give back what `allocate` gave, once the work so far on streams of its readers is done; see `share_with`."""
        self.free(address, True)

    @abstractmethod
    def upload(self, address: int, array: np.ndarray) -> None:
        """Copy a dense array to the device; the array may change once this returns."""

    @abstractmethod
    def download(self, address: int, array: np.ndarray) -> None:
        """Copy from the device into a dense array, once all work before is done."""

    @abstractmethod
    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy from one place of the device to another."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work is done."""

    def share_with(self, stream: int | None) -> None:
        """Make work of others on a stream wait for the work before: they are about to read the device's memory.

        stream: as DLPack's `__dlpack__(stream=...)` numbers them.
        """
        self.synchronize()

    def wait_for(self, stream: int) -> None:
        """Make the work from now on wait for others' work so far on a stream, as DLPack numbers it.

        Asked of devices with a `dlpack_stream` alone. Raises: DeviceError for others: there is nothing to wait on.
        """
        raise DeviceError(f"{self.device} has no streams", found=stream)

    @property
    def dlpack_stream(self) -> int | None:
        """The stream of this device as DLPack numbers it: what others are to wait for; None where there are none."""
        return None

    def capture(self, run: Callable[[], None]) -> Callable[[], None] | None:
        """Capture the work that `run` enqueues as a graph to replay at the same addresses; None where unsupported.

        `run` may be called, and its work be done or not. Raises: ExecutionError where the work cannot be captured;
        the device stays usable.
        """
        return None


class DeviceMemory:
    """Memory of a device, given back with the object."""

    def __init__(self, driver: DeviceDriver, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = driver.allocate(memory.align(max(nbytes, 1)))
        self._driver = driver
        self._readers: set[int | None] = set()
        self._finalizer = weakref.finalize(self, driver.free, self.address)

    def share_with(self, stream: int | None) -> None:
        """Let work of others on a stream read it, as DLPack numbers it: until then it is computed, and it stays until
        what is on that stream when it goes is done."""
        if not self._readers and self._finalizer.detach() is not None:
            self._finalizer = weakref.finalize(self, self._driver.free_after, self.address, self._readers)
        self._readers.add(stream)
        self._driver.share_with(stream)


class DeviceWorkspace:
    """`kernelyard.runtime.abi.memory.Workspace`, in a device's memory."""

    def __init__(self, driver: DeviceDriver) -> None:
        self._driver = driver
        self._buffers: list[DeviceMemory] = []

    def __call__(self, nbytes: int) -> int:
        """Return the address of at least `nbytes`; addresses handed out before stay valid."""
        largest = self._buffers[-1].nbytes if self._buffers else 0
        if nbytes > largest or not self._buffers:
            self._buffers.append(DeviceMemory(self._driver, max(nbytes, 2 * largest)))
        return self._buffers[-1].address


_QUEUE_HINT = (
    "run it again with VirtualMachine.set_instrument(lambda *step: None), which waits after each step, so that the "
    'error names the step that fails; a program compiled for the target "cpu" runs without the device'
)


def raise_queue_error(driver: DeviceDriver, where: str, error: Exception) -> NoReturn:
    """Raise the error where waiting for a device failed: a driver's own keeps what it says.

    where: what was waited for; the work that failed came before. Raises: DeviceError, or the driver's own of the tree.
    """
    if not isinstance(error, KernelyardError):
        raise DeviceError(f"{driver.device} failed", where=where, found=describe(error), hint=_QUEUE_HINT) from error
    error.where = error.where or where
    error.hint = error.hint or _QUEUE_HINT
    raise error
