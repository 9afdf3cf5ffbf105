"""The device: memory that the host cannot follow an address into."""

from __future__ import annotations

import numpy as np

from kernelyard.errors import DeviceError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BoundTensor
from kernelyard.runtime.device.device import Device
from kernelyard.runtime.device.driver import DeviceDriver

COUNT = 2
FIRST = 1 << 60  # beyond every address of the host: following one ends the process


class NpuDriver(DeviceDriver):
    kind = "npu"
    dlpack_type = 12  # kDLExtDev

    def __init__(self, index: int) -> None:
        self.index = index
        self._memory = np.zeros(1 << 20, np.uint8)
        self._next = 0
        self._held: set[int] = set()

    def devices(self) -> list[Device]:
        return [Device("npu", index) for index in range(COUNT)]

    def allocate(self, nbytes: int) -> int:
        address = FIRST + self._next
        self._next += memory.align(nbytes)
        if self._next > self._memory.nbytes:
            raise DeviceError("the NPU's memory is full", expected=f"{self._memory.nbytes} bytes")
        self._held.add(address)
        return address

    def free(self, address: int, is_shared: bool = False) -> None:
        self._held.remove(address)
        if not self._held:
            self._next = 0

    def tensor(self, tensor: BoundTensor) -> np.ndarray:
        """What kernels of the device read and write."""
        return memory.view_of(self._bytes(tensor.address, tensor.nbytes), tensor.shape, tensor.dtype)

    def upload(self, address: int, array: np.ndarray) -> None:
        self._bytes(address, array.nbytes)[...] = array.reshape(-1).view(np.uint8)

    def download(self, address: int, array: np.ndarray) -> None:
        array.reshape(-1).view(np.uint8)[...] = self._bytes(address, array.nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self._bytes(to, nbytes)[...] = self._bytes(source, nbytes).copy()

    def synchronize(self) -> None:
        """Nothing runs on after a call."""

    def _bytes(self, address: int, nbytes: int) -> np.ndarray:
        return self._memory[address - FIRST :][:nbytes]


def open_device(index: int | str) -> NpuDriver:
    if index not in range(COUNT):
        raise DeviceError("there is no such NPU", found=repr(index), expected=f"0 to {COUNT - 1}")
    return NpuDriver(int(index))
