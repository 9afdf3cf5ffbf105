"""Round Python numbers to a dtype, as storing them would."""

from __future__ import annotations

import math
import struct
from typing import TypeAlias

from kernelyard import dtypes

Number: TypeAlias = "bool | int | float"

# By narrow float: bits of the significand, least normal exponent, largest finite number, whether it has infinities.
_NARROW: dict[str, tuple[int, int, float, bool]] = {
    "float16": (10, -14, 65504.0, True),
    "bfloat16": (7, -126, 3.3895313892515355e38, True),
    "float8_e4m3fn": (3, -6, 448.0, False),
    "float8_e5m2": (2, -14, 57344.0, True),
}


def rounded_to(value: Number, dtype: str) -> Number:
    """Round a number to a dtype: floats to nearest even; integers wrap; floats become integers by truncation toward
    zero, and bool by comparison with zero.

    Example:
        >>> rounded_to(0.1, "float32"), rounded_to(300, "uint8"), rounded_to(-1.7, "int32"), rounded_to(1e5, "float16")
        (0.10000000149011612, 44, -1, inf)
    """
    if dtype == "bool":
        return bool(value)
    if dtypes.is_float(dtype):
        return _rounded(float(value), dtype)
    low, high = dtypes.integer_range(dtype)
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    return (int(value) - low) % (high - low + 1) + low


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
