"""Bits read as another dtype, and numbers rounded to formats that the vocabulary has no dtype for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from kernelyard.dtypes import itemsize, to_numpy
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare, flops_per_output, no_flops
from kernelyard.ops.samples import floats, integers
from kernelyard.ops.type_rules import require, require_dtype

FORMATS = {
    "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
}


# --- reinterpret ------------------------------------------------------------------------------------------------------
def _reinterpret_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, dtype = types[0], attrs["dtype"]
    require(
        itemsize(x.dtype) == itemsize(dtype),
        "the elements have another size",
        found=f"{x.dtype} and {dtype}",
        expected=f"a dtype of {itemsize(x.dtype)} bytes",
    )
    return TensorType(x.shape, dtype)


def _reinterpret(x: np.ndarray, *, dtype: str) -> np.ndarray:
    return np.ascontiguousarray(x).view(to_numpy(dtype)).reshape(x.shape)


def _reinterpret_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 5),), {"dtype": "int32"}, "float32 as int32")
    yield Sample((integers(4, low=0, high=1000),), {"dtype": "float64"}, "int64 as float64")


declare(
    "reinterpret",
    ("x",),
    _reinterpret_type,
    _reinterpret,
    attributes={"dtype": Attribute("dtype")},
    samples=_reinterpret_samples,
    flops=no_flops,
    summary="bit cast: the same bits as elements of another dtype of the same size",
)


# --- round_to_format --------------------------------------------------------------------------------------------------
def _round_to_format_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require_dtype(types[0], ("float32",))
    return types[0]


def _round_to_format(x: np.ndarray, *, format: str, saturate: bool, rounding: str) -> np.ndarray:  # noqa: A002
    own = FORMATS[format]
    if format == "float8_e8m0fnu":
        return _to_power_of_two(x, saturate, rounding)
    limits = ml_dtypes.finfo(own)
    bounded = np.clip(x, float(limits.min), float(limits.max)) if saturate else x
    return bounded.astype(own).astype(x.dtype)


def _to_power_of_two(x: np.ndarray, saturate: bool, rounding: str) -> np.ndarray:
    """Round to powers of two from 2**-127 to 2**127; infinity and NaN become NaN."""
    mantissa, exponent = np.frexp(np.abs(x.astype(np.float64)))  # |x| = mantissa * 2**exponent, 0.5 <= mantissa < 1
    power = exponent - 1
    limit = {"up": 0.5, "nearest": np.nextafter(0.75, 0), "down": 1.0}[rounding]
    power = np.where(mantissa > limit, power + 1, power)
    power = np.where(x == 0, -127, np.maximum(power, -127))
    too_large = power > 127
    result = np.ldexp(1.0, np.minimum(power, 127))
    return np.where(~np.isfinite(x) | (too_large & (not saturate)), np.nan, result).astype(x.dtype)


def _round_to_format_samples() -> Iterator[Sample]:
    for format_ in FORMATS:
        yield Sample((floats(3, 5),), {"format": format_}, format_)
    yield Sample((floats(8) * 1000,), {"format": "float8_e4m3fnuz", "saturate": False}, "beyond the largest")
    for rounding in ("nearest", "down"):
        yield Sample((floats(8),), {"format": "float8_e8m0fnu", "rounding": rounding}, rounding)


declare(
    "round_to_format",
    ("x",),
    _round_to_format_type,
    _round_to_format,
    attributes={
        "format": Attribute("str", choices=tuple(FORMATS)),
        "saturate": Attribute("bool", True),
        "rounding": Attribute("str", "up", ("up", "nearest", "down")),
    },
    samples=_round_to_format_samples,
    flops=flops_per_output(1),
    summary="float32 numbers rounded to those of a narrower format; `rounding` is that of powers of two",
)
