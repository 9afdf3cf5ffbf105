"""Element types in CUDA source: what memory holds, what is computed with, and literals."""

from __future__ import annotations

import math

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import Scalar

# Narrow floats are structures of the prelude, and computed as float.
_STORED = {
    "float16": "Half",
    "bfloat16": "BFloat",
    "float8_e4m3fn": "E4M3",
    "float8_e5m2": "E5M2",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "bool": "bool",
}


def stored_type(dtype: str) -> str:
    """Return the type of elements in memory."""
    return _STORED[dtype]


def computed_type(dtype: str) -> str:
    """Return the type of values in registers and in shared memory.

    Example:
        >>> computed_type("float16"), computed_type("int8")
        ('float', 'signed char')
    """
    return "float" if is_narrow_float(dtype) else _STORED[dtype]


def is_narrow_float(dtype: str) -> bool:
    """Return True for floats of less than 32 bits."""
    return dtypes.is_float(dtype) and dtype not in ("float32", "float64")


def literal(value: Scalar, dtype: str) -> str:
    """Return a number as text of its computed type.

    Example:
        >>> literal(0.5, "float32"), literal(float("inf"), "float64"), literal(-1, "int64")
        ('0.5f', '__longlong_as_double(0x7ff0000000000000ll)', '(-1ll)')
    """
    if dtype == "bool":
        return "true" if value else "false"
    if dtypes.is_float(dtype):
        return _float(float(value), dtype == "float64")
    return _integer(int(value), dtype)


def _float(value: float, is_double: bool) -> str:
    if not math.isfinite(value):
        text = "__longlong_as_double(0x7ff{}000000000000ll)" if is_double else "__int_as_float(0x7f{}00000)"
        text = text.format(("8" if is_double else "c") if math.isnan(value) else ("0" if is_double else "8"))
        return f"(-{text})" if value < 0 else text
    text = f"{value!r}" if is_double else f"{value!r}f"
    return f"({text})" if text.startswith("-") else text


def _integer(value: int, dtype: str) -> str:
    if dtype == "int64":
        if value == -(1 << 63):
            return "(-9223372036854775807ll - 1)"
        return f"({value}ll)" if value < 0 else f"{value}ll"
    if dtype == "uint64":
        return f"{value}ull"
    if dtype in ("int32", "uint32"):
        return (
            "(-2147483647 - 1)"
            if value == -(1 << 31)
            else f"({value})"
            if value < 0
            else f"{value}{'u' * (dtype[0] == 'u')}"
        )
    return f"(({_STORED[dtype]}){value})"
