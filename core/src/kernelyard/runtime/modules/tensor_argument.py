"""TensorArgument: a tensor as functions in C get it, `DLTensor*`, over memory that may be moved."""

from __future__ import annotations

import ctypes

import numpy as np

from kernelyard.runtime.abi.module import BoundTensor
from kernelyard.runtime.device import dlpack


class TensorArgument:
    """The `DLTensor` of dense row-major memory, and what it points to.

    device: `device_type` of dlpack.h, and the number of the device.
    """

    def __init__(self, bound: BoundTensor, device: tuple[int, int] = (dlpack.DLPACK_CPU, 0)) -> None:
        rank = len(bound.shape)
        strides = [int(np.prod(bound.shape[axis + 1 :])) for axis in range(rank)]
        self._sizes = (ctypes.c_int64 * max(rank, 1))(*bound.shape)
        self._strides = (ctypes.c_int64 * max(rank, 1))(*strides)
        code, bits = dlpack.TYPES[bound.dtype]
        places = ctypes.addressof(self._sizes), ctypes.addressof(self._strides)
        self._tensor = dlpack.DLTensor(bound.address, *device, rank, code, bits, 1, *places, 0)

    @property
    def address(self) -> int:
        """The address of the `DLTensor`, and of its first word, which is the address of the data."""
        return ctypes.addressof(self._tensor)

    def move(self, address: int) -> None:
        """Point to other memory of the same size."""
        self._tensor.data = address
