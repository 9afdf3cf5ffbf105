"""Rules of operators that read or write at computed positions.

Negative indices count from the end. An index that is out of range is limited to the range, so that no kernel touches
memory that is not its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard import dtypes
from kernelyard.dims import Dim
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import (
    INDEX,
    Axis,
    Expr,
    binary,
    cast,
    const,
    index,
    maximum,
    minimum,
    select,
)

ACCUMULATE = {"add": "add", "mul": "mul", "max": "max", "min": "min"}


def safe_index(found: Expr, size: Dim) -> Expr:
    """Return an index read from a tensor, wrapped if negative and limited to an axis of `size`."""
    wide = cast(found, INDEX)
    wrapped = wide if found.dtype in dtypes.UNSIGNED else select(wide < 0, wide + size, wide)
    return minimum(maximum(wrapped, 0), index(size) - 1)


@legalize("take")
def take(b: RuleBuilder, data: Operand, indices: Operand, *, axis: int) -> Buffer:
    axis %= data.rank

    def body(*at: Axis) -> Expr:
        chosen = safe_index(indices[at[axis : axis + indices.rank]], data.shape[axis])
        return data[(*at[:axis], chosen, *at[axis + indices.rank :])]

    return b.compute(b.result.shape, body)


@legalize("gather_elements")
def gather_elements(b: RuleBuilder, data: Operand, indices: Operand, *, axis: int) -> Buffer:
    axis %= data.rank
    return b.compute(
        indices.shape,
        lambda *at: data[(*at[:axis], safe_index(indices[at], data.shape[axis]), *at[axis + 1 :])],
    )


@legalize("gather_nd")
def gather_nd(b: RuleBuilder, data: Operand, indices: Operand, *, batch_dims: int) -> Buffer:
    split = indices.rank - 1

    def body(*at: Axis) -> Expr:
        vector = _index_vector(indices, at[:split], data.shape[batch_dims:])
        return data[(*at[:batch_dims], *vector, *at[split:])]

    return b.compute(b.result.shape, body)


def _index_vector(indices: Operand, at: Sequence[Expr], sizes: Sequence[Dim]) -> list[Expr]:
    depth = indices.shape[-1]
    assert isinstance(depth, int)
    return [safe_index(indices[(*at, n)], sizes[n]) for n in range(depth)]


# --- scatter --------------------------------------------------------------------------------------------------------
@legalize("scatter_elements", widen=True)
def scatter_elements(
    b: RuleBuilder, data: Operand, indices: Operand, updates: Operand, *, axis: int, reduction: str
) -> Buffer:
    axis %= data.rank
    result = b.compute(data.shape, lambda *at: data[at])

    def place(*at: Axis) -> tuple[Expr, ...]:
        return (*at[:axis], safe_index(indices[at], data.shape[axis]), *at[axis + 1 :])

    # Different values of the other axes write different elements.
    b.store(result, indices.shape, place, _accumulate(result, place, updates, reduction), ordered=(axis,))
    return result


@legalize("scatter_nd", widen=True)
def scatter_nd(b: RuleBuilder, data: Operand, indices: Operand, updates: Operand, *, reduction: str) -> Buffer:
    outer = indices.rank - 1
    result = b.compute(data.shape, lambda *at: data[at])

    def place(*at: Axis) -> tuple[Expr, ...]:
        return (*_index_vector(indices, at[:outer], data.shape), *at[outer:])

    body = _accumulate(result, place, updates, reduction)
    b.store(result, updates.shape, place, body, ordered=range(outer))
    return result


def _accumulate(
    result: Buffer, place: Callable[..., tuple[Expr, ...]], updates: Operand, reduction: str
) -> Callable[..., Expr]:
    def body(*at: Axis) -> Expr:
        if reduction == "none":
            return updates[at]
        return binary(ACCUMULATE[reduction], result[place(*at)], updates[at])

    return body


@legalize("invert_permutation")
def invert_permutation(b: RuleBuilder, p: Operand) -> Buffer:
    (size,) = p.shape
    result = b.buffer(p.shape, INDEX)
    # Each element is written once: no order is needed.
    b.store(result, p.shape, lambda at: (safe_index(p[at], size),), lambda at: at)
    return result


# --- cumulative sums, order -------------------------------------------------------------------------------------------
@legalize("cumsum", widen=True)
def cumsum(b: RuleBuilder, x: Operand, *, axis: int, exclusive: bool, reverse: bool) -> Buffer:
    return _cumulative(b, x, lambda total, item: total + item, 0, axis % x.rank, exclusive, reverse)


@legalize("cumprod", widen=True)
def cumprod(b: RuleBuilder, x: Operand, *, axis: int, exclusive: bool, reverse: bool) -> Buffer:
    return _cumulative(b, x, lambda total, item: total * item, 1, axis % x.rank, exclusive, reverse)


def _cumulative(
    b: RuleBuilder,
    x: Operand,
    add: Callable[[Expr, Expr], Expr],
    start: int,
    axis: int,
    exclusive: bool,
    reverse: bool,
) -> Buffer:
    last = index(x.shape[axis]) - 1

    def place(k: Expr) -> Expr:
        return last - k if reverse else k

    def at_step(at: Sequence[Axis], k: Expr) -> tuple[Expr, ...]:
        return (*at[:axis], place(k), *at[axis + 1 :])

    def body(total: Buffer, at: Sequence[Axis]) -> Expr:
        k = at[axis]
        before, here = at_step(at, k - 1), at_step(at, k)
        first = const(start, x.dtype) if exclusive else x[here]
        return select(k < 1, first, add(total[before], x[before] if exclusive else x[here]))

    return b.scan(x.shape, axis, body, x.dtype, place)


@legalize("topk")
def topk(b: RuleBuilder, x: Operand, *, k: int, axis: int, largest: bool, sorted: bool) -> tuple[Buffer, Buffer]:  # noqa: A002
    axis %= x.rank
    shape = b.results[0].shape

    def along(at: Sequence[Expr], place: Expr) -> tuple[Expr, ...]:
        return (*at[:axis], place, *at[axis + 1 :])

    indices = b.reduce(
        "argsort_descending" if largest else "argsort",
        shape,
        (x.shape[axis],),
        lambda at, point: x[along(at, point[0])],
        arg=lambda at, _: at[axis],
        name="indices",
    )
    values = b.compute(shape, lambda *at: x[along(at, indices[at])], "values")
    return values, indices
