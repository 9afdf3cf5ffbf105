"""Element types: one home for their names and their NumPy meaning.

A dtype is its name, a plain string: "float32", "bfloat16", "int64", ... Names follow NumPy and ml_dtypes.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kernelyard.errors import KernelyardError

if TYPE_CHECKING:
    import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *SIGNED, *UNSIGNED, "bool")
QUANTIZED = ("int8", "uint8", "int16", "uint16", "int32")  # what quantized tensors are stored in

_FROM_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


class UnknownDtypeError(KernelyardError):
    """The element type is not one that Kernelyard knows."""

    code = "KY120"


@cache
def to_numpy(name: str) -> np.dtype:
    """Return the NumPy dtype of a name.

    Raises: UnknownDtypeError.

    Example:
        >>> to_numpy("float32").itemsize
        4
    """
    import numpy as np

    if name not in DTYPES:
        raise UnknownDtypeError(f"unknown dtype {name!r}", expected=", ".join(DTYPES))
    if name in _FROM_ML_DTYPES:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


@cache  # NumPy puts the name together each time
def from_numpy(dtype: object) -> str:
    """Return the name of a NumPy (or ml_dtypes) dtype.

    Raises: UnknownDtypeError.

    Example:
        >>> import numpy as np
        >>> from_numpy(np.int64)
        'int64'
    """
    import numpy as np

    name = np.dtype(dtype).name  # pyright: ignore[reportArgumentType, reportCallIssue]
    if name not in DTYPES:
        raise UnknownDtypeError(f"unknown dtype {name!r}", expected=", ".join(DTYPES))
    return name


def itemsize(name: str) -> int:
    """Return the size of one element in bytes."""
    return to_numpy(name).itemsize


def is_float(name: str) -> bool:
    """Return True for floating-point names, 8-bit ones included."""
    return name in FLOATS


def is_integer(name: str) -> bool:
    """Return True for signed and unsigned integers; bool is not one."""
    return name in SIGNED or name in UNSIGNED


def integer_range(dtype: str) -> tuple[int, int]:
    """Return the least and the largest number of an integer dtype.

    Example:
        >>> integer_range("int8")
        (-128, 127)
    """
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    return (0, (1 << bits) - 1) if dtype in UNSIGNED else (-(1 << bits - 1), (1 << bits - 1) - 1)


def convert(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array in another dtype, floats to integers as generated kernels convert them: towards zero.

    What does not fit saturates at 32 bits, or at 64 for int64, uint64 and uint32, then wraps; NaN gives 0.

    Example:
        >>> import numpy as np
        >>> convert(np.array([2.7, -2.7, 300.0, np.inf, np.nan], np.float32), "int32").tolist()
        [2, -2, 300, 2147483647, 0]
    """
    import numpy as np

    if not is_integer(name) or not is_float(from_numpy(array.dtype)):
        return array.astype(to_numpy(name))
    through = {"uint64": "uint64", "int64": "int64", "uint32": "int64"}.get(name, "int32")
    low, high = integer_range(through)
    whole = np.trunc(np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    is_low, is_high = whole < low, whole >= float(high)  # 2^63 - 1 is no float64: what is not below it is 2^63 or more
    held = np.where(is_low | is_high, 0.0, whole).astype(to_numpy(through))
    held = np.where(is_low, np.array(low, held.dtype), np.where(is_high, np.array(high, held.dtype), held))
    return held.astype(to_numpy(name))
