"""Operators that decide the sizes of their results: these are symbols of the stated type.

A size that may be zero is stated as a symbol minus one, since symbols are at least one.
"""

from __future__ import annotations

import numpy as np

from kernelyard.errors import ExecutionError
from kernelyard.ir.op import Attribute, Op, register_op
from kernelyard.ops.core_calls import require_stated_type


def _tensor_to_shape(x: np.ndarray) -> np.ndarray:
    sizes = x.tolist()
    if min(sizes, default=0) < 0:
        raise ExecutionError("a data-dependent size is negative", found=sizes)
    # One byte seen from everywhere. `broadcast_to` gives the same, in several times the time: each call waits for it.
    return np.ndarray(sizes, np.bool_, b"\0", 0, (0,) * len(sizes))


TENSOR_TO_SHAPE = register_op(
    Op(
        "tensor_to_shape",
        ("x",),
        require_stated_type,
        reference=_tensor_to_shape,
        opaque_type=True,
        introduces_symbols=True,
        summary="a tensor whose sizes are the elements of an int64 vector; it has no memory, and nobody reads it",
    )
)


def _nonzero(x: np.ndarray) -> np.ndarray:
    return np.stack(np.nonzero(np.atleast_1d(x))).astype(np.int64)


NONZERO = register_op(
    Op(
        "nonzero",
        ("x",),
        require_stated_type,
        reference=_nonzero,
        opaque_type=True,
        introduces_symbols=True,
        summary="the indices of the elements that are not zero: int64 of shape (rank, count), in row-major order",
    )
)


def _unique(
    x: np.ndarray,
    *,
    axis: int | None,
    sorted: bool,  # noqa: A002
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    values, indices, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:  # in the order of their first occurrence
        order = np.argsort(indices, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values = np.take(values, order, 0 if axis is None else axis)
        indices, counts, inverse = indices[order], counts[order], rank[inverse]
    return values, indices.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


UNIQUE = register_op(
    Op(
        "unique",
        ("x",),
        require_stated_type,
        reference=_unique,
        attributes={"axis": Attribute("int", None), "sorted": Attribute("bool", True)},
        opaque_type=True,
        introduces_symbols=True,
        summary="the unique elements (or slices along an axis), their first indices, inverse indices and counts",
    )
)
