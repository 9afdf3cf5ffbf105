"""Tensor maps as the driver makes them, and as the emulator has them.

Source: CUDA Driver API documentation, "Tensor Map Object Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from kernelyard import dtypes
from kernelyard_cuda.driver_api import TensorMap

NBYTES, ALIGNMENT = 128, 64  # of a CUtensorMap
FUNCTION = "cuTensorMapEncodeTiled"
VERSION = 12000  # of CUDA, which has the function as it is called here
DTYPES = {"float16": 6, "bfloat16": 9}  # CUtensorMapDataType
INTERLEAVE_NONE, SWIZZLE_128B, L2_PROMOTION_256B, FILL_ZEROS = 0, 3, 3, 0
_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.c_ulonglong,
    *[ctypes.c_void_p] * 4,
    *[ctypes.c_int] * 4,
)


class Driver(Protocol):
    """The CUDA driver, as `Gpu` calls it."""

    api: Any

    def call(self, name: str, *args: Any) -> Any: ...

    def check(self, name: str, status: Any) -> None: ...


@cache
def _function(gpu: Driver) -> Callable[..., int]:
    return _ENCODE(int(gpu.call("cuGetProcAddress", FUNCTION.encode(), VERSION, 0)))


class EncodedMap:
    """A map of the tensor at an address in the driver's own form, which `place` points to.

    cuda-bindings has the function, but its memory is not aligned as the driver requires.
    Raises: ExecutionError for what TMA cannot copy.
    """

    def __init__(self, gpu: Driver, it: TensorMap, address: int) -> None:
        self._memory = ctypes.create_string_buffer(NBYTES + ALIGNMENT)
        self.place = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT
        rank = len(it.sizes)
        status = _function(gpu)(
            self.place,
            DTYPES[it.dtype],
            rank,
            address,
            (ctypes.c_ulonglong * rank)(*it.sizes),
            (ctypes.c_ulonglong * (rank - 1))(*it.strides),
            (ctypes.c_uint * rank)(*it.box),
            (ctypes.c_uint * rank)(*[1] * rank),
            INTERLEAVE_NONE,
            SWIZZLE_128B,
            L2_PROMOTION_256B,
            FILL_ZEROS,
        )
        gpu.check(FUNCTION, gpu.api.CUresult(status))


class EmulatedMap(ctypes.Structure):
    """A map as `emulated_bulk_copies.h` has it."""

    _fields_ = (
        ("address", ctypes.c_longlong),
        ("nbytes", ctypes.c_longlong),
        ("rank", ctypes.c_uint),
        ("element_nbytes", ctypes.c_uint),
        ("sizes", ctypes.c_ulonglong * 5),
        ("strides", ctypes.c_ulonglong * 5),
        ("box", ctypes.c_uint * 5),
        ("is_swizzled", ctypes.c_uint),
    )


def emulate(it: TensorMap) -> EmulatedMap:
    """Return the emulator's form of a map."""
    size = dtypes.itemsize(it.dtype)
    found = EmulatedMap(it.tensor.value, it.tensor.nbytes, len(it.sizes), size)
    for axis, (length, stride, box) in enumerate(zip(it.sizes, (size, *it.strides), it.box, strict=True)):
        found.sizes[axis], found.strides[axis], found.box[axis] = length, stride, box
    found.is_swizzled = 1
    return found
