"""Operators that look along axes: sums and the like, cumulative sums, orders."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.dims import Dim
from kernelyard.nn.scope import current
from kernelyard.nn.tensor import Tensor, emit, emit_call
from kernelyard.plugins.api import TupleType, Var

__all__ = [
    *("all", "any", "argmax", "argmin", "argsort", "cumprod", "cumsum"),
    *("max", "mean", "min", "prod", "sort", "sum", "topk"),
]

Axes = int | Sequence[int] | None


def _reduce(name: str, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    given = () if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    return emit(name, x, axes=tuple(sorted(each % x.ndim for each in given)), keepdims=keepdims)


def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001  the operators have the field's names
    """Return the sum over some axes, None for all."""
    return _reduce("sum", x, axis, keepdims)


def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the mean over some axes, None for all."""
    return _reduce("mean", x, axis, keepdims)


def max(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Return the largest element over some axes, None for all."""
    return _reduce("max", x, axis, keepdims)


def min(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Return the smallest element over some axes, None for all."""
    return _reduce("min", x, axis, keepdims)


def prod(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the product over some axes, None for all."""
    return _reduce("prod", x, axis, keepdims)


def all(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Reduce with logical and over some axes, None for all."""
    return _reduce("all", x, axis, keepdims)


def any(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Reduce with logical or over some axes, None for all."""
    return _reduce("any", x, axis, keepdims)


def argmax(x: Tensor, axis: int = -1, keepdims: bool = False) -> Tensor:
    """Return the index of the first maximum along an axis, int64."""
    return emit("argmax", x, axis=axis % x.ndim, keepdims=keepdims)


def argmin(x: Tensor, axis: int = -1, keepdims: bool = False) -> Tensor:
    """Return the index of the first minimum along an axis, int64."""
    return emit("argmin", x, axis=axis % x.ndim, keepdims=keepdims)


def cumsum(x: Tensor, axis: int = -1, exclusive: bool = False) -> Tensor:
    """Compute cumulative sums along an axis; `exclusive` leaves the element itself out."""
    return emit("cumsum", x, axis=axis % x.ndim, exclusive=exclusive)


def cumprod(x: Tensor, axis: int = -1, exclusive: bool = False) -> Tensor:
    """Compute cumulative products along an axis; `exclusive` leaves the element itself out."""
    return emit("cumprod", x, axis=axis % x.ndim, exclusive=exclusive)


def topk(x: Tensor, k: Dim, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k largest (or smallest) elements along an axis in order, and where they are (int64)."""
    values, indices = fields(emit_call("topk", x, k=k, axis=axis % x.ndim, largest=largest))
    return values, indices


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """Return the elements in order along an axis."""
    return topk(x, x.shape[axis], axis, descending)[0]


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """Return the indices that sort along an axis (int64)."""
    return topk(x, x.shape[axis], axis, descending)[1]


def fields(value: Var) -> tuple[Tensor, ...]:
    """Return the tensors of a tuple."""
    assert isinstance(value.type, TupleType)
    builder = current().builder
    return tuple(Tensor(builder.get(value, index)) for index in range(len(value.type.fields)))
