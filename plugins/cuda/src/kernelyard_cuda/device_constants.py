"""Constants of a module in the memory of devices."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

import numpy as np

from kernelyard.runtime.api import DeviceMemory
from kernelyard_cuda.driver_api import CudaDriver


class DeviceConstants:
    """Upload the constants of a module, by digest: each at its first use, and once to each device."""

    def __init__(self, constants: Mapping[str, np.ndarray]) -> None:
        self._constants = constants
        self._resident: dict[tuple[CudaDriver, str], DeviceMemory] = {}
        self._lock = Lock()

    def on(self, device: CudaDriver, digest: str) -> DeviceMemory:
        """Return a constant in the memory of a device."""
        with self._lock:
            if (device, digest) not in self._resident:
                self._resident[device, digest] = upload_array(device, self._constants[digest])
            return self._resident[device, digest]


def upload_array(device: CudaDriver, array: np.ndarray) -> DeviceMemory:
    """Return an array in new memory of a device."""
    memory = DeviceMemory(device, array.nbytes)
    device.upload(memory.address, np.ascontiguousarray(array))
    return memory
