"""Affine quantization: real = (stored - zero point) * scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard.dtypes import FLOATS, QUANTIZED, SIGNED, UNSIGNED, to_numpy
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare, flops_per_output, no_flops
from kernelyard.ops.samples import floats, integers
from kernelyard.ops.type_rules import require, require_axis, require_dtype, unify

INTEGERS = (*SIGNED, *UNSIGNED)
BYTES = ("int8", "uint8")
# Of rounded numbers by their bits. Those of 16 bits are two digits to the base 256, from -128 to 127.
LARGEST_CODES = {8: 127.0, 16: 127.0 * 256 + 127}
STORED_BITS = (4, 8)  # of weights that matrix products read as integers
LEAST_OF_BLOCK = 2.0**-100  # the inverse of the scale of smaller numbers may be more than float32 holds
ENTRIES = 256  # of a table of bytes: one for each value of eight bits


def _check_parameters(types: Sequence[TensorType], axis: int | None) -> None:
    """Scale and zero point: one number, or one per index along an axis."""
    for type_, name in zip(types[1:], ("the scale", "the zero point"), strict=True):
        if not type_.shape:
            continue
        require(type_.rank == 1, f"{name} must be a number or a vector", found=type_)
        require(axis is not None, f"{name} is a vector and needs an axis", hint="give the attribute axis")
        along = types[0].shape[require_axis(axis or 0, types[0].rank)]
        unify(type_.shape[0], along, f"{name} and the axis")


def _quantize_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require_dtype(types[0], FLOATS)
    require_dtype(types[1], FLOATS, "the scale")
    require_dtype(types[2], INTEGERS, "the zero point")
    require(attrs["dtype"] in QUANTIZED, "quantized values cannot have this dtype", found=attrs["dtype"])
    _check_parameters(types, attrs["axis"])
    return TensorType(types[0].shape, attrs["dtype"])


def _dequantize_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require_dtype(types[0], QUANTIZED)
    require_dtype(types[1], FLOATS, "the scale")
    require_dtype(types[2], INTEGERS, "the zero point")
    require(attrs["dtype"] in FLOATS, "dequantize returns a float dtype", found=attrs["dtype"])
    _check_parameters(types, attrs["axis"])
    return TensorType(types[0].shape, attrs["dtype"])


def _fake_quantize_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require_dtype(types[0], FLOATS)
    require(types[0].rank > 0, "blocks lie along the last axis, and a number has none")
    require(attrs["block"] > 0, "a block has at least one element", found=attrs["block"])
    require(attrs["bits"] in LARGEST_CODES, "numbers are rounded to 8 bits or to 16", found=attrs["bits"])
    return types[0]


def _lookup_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, table = types
    require_dtype(x, BYTES)
    require_dtype(table, BYTES, "the table")
    require(table.rank == 1, "a table of bytes is a vector", found=repr(table))
    unify(table.shape[0], ENTRIES, "the table and the number of bytes")
    return TensorType(x.shape, table.dtype)


def _broadcast_along(parameter: np.ndarray, axis: int | None, rank: int) -> np.ndarray:
    return parameter.reshape([-1 if n == axis else 1 for n in range(rank)]) if parameter.ndim else parameter


def _quantize(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, *, axis: int | None, dtype: str) -> np.ndarray:
    scaled = x.astype(np.float32) / _broadcast_along(scale, axis, x.ndim).astype(np.float32)
    limits = np.iinfo(to_numpy(dtype))
    shifted = np.rint(scaled).astype(np.float64) + _broadcast_along(zero, axis, x.ndim)
    return np.clip(shifted, limits.min, limits.max).astype(to_numpy(dtype))


def _dequantize(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, *, axis: int | None, dtype: str) -> np.ndarray:
    wide = np.int32 if max(x.dtype.itemsize, zero.dtype.itemsize) < 4 else np.int64
    whole = x.astype(wide) - _broadcast_along(zero, axis, x.ndim).astype(wide)
    return (whole.astype(np.float32) * _broadcast_along(scale, axis, x.ndim).astype(np.float32)).astype(to_numpy(dtype))


def _fake_quantize(x: np.ndarray, *, block: int, bits: int) -> np.ndarray:
    size, largest_code = x.shape[-1], LARGEST_CODES[bits]
    blocks = np.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, -size % block)]).reshape(*x.shape[:-1], -1, block)
    largest = np.abs(blocks).max(axis=-1, keepdims=True, initial=0)
    inverse = np.where(largest < LEAST_OF_BLOCK, x.dtype.type(0), largest_code / largest)
    real = np.rint(blocks * inverse) * (largest * x.dtype.type(1 / largest_code))
    return real.reshape(*x.shape[:-1], -1)[..., :size]


def _scales(*shape: int) -> np.ndarray:
    return floats(*shape, low=0.05, high=0.4, seed=5)


def _quantize_samples() -> Iterator[Sample]:
    number, zero = np.array(0.1, np.float32), np.array(3, np.int8)
    yield Sample((floats(3, 5), number, zero), {"dtype": "int8"}, "one scale")
    yield Sample((floats(2, 3, 5), _scales(3), integers(3, dtype="int32")), {"axis": 1, "dtype": "int8"}, "per channel")
    yield Sample((floats(4, 7), number, np.array(100, np.uint8)), {"dtype": "uint8"}, "cut to the range")
    yield Sample((floats(5, dtype="float16"), number, zero), {"dtype": "int16"}, "float16")


def _dequantize_samples() -> Iterator[Sample]:
    number, zero = np.array(0.1, np.float32), np.array(3, np.int8)
    yield Sample((integers(3, 5, dtype="int8"), number, zero), label="one scale")
    yield Sample((integers(2, 3, 5, dtype="int8"), _scales(3), integers(3, dtype="int8")), {"axis": 1}, "per channel")
    stored = integers(4, 7, dtype="uint8", low=0, high=200)
    yield Sample((stored, number, np.array(100, np.uint8)), label="uint8")
    yield Sample((integers(5, dtype="int32"), number, zero), {"dtype": "float16"}, "float16 from int32")


def _fake_quantize_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 64),), label="whole blocks")
    yield Sample((floats(2, 2, 40, low=-9, high=2),), {"block": 16}, "the last block is shorter")
    yield Sample((np.zeros((2, 32), np.float32),), label="zeros")
    yield Sample((floats(4, 30, dtype="float16"),), {"block": 128}, "float16, one block")
    yield Sample((floats(3, 70),), {"bits": 16}, "16 bits")
    yield Sample((floats(2, 35, dtype="float64"),), {"bits": 16}, "float64")


def _lookup_samples() -> Iterator[Sample]:
    table = integers(ENTRIES, dtype="int8", low=-128, high=128)
    yield Sample((integers(3, 50, dtype="uint8", low=0, high=256), table), label="uint8")
    yield Sample((integers(2, 5, 17, dtype="int8", low=-128, high=128), table.view(np.uint8)), label="int8 to uint8")
    yield Sample((np.array(200, np.uint8), table), label="rank 0")


_AXIS = Attribute("int", None)

declare(
    "quantize",
    ("x", "scale", "zero_point"),
    _quantize_type,
    _quantize,
    attributes={"axis": _AXIS, "dtype": Attribute("dtype", "int8")},
    samples=_quantize_samples,
    flops=flops_per_output(3),
    summary="round(x / scale) + zero_point, cut to the range of the dtype; parameters of one number, or along an axis",
)
declare(
    "dequantize",
    ("x", "scale", "zero_point"),
    _dequantize_type,
    _dequantize,
    attributes={"axis": _AXIS, "dtype": Attribute("dtype", "float32")},
    samples=_dequantize_samples,
    flops=flops_per_output(2),
    summary="(x - zero_point) * scale as floats; parameters of one number, or along an axis",
)
declare(
    "fake_quantize",
    ("x",),
    _fake_quantize_type,
    _fake_quantize,
    attributes={"block": Attribute("int", 32), "bits": Attribute("int", 8)},
    samples=_fake_quantize_samples,
    flops=flops_per_output(4),
    widen=True,
    summary="each block of the last axis, rounded to multiples of its largest magnitude / 127, with 16 bits 32639",
)
declare(
    "lookup",
    ("x", "table"),
    _lookup_type,
    lambda x, table: table[x.view(np.uint8)],
    samples=_lookup_samples,
    flops=no_flops,
    summary="for each byte of x, the entry of a table of 256 bytes at its eight bits, read as unsigned",
)
