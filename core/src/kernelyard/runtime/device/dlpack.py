"""DLPack for memory that NumPy cannot see: exported as a capsule, imported by its address.

Source: dlpack.h 1.0, `DLTensor`, `DLManagedTensor`; the Python array API standard, "Data interchange mechanisms".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from kernelyard.errors import InputTypeError

DLPACK_CPU = 1  # kDLCPU
_NAME = b"dltensor"
# DLDataType: code, bits.
TYPES = {
    "bool": (6, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}


class DLTensor(ctypes.Structure):
    """dlpack.h: `DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),  # null: dense
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_exported: dict[int, tuple[object, ...]] = {}  # by the address of their structure: what consumers keep alive


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address: int) -> None:
    _exported.pop(address, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    if _is_valid(capsule, _NAME):  # nobody took the tensor: a consumer renames the capsule
        _exported.pop(_pointer_of(capsule, _NAME), None)


def _python(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_of = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def pointer_in(capsule: object, name: bytes) -> int | None:
    """Return the pointer of a capsule of that name; None for one of another name."""
    return _pointer_of(id(capsule), name) if _is_valid(id(capsule), name) else None


def not_dense(strides: tuple[int, ...]) -> InputTypeError:
    """Return the error for a tensor with gaps."""
    return InputTypeError(
        "a feed on a device is not contiguous",
        found=f"strides {strides}",
        expected="a contiguous array in row-major order",
        hint="make it contiguous first: x.contiguous()",
    )


def export(owner: object, address: int, shape: tuple[int, ...], dtype: str, device: tuple[int, int]) -> Any:
    """Return a capsule with a dense tensor, which keeps `owner` alive until its consumer releases it."""
    code, bits = TYPES[dtype]
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    tensor = DLTensor(address, *device, len(shape), code, bits, 1, ctypes.addressof(sizes), None, 0)
    managed = _Managed(tensor, None, ctypes.cast(_delete, ctypes.c_void_p))
    place = ctypes.addressof(managed)
    _exported[place] = (managed, sizes, owner)
    return _new(place, _NAME, ctypes.cast(_destroy, ctypes.c_void_p))


def import_dense(value: Any, stream: int | None) -> tuple[int, tuple[int, ...], str, object]:
    """Return address, shape, dtype and owner of what `value` exports for readers on a stream.

    Raises: InputTypeError for what is not dense, or cannot be taken in.
    """
    import tvm_ffi

    class Producer:
        def __dlpack__(self, **options: Any) -> Any:
            return value.__dlpack__(stream=stream)

        def __dlpack_device__(self) -> tuple[int, int]:
            return value.__dlpack_device__()

    try:
        tensor = tvm_ffi.from_dlpack(Producer())
    except Exception as error:
        raise InputTypeError(
            "a feed cannot be imported through DLPack", found=f"{type(value).__name__}: {error}"
        ) from error
    if not tensor.is_contiguous():
        raise not_dense(tuple(tensor.strides))
    return tensor.data_ptr(), tuple(tensor.shape), str(tensor.dtype), tensor
