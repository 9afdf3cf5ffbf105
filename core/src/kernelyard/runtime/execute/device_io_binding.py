"""DeviceIOBinding: where the steps of a program on a device find an input, or write a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard.runtime.abi.memory import REBIND_ALIGNMENT
from kernelyard.runtime.abi.module import BoundTensor
from kernelyard.runtime.device.array import AnyArray, DeviceArray, write
from kernelyard.runtime.device.driver import DeviceDriver


class DeviceIOBinding:
    """Binding of an input or a result: its own buffer in the arena, and the rebinders of the steps.

    Without rebinders every array is copied to the buffer, or from it.
    """

    def __init__(self, driver: DeviceDriver, buffer: BoundTensor, rebinders: Sequence[Callable[[int], None]]) -> None:
        self._driver = driver
        self._rebinders = tuple(rebinders)
        self._address = buffer.address
        self.buffer = buffer
        self.may_move = bool(rebinders)

    def enter(self, array: AnyArray) -> int:
        """Return where the steps are to read an array: where it lies, or in the arena, to which it is copied."""
        if self.may_move and isinstance(array, DeviceArray) and array.address % REBIND_ALIGNMENT == 0:
            return array.address
        write(self._driver, self.buffer.address, array)
        return self.buffer.address

    def move(self, address: int) -> None:
        """Make the steps use another address."""
        if address != self._address:
            for rebinder in self._rebinders:
                rebinder(address)
            self._address = address
