"""DLPack's exchange API: tensors and the current stream of another library, without its Python code, and no waiting.

Source: dlpack.h 1.2, `DLPackExchangeAPI`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from kernelyard.errors import InputTypeError
from kernelyard.runtime.device.dlpack import TYPES, DLTensor, not_dense, pointer_in

ATTRIBUTE = "__dlpack_c_exchange_api__"  # of the type of a library's tensors
MAJOR_VERSION = 1
_NAME = b"dlpack_exchange_api"
_DTYPES = {code: name for name, code in TYPES.items()}
_DLTENSOR_OF = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_CURRENT_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class ExchangeTable(ctypes.Structure):
    """dlpack.h: `DLPackExchangeAPI`."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("managed_tensor_allocator", ctypes.c_void_p),
        ("managed_tensor_from_py_object_no_sync", ctypes.c_void_p),
        ("managed_tensor_to_py_object_no_sync", ctypes.c_void_p),
        ("dltensor_from_py_object_no_sync", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    )


class Exchange:
    """The exchange API of a library, in the version that is read here."""

    def __init__(self, table: ExchangeTable) -> None:
        self._tensor_of = _DLTENSOR_OF(table.dltensor_from_py_object_no_sync)
        self._stream_of = _CURRENT_STREAM(table.current_work_stream)

    def tensor(self, value: Any) -> DLTensor:
        """Return the description of a tensor, which holds while `value` lives. Raises: what the library raises."""
        found = DLTensor()
        if self._tensor_of(value, ctypes.byref(found)):
            raise InputTypeError("a feed cannot be imported through DLPack", found=type(value).__name__)
        return found

    def current_stream(self, device: tuple[int, int]) -> int:
        """Return the handle of the stream on which the calling thread's work goes; 0: the default one."""
        found = ctypes.c_void_p()
        if self._stream_of(*device, ctypes.byref(found)):
            raise InputTypeError("a library does not tell its current stream", found=str(device))
        return found.value or 0


@cache
def exchange_of(kind: type) -> Exchange | None:
    """Return the exchange API that a type of tensors has; None where it has none of this version."""
    capsule = getattr(kind, ATTRIBUTE, None)
    address = None if capsule is None else pointer_in(capsule, _NAME)
    while address:
        table = ExchangeTable.from_address(address)
        if table.major == MAJOR_VERSION:
            return Exchange(table)
        address = table.previous
    return None


def shape_and_dtype(tensor: DLTensor) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of a dense tensor.

    Raises: InputTypeError for what is not dense, or of a type without a name.
    """
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        found = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise InputTypeError("a feed is of a type that no program takes", found=found, expected=", ".join(TYPES))
    shape = _read_int64s(tensor.shape, tensor.ndim)
    strides = _read_int64s(tensor.strides, tensor.ndim) if tensor.strides else None
    if strides is not None and not _is_dense(shape, strides):
        raise not_dense(strides)
    return shape, dtype


def _read_int64s(address: int | None, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int64 * count).from_address(address)) if address and count else ()


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    wanted = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != wanted:
            return 0 in shape
        wanted *= size
    return True
