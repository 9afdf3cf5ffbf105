"""Python's numbers rounded to a dtype: what a value is once it has been stored."""

from __future__ import annotations

import math
import struct
from typing import TypeAlias

from kernelyard import dtypes

Number: TypeAlias = "bool | int | float"

# Of narrow floats: digits after the leading 1, least normal exponent, largest number, whether there is infinity.
_NARROW: dict[str, tuple[int, int, float, bool]] = {
    "float16": (10, -14, 65504.0, True),
    "bfloat16": (7, -126, 3.3895313892515355e38, True),
    "float8_e4m3fn": (3, -6, 448.0, False),
    "float8_e5m2": (2, -14, 57344.0, True),
}


def fitted(value: Number, dtype: str) -> Number:
    """Return a number as an element of a dtype: floats to the nearest, halves to even; integers wrap, floats to
    integers truncate toward zero, and to bool by being nonzero.

    Example:
        >>> fitted(0.1, "float32"), fitted(300, "uint8"), fitted(-1.7, "int32"), fitted(1e5, "float16")
        (0.10000000149011612, 44, -1, inf)
    """
    if dtype == "bool":
        return bool(value)
    if dtypes.is_float(dtype):
        return _rounded(float(value), dtype)
    low, high = integer_range(dtype)
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    return (int(value) - low) % (high - low + 1) + low


def integer_range(dtype: str) -> tuple[int, int]:
    """Return the least and the largest integer of a dtype.

    Example:
        >>> integer_range("int8")
        (-128, 127)
    """
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    return (0, (1 << bits) - 1) if dtype in dtypes.UNSIGNED else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _rounded(value: float, dtype: str) -> float:
    if dtype == "float64" or not math.isfinite(value):
        return math.nan if math.isinf(value) and dtype == "float8_e4m3fn" else value
    if dtype == "float32":
        try:
            return struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    digits, least, largest, has_infinity = _NARROW[dtype]
    exponent = max(math.frexp(value)[1] - 1, least)
    step = math.ldexp(1.0, exponent - digits)
    nearest = math.copysign(round(value / step) * step, value)  # `round` takes halves to even
    if abs(nearest) > largest:
        return math.copysign(math.inf, value) if has_infinity else math.nan
    return nearest
