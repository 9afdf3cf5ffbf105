"""Contractions of two operands, each of which has spatial axes that the other lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    Affine,
    Binary,
    Cast,
    ComputeBlock,
    Const,
    Expr,
    IterVar,
    Load,
    Select,
    Stage,
    axes_of,
    extent_of,
    step_along,
    walk,
)

# A float that is stored in fewer bits is the same number in more.
_WIDER = {
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("int8", "int32"),
}


@dataclass(frozen=True)
class Operand:
    """One factor; rows of it are picked by its `own` axes.

    narrow: its values in the narrowest dtype that has them all.
    """

    expr: Expr
    own: tuple[IterVar, ...]

    @cached_property
    def narrow(self) -> Expr:
        return narrow_expr(self.expr)

    @property
    def extent(self) -> Dim:
        """The number of rows."""
        return extent_of(self.own)


@dataclass(frozen=True)
class Contraction:
    """`sum over reduce axes of a * b`; the batch axes pick from both, or from none.

    b has the axis along which the result's memory runs, where one of them has it: results of neighbouring rows of b are
    neighbours. reduce: in the order in which they are counted, neighbours in memory last.
    """

    a: Operand
    b: Operand
    batch: tuple[IterVar, ...]
    reduce: tuple[IterVar, ...]
    stage: Stage

    @property
    def depth(self) -> Dim:
        """The length of the contraction: the number of products per sum."""
        return extent_of(self.reduce)

    @property
    def batches(self) -> Dim:
        return extent_of(self.batch)


def contraction_of(stage: Stage) -> Contraction | None:
    """Return a stage as a contraction; None where it is none. An operand may have no rows of its own."""
    factors = _find_summed_factors(stage.first)
    if factors is None:
        return None
    of_a, of_b = map(axes_of, factors)
    spatial = [axis for axis in stage.spatial if axis.extent != 1]
    a = Operand(factors[0], tuple(axis for axis in spatial if axis.name in of_a - of_b))
    b = Operand(factors[1], tuple(axis for axis in spatial if axis.name in of_b - of_a))
    if not a.own and not b.own:
        return None
    batch = tuple(axis for axis in stage.spatial if axis not in (*a.own, *b.own))
    if not b.own or (a.own and a.own[-1] == spatial[-1]):
        a, b = b, a
    return Contraction(a, b, batch, _order_reduce_axes(stage.first), stage)


def _find_summed_factors(block: ComputeBlock) -> tuple[Expr, Expr] | None:
    """Return the factors of the products that a block sums; None where one has no tensor along what is summed."""
    body = block.body
    if block.reducer != "sum" or not (isinstance(body, Binary) and body.op == "mul"):
        return None
    if block.output.dtype == "bool" or block.output in block.reads:
        return None
    if not block.reduce_axes or not loads_of(body.a) or not loads_of(body.b):
        return None
    shared = axes_of(body.a) & axes_of(body.b)
    return (body.a, body.b) if names_of(axis for axis in block.reduce_axes if axis.extent != 1) <= shared else None


def _order_reduce_axes(block: ComputeBlock) -> tuple[IterVar, ...]:
    """Return the reduce axes, such that along the last both operands run along memory, or else one of them does."""
    axes = [axis for axis in block.reduce_axes if axis.extent != 1]

    def neighbours(axis: IterVar) -> int:
        return sum(step_along(load, axis.name) == 1 for load in block.loads)

    return tuple(sorted(axes, key=neighbours))  # a stable sort


def merge_axes(axes: Sequence[IterVar], offset: Affine) -> tuple[Dim, Dim] | None:
    """Return axes as one, the last one fastest: its extent, and its step in memory; None if they are not one."""
    step: Dim | None = None
    extent: Dim = 1
    for axis in reversed([axis for axis in axes if axis.extent != 1]):
        own = offset.coefficient(axis.name)
        if own is None or (step is not None and own != step * extent):
            return None
        step = own if step is None else step
        extent = extent * axis.extent
    return None if step is None else (extent, step)


def loads_of(expr: Expr) -> list[Load]:
    """Return the different loads of an expression."""
    return [e for e in walk(expr) if isinstance(e, Load)]


def narrow_expr(expr: Expr) -> Expr:
    """Return the same values in the narrowest dtype that is known to have them.

    Example:
        >>> from kernelyard.tir import Axis, Buffer, Cast
        >>> element = Buffer("x", (4,), "float16")[Axis("i")]
        >>> narrow_expr(Cast(element, "float32")) == element
        True
    """
    if isinstance(expr, Cast) and (expr.x.dtype, expr.dtype) in _WIDER:
        return narrow_expr(expr.x)
    if isinstance(expr, Select):
        a, b = narrow_expr(expr.a), narrow_expr(expr.b)
        for one, other in ((a, expr.b), (b, expr.a)):
            if isinstance(other, Const) and other.value == 0 and one.dtype != expr.dtype:
                zero = Const(0 if one.dtype == "int8" else 0.0, one.dtype)
                return Select(expr.condition, *((one, zero) if one is a else (zero, one)))
        if a.dtype == b.dtype:
            return Select(expr.condition, a, b)
    return expr


def names_of(axes: Iterable[IterVar]) -> frozenset[str]:
    """Return the names of axes."""
    return frozenset(axis.name for axis in axes)
