"""TensorProto -> NumPy array, without a copy where the bytes allow it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from kernelyard.dtypes import to_numpy
from kernelyard.errors import ModelFormatError
from kernelyard_onnx.element_types import NARROW
from kernelyard_onnx.external_data import WeightFiles
from kernelyard_onnx.values import StringTensor

P = onnx.TensorProto
# A sparse weight of a few bytes must not ask for all the memory there is.
MAX_DENSE = 2**30
DTYPES: dict[int, str] = {
    P.FLOAT: "float32",
    P.DOUBLE: "float64",
    P.FLOAT16: "float16",
    P.BFLOAT16: "bfloat16",
    P.FLOAT8E4M3FN: "float8_e4m3fn",
    P.FLOAT8E5M2: "float8_e5m2",
    P.INT8: "int8",
    P.INT16: "int16",
    P.INT32: "int32",
    P.INT64: "int64",
    P.UINT8: "uint8",
    P.UINT16: "uint16",
    P.UINT32: "uint32",
    P.UINT64: "uint64",
    P.BOOL: "bool",
}

# Without raw bytes, these stand one in each int32.
IN_INT32 = ("int8", "uint8", "int16", "uint16", "int32", "bool")

DATA_TYPES = {name: data_type for data_type, name in DTYPES.items()}


def type_name(data_type: int) -> str:
    """ONNX's own name of an element type, for messages."""
    known = data_type in P.DataType.values()
    return P.DataType.Name(data_type) if known else f"element type {data_type}"  # pyright: ignore[reportArgumentType]


def to_array(tensor: onnx.TensorProto, files: WeightFiles | None = None) -> np.ndarray:
    """Return the array of a tensor: a read-only view of the message's bytes where it has them.

    files: where the data of others lies.
    Raises: ModelFormatError (element type, size), ExternalDataError.
    """
    if tensor.data_type in NARROW:
        return _narrow(tensor, files)
    name = DTYPES.get(tensor.data_type)
    if name is None:
        raise ModelFormatError(
            "a weight has an element type that is not supported",
            where=f"weight {tensor.name!r}",
            found=type_name(tensor.data_type),
            expected=", ".join(type_name(key) for key in DTYPES),
        )
    dtype, shape = to_numpy(name), _check_shape(tensor.name, tensor.dims)
    count = math.prod(shape)
    if tensor.data_location == P.EXTERNAL:
        return (files or WeightFiles()).read(tensor, dtype, count).reshape(shape)
    if tensor.HasField("raw_data"):
        data = tensor.raw_data
        _check_size(tensor, len(data), count * dtype.itemsize, "bytes")
        flat = np.frombuffer(data, dtype)
        # The format is little-endian.
        return (flat if sys.byteorder == "little" else flat.byteswap()).reshape(shape)
    if name == "float32":
        _check_size(tensor, len(tensor.float_data), count, "numbers")
        return np.fromiter(tensor.float_data, np.float32, count).reshape(shape)
    if name == "int64":
        _check_size(tensor, len(tensor.int64_data), count, "numbers")
        return np.fromiter(tensor.int64_data, np.int64, count).reshape(shape)
    if name in IN_INT32:
        _check_size(tensor, len(tensor.int32_data), count, "numbers")
        return np.fromiter(tensor.int32_data, np.int32, count).astype(dtype).reshape(shape)
    return _from_rare_fields(tensor, dtype)


def _narrow(tensor: onnx.TensorProto, files: WeightFiles | None) -> np.ndarray:
    """Return a tensor of a narrow element type, in the type that carries it."""
    carrier, own = NARROW[tensor.data_type]
    if tensor.data_location == P.EXTERNAL:
        bits = (ml_dtypes.finfo if carrier == "float32" else ml_dtypes.iinfo)(own).bits
        nbytes = -(-math.prod(_check_shape(tensor.name, tensor.dims)) * bits // 8)
        raw = (files or WeightFiles()).read(tensor, np.dtype(np.uint8), nbytes).tobytes()
        tensor = P(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=raw)
    return _from_rare_fields(tensor, to_numpy(carrier))


def to_text(tensor: onnx.TensorProto) -> StringTensor:
    """Return the text of a tensor of strings.

    Raises: ModelFormatError.
    """
    shape = _check_shape(tensor.name, tensor.dims)
    _check_size(tensor, len(tensor.string_data), math.prod(shape), "strings")
    texts = np.empty(len(tensor.string_data), object)
    texts[:] = [item.decode("utf-8", "replace") for item in tensor.string_data]
    return StringTensor(texts.reshape(shape))


def _from_rare_fields(tensor: onnx.TensorProto, dtype: np.dtype) -> np.ndarray:
    try:
        return np.asarray(numpy_helper.to_array(tensor)).astype(dtype, copy=False)
    except (ValueError, TypeError) as error:
        raise ModelFormatError(
            "the data of a weight does not fit its shape", where=f"weight {tensor.name!r}", found=error
        ) from error


def _check_shape(name: str, dims: Iterable[int], most: int | None = None) -> tuple[int, ...]:
    shape = tuple(dims)
    if any(size < 0 for size in shape) or (most is not None and math.prod(shape) > most):
        expected = "sizes of 0 or more" + ("" if most is None else f", at most {most} elements")
        raise ModelFormatError(
            "a weight has an invalid shape", where=f"weight {name!r}", found=shape, expected=expected
        )
    return shape


def _check_size(tensor: onnx.TensorProto, found: int, expected: int, unit: str) -> None:
    if found != expected:
        raise ModelFormatError(
            "the data of a weight does not fit its shape",
            where=f"weight {tensor.name!r} of shape {tuple(tensor.dims)}",
            found=f"{found} {unit}",
            expected=f"{expected} {unit}",
        )


def from_sparse(sparse: onnx.SparseTensorProto, files: WeightFiles | None = None) -> np.ndarray:
    """Return the dense array of a sparse tensor.

    Raises: ModelFormatError.
    """
    values, indices = to_array(sparse.values, files), to_array(sparse.indices, files)
    dense = np.zeros(_check_shape(sparse.values.name, sparse.dims, MAX_DENSE), values.dtype)
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise ModelFormatError(
            "a sparse weight is malformed", where=f"weight {sparse.values.name!r}", found=error
        ) from error
    return dense
