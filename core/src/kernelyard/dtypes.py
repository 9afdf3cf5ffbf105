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
