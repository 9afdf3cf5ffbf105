"""Operators that decide the sizes of their results: these are symbols of the stated type.

A size that may be zero is stated as a symbol minus one, since symbols are at least one.
"""

from __future__ import annotations

import numpy as np

from kernelyard.ir.op import Op, register_op
from kernelyard.ops.core_calls import stated


def _nonzero(x: np.ndarray) -> np.ndarray:
    return np.stack(np.nonzero(np.atleast_1d(x))).astype(np.int64)


NONZERO = register_op(
    Op(
        "nonzero",
        ("x",),
        stated,
        reference=_nonzero,
        opaque_type=True,
        introduces_symbols=True,
        summary="the indices of the elements that are not zero: int64 of shape (rank, how many), in row-major order",
    )
)
