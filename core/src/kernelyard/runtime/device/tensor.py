"""Tensor: what a program returns, and the one place where arrays of other libraries are taken in."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import DeviceError, InputTypeError
from kernelyard.runtime.device.device import Device, cpu

if TYPE_CHECKING:
    from kernelyard.runtime.device.array import AnyArray

_HOST_DEVICE_TYPES = (1, 3)  # what the host can read: kDLCPU, kDLCUDAHost
_NOT_OF_NUMPY = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_CAPSULE_TYPE_OFFSETS = {b"dltensor": 20, b"dltensor_versioned": 52}  # where DLDataType.code lies in each struct


class Tensor:
    """A dense tensor, over a NumPy array or over memory of a device, which it does not copy.

    Example:
        >>> import numpy as np
        >>> t = Tensor(np.ones((2, 3), np.float32))
        >>> t.shape, t.dtype, str(t.device)
        ((2, 3), 'float32', 'cpu')
    """

    __slots__ = ("array",)

    def __init__(self, array: AnyArray) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> str:
        """The dtype's name."""
        return dtypes.from_numpy(self.array.dtype)

    @property
    def device(self) -> Device:
        return cpu() if isinstance(self.array, np.ndarray) else self.array.driver.device

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def numpy(self) -> np.ndarray:
        """Return the NumPy array itself, not a copy; a copy of what lies on a device, once it is computed."""
        return self.array if isinstance(self.array, np.ndarray) else self.array.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Return the tensor where it lies, on a device too: no copy."""
        array = self.array
        if array.dtype.name not in _NOT_OF_NUMPY or not isinstance(array, np.ndarray):
            return array.__dlpack__(**options)
        from kernelyard.runtime.device import dlpack  # few results leave in these types

        # NumPy refuses the ml_dtypes types: it exports the bits as unsigned integers, and we name their type.
        bits = array.view(np.dtype(f"uint{8 * array.itemsize}"))
        return _with_type_code(bits.__dlpack__(**options), dlpack.TYPES[array.dtype.name][0])

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, device={self.device})\n{self.numpy()}"


def as_array(value: Any, dtype: str | None = None) -> np.ndarray:
    """Return a NumPy array over a NumPy, torch, JAX or any other DLPack array in host memory, without a copy where
    possible.

    Numbers and nested lists become arrays of `dtype`, if given. Raises: InputTypeError, DeviceError.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, (bool, int, float, list, tuple)):
        return _from_numbers(value, dtype)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    if hasattr(value, "__array__"):
        return np.asarray(value)
    raise InputTypeError("a feed is not an array", found=type(value).__name__, expected="an array, or nested lists")


def _from_numbers(value: Any, dtype: str | None) -> np.ndarray:
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise InputTypeError("a feed has elements that are not numbers", found=str(array.dtype))
        return array if dtype is None else array.astype(dtypes.to_numpy(dtype))
    except (ValueError, TypeError, OverflowError) as error:
        raise InputTypeError("a nested list is not an array", found=str(error), expected="equally long rows") from error


def _from_dlpack(value: Any) -> np.ndarray:
    device_type = int(value.__dlpack_device__()[0])
    if device_type not in _HOST_DEVICE_TYPES:
        raise DeviceError(
            "a feed lies in the memory of another device",
            found=f"{type(value).__name__} on DLPack device type {device_type}",
            expected="host memory",
            hint="copy it to the host first",
        )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):
        return _through_ffi(value)


def _through_ffi(value: Any) -> np.ndarray:
    """Import what NumPy does not take in (bfloat16, 8-bit floats) by tvm-ffi, and view it through its address."""
    try:
        import tvm_ffi

        tensor = tvm_ffi.from_dlpack(value)
        dtype = dtypes.to_numpy(str(tensor.dtype))
    except Exception as error:
        raise InputTypeError(
            "a feed cannot be imported through DLPack", found=f"{type(value).__name__}: {error}"
        ) from error
    if not tensor.is_contiguous():
        raise InputTypeError("a feed of this type must be contiguous", found=f"{dtype.name}, strides {tensor.strides}")
    count = int(np.prod(tensor.shape)) * dtype.itemsize
    if not count:
        return np.empty(tuple(tensor.shape), dtype)
    memory = (ctypes.c_uint8 * count).from_address(tensor.data_ptr())
    memory.owner = tensor  # pyright: ignore[reportAttributeAccessIssue] -- the array's base chain keeps the tensor alive
    return np.frombuffer(memoryview(memory), np.uint8).view(dtype).reshape(tuple(tensor.shape))


def _with_type_code(capsule: Any, code: int) -> Any:
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = name_of(capsule)
    address = pointer_of(capsule, name)
    ctypes.c_uint8.from_address(address + _CAPSULE_TYPE_OFFSETS[name]).value = code
    return capsule
