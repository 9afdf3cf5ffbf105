"""OrtValue and IOBinding: tensors that a program holds from call to call, and where results are written."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from kernelyard.errors import DeviceError, InputNameError, InputShapeError, InputTypeError

_NAMES = {"float32": "float", "float64": "double", "object": "string"}


def type_text(type_: onnx.TypeProto) -> str:
    """Write a type as onnxruntime does: `tensor(float)`, `seq(tensor(int64))`."""
    kind = type_.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({type_text(type_.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_text(type_.optional_type.elem_type)})"
    if kind == "map_type":
        key = onnx.TensorProto.DataType.Name(type_.map_type.key_type).lower()
        return f"map({key},{type_text(type_.map_type.value_type)})"
    return f"tensor({onnx.TensorProto.DataType.Name(type_.tensor_type.elem_type).lower()})"


class OrtDevice:
    """The processor, the one device.

    Raises: DeviceError for another one.
    """

    def __init__(self, device_type: str = "cpu", device_id: int = 0) -> None:
        if str(device_type).lower() not in ("cpu", "0"):
            raise DeviceError("there is no such device", found=device_type, expected="cpu")
        self._id = device_id

    @staticmethod
    def make(name: str, device_id: int) -> OrtDevice:
        """Return a device by its name."""
        return OrtDevice(name, device_id)

    @staticmethod
    def cpu() -> int:
        """Return the number of the kind of device."""
        return 0

    def device_type(self) -> str:
        """Return the name of the kind of device."""
        return "cpu"

    def device_id(self) -> int:
        """Return the number of the device."""
        return self._id


class OrtValue:
    """A tensor, or a sequence of them.

    Example:
        >>> value = OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32))
        >>> value.shape(), value.data_type(), value.device_name()
        ([2, 3], 'tensor(float)', 'cpu')
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(array: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Wrap an array, without a copy.

        Raises: DeviceError.
        """
        OrtDevice(device_type, device_id)
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Allocate a tensor, uninitialized.

        Raises: DeviceError.
        """
        OrtDevice(device_type, device_id)
        return OrtValue(np.empty(tuple(shape), _dtype(element_type)))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """Wrap the bits of an array as elements of a type that NumPy may not have.

        Raises: InputTypeError where an element of one is not as large as one of the other.
        """
        dtype = _dtype(onnx_element_type)
        if data.dtype.itemsize != dtype.itemsize:
            raise InputTypeError("elements are of another size", found=data.dtype, expected=dtype)
        return OrtValue(data.view(dtype))

    def numpy(self) -> Any:
        """Return the array; a list of arrays for a sequence."""
        return self._value

    def shape(self) -> list[int]:
        """Return the shape of a tensor."""
        return list(self._value.shape)

    def data_type(self) -> str:
        """Return the type, as onnxruntime writes it."""
        if not self.is_tensor():
            return f"seq({OrtValue(self._value[0]).data_type()})" if self._value else "seq(tensor(float))"
        name = self._value.dtype.name
        return f"tensor({_NAMES.get(name, name)})"

    def element_type(self) -> int:
        """Return ONNX's number of the element type."""
        return helper.np_dtype_to_tensor_dtype(self._value.dtype)

    def device_name(self) -> str:
        """Return the name of the device."""
        return "cpu"

    def is_tensor(self) -> bool:
        """Return True for a tensor."""
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Return True for a sequence of tensors."""
        return isinstance(self._value, list)

    def is_sparse_tensor(self) -> bool:
        """Return False: no tensor is sparse here."""
        return False

    def tensor_size_in_bytes(self) -> int:
        """Return the size of a tensor in bytes."""
        return self._value.nbytes

    def has_value(self) -> bool:
        """Return True for an optional that holds something."""
        return self._value is not None

    def data_ptr(self) -> int:
        """Return the address of a tensor's elements."""
        return self._value.ctypes.data

    def update_inplace(self, array: np.ndarray) -> None:
        """Copy elements into the memory of the tensor."""
        self._value[...] = array


class IOBinding:
    """Inputs and outputs that stay from call to call."""

    def __init__(self, all_inputs: Sequence[str], all_outputs: Sequence[str]) -> None:
        self._all_inputs = list(all_inputs)
        self._all = list(all_outputs)
        self._results: list[OrtValue] = []
        self._into: dict[str, np.ndarray | None] = {}
        self.inputs: dict[str, Any] = {}

    @property
    def output_names(self) -> list[str]:
        """Return the names of the bound outputs."""
        return list(self._into)

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array as an input.

        Raises: InputNameError.
        """
        self._take(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value as an input.

        Raises: InputNameError.
        """
        self._take(name, ortvalue)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory, which the caller keeps alive, as an input.

        Raises: DeviceError, InputNameError.
        """
        OrtDevice(device_type, device_id)
        self._take(name, _over_memory(element_type, shape, buffer_ptr))

    def _take(self, name: str, value: Any) -> None:
        if name not in self._all_inputs:
            raise InputNameError(f"the model has no input {name!r}", found=name, expected=", ".join(self._all_inputs))
        self.inputs[name] = value

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output, to memory if that is given, which the caller keeps alive.

        Raises: DeviceError, InputNameError.
        """
        OrtDevice(device_type, device_id)
        self._bind(name, None if buffer_ptr is None else _over_memory(element_type, shape or (), buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a value.

        Raises: InputNameError.
        """
        self._bind(name, ortvalue.numpy())

    def _bind(self, name: str, memory: np.ndarray | None) -> None:
        if name not in self._all:
            raise InputNameError(f"the model has no output {name!r}", found=name, expected=", ".join(self._all))
        self._into[name] = memory

    def keep(self, values: Sequence[Any]) -> None:
        """Store the results of a call, and copy them to bound memory.

        Raises: InputTypeError, InputShapeError.
        """
        self._results = []
        for (name, memory), value in zip(self._into.items(), values, strict=True):
            if memory is not None:
                _check_fits(name, memory, value)
                memory[...] = value
            self._results.append(OrtValue(value if memory is None else memory))

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the results of the last call."""
        return [value.numpy() for value in self._results]

    def get_outputs(self) -> list[OrtValue]:
        """Return the results of the last call, as values."""
        return list(self._results)

    def clear_binding_inputs(self) -> None:
        """Remove the bound inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Remove the bound outputs."""
        self._into.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Return at once: nothing is asynchronous."""

    def synchronize_outputs(self) -> None:
        """Return at once: nothing is asynchronous."""


def _check_fits(name: str, memory: np.ndarray, value: np.ndarray) -> None:
    if memory.dtype != value.dtype:
        raise InputTypeError(
            f"the memory of output {name!r} has another dtype", found=memory.dtype, expected=value.dtype
        )
    if memory.shape != value.shape:
        raise InputShapeError(
            f"the memory of output {name!r} has another shape", found=memory.shape, expected=value.shape
        )


def _dtype(element_type: Any) -> np.dtype:
    is_number = isinstance(element_type, int)
    return np.dtype(helper.tensor_dtype_to_np_dtype(element_type) if is_number else element_type)


def _over_memory(element_type: Any, shape: Sequence[int], address: int) -> np.ndarray:
    dtype = _dtype(element_type)
    size = math.prod(shape) * dtype.itemsize
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.ctypeslib.as_array(memory).view(dtype).reshape(tuple(shape))
