"""Rules of normalisations and of softmax: statistics per row, then one pass over the elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard import dims
from kernelyard.dims import Dim, Shape
from kernelyard.legalize.common import drop_reduced_axes, merge_axes, split_shape
from kernelyard.legalize.reduction import divide_by_count, reduce_axes
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Expr, binary, const, index, select, unary

Ints = tuple[int, ...]
Element = Callable[[Sequence[Expr], Sequence[Expr]], Expr]


@legalize("nn.batch_norm", widen=True)
def batch_norm(
    b: RuleBuilder,
    x: Operand,
    gamma: Operand,
    beta: Operand,
    mean: Operand,
    variance: Operand,
    *,
    epsilon: float,
    axis: int,
) -> Buffer:
    axis %= x.rank
    scale = b.compute(gamma.shape, lambda c: gamma[c] / unary("sqrt", variance[c] + epsilon), "scale")

    def body(*at: Axis) -> Expr:
        c = at[axis]
        return (x[at] - mean[c]) * scale[c] + beta[c]

    return b.compute(x.shape, body)


def _statistics(
    b: RuleBuilder, rows: Shape, inner: Sequence[Dim], element: Element, epsilon: float
) -> tuple[Buffer, Buffer]:
    """Return the mean of each row and 1 / sqrt(variance + epsilon), in two passes over its elements."""
    count = dims.product(inner)
    total = b.reduce("sum", rows, inner, element, name="total")
    mean = b.compute(rows, lambda *at: divide_by_count(total[at], count), "mean")

    def square(at: Sequence[Expr], point: Sequence[Expr]) -> Expr:
        centred = element(at, point) - mean[tuple(at)]
        return centred * centred

    return mean, _reciprocal_root(b, rows, inner, square, epsilon)


def _reciprocal_root(b: RuleBuilder, rows: Shape, inner: Sequence[Dim], element: Element, epsilon: float) -> Buffer:
    """Compute 1 / sqrt(mean + epsilon) of each row."""
    count = dims.product(inner)
    total = b.reduce("sum", rows, inner, element, name="squares")
    return b.compute(rows, lambda *at: 1 / unary("sqrt", divide_by_count(total[at], count) + epsilon), "scale")


def _broadcast_over(x: Operand, axes: Ints) -> Element:
    return lambda at, point: x[merge_axes(x.rank, axes, at, point)]


@legalize("nn.layer_norm", widen=True)
def layer_norm(b: RuleBuilder, x: Operand, gamma: Operand, beta: Operand, *, axes: Ints, epsilon: float) -> Buffer:
    axes = tuple(axis % x.rank for axis in axes)
    rows, inner = split_shape(x.shape, axes)
    mean, scale = _statistics(b, rows, inner, _broadcast_over(x, axes), epsilon)

    def body(*at: Axis) -> Expr:
        row, parameter = drop_reduced_axes(axes, at), tuple(at[axis] for axis in axes)
        return (x[at] - mean[row]) * scale[row] * gamma[parameter] + beta[parameter]

    return b.compute(x.shape, body)


@legalize("nn.rms_norm", widen=True)
def rms_norm(b: RuleBuilder, x: Operand, gamma: Operand, *, axes: Ints, epsilon: float) -> Buffer:
    axes = tuple(axis % x.rank for axis in axes)
    rows, inner = split_shape(x.shape, axes)
    element = _broadcast_over(x, axes)
    scale = _reciprocal_root(b, rows, inner, lambda at, p: element(at, p) * element(at, p), epsilon)
    return b.compute(
        x.shape, lambda *at: x[at] * scale[drop_reduced_axes(axes, at)] * gamma[tuple(at[a] for a in axes)]
    )


@legalize("nn.instance_norm", widen=True)
def instance_norm(b: RuleBuilder, x: Operand, gamma: Operand, beta: Operand, *, epsilon: float) -> Buffer:
    element = _broadcast_over(x, tuple(range(2, x.rank)))
    mean, scale = _statistics(b, x.shape[:2], x.shape[2:], element, epsilon)

    def body(*at: Axis) -> Expr:
        row, channel = at[:2], at[1]
        return (x[at] - mean[row]) * scale[row] * gamma[channel] + beta[channel]

    return b.compute(x.shape, body)


@legalize("nn.group_norm", widen=True)
def group_norm(b: RuleBuilder, x: Operand, gamma: Operand, beta: Operand, *, num_groups: int, epsilon: float) -> Buffer:
    per_group = dims.floordiv(x.shape[1], num_groups)

    def element(at: Sequence[Expr], point: Sequence[Expr]) -> Expr:
        return x[(at[0], at[1] * per_group + point[0], *point[1:])]

    mean, scale = _statistics(b, (x.shape[0], num_groups), (per_group, *x.shape[2:]), element, epsilon)

    def body(*at: Axis) -> Expr:
        row, channel = (at[0], at[1] // index(per_group)), at[1]
        return (x[at] - mean[row]) * scale[row] * gamma[channel] + beta[channel]

    return b.compute(x.shape, body)


# --- softmax -----------------------------------------------------------------------------------------------------
@legalize("nn.softmax", widen=True)
def softmax(b: RuleBuilder, x: Operand, *, axis: int) -> Buffer:
    axes = (axis % x.rank,)
    largest = reduce_axes(b, "max", x, axes, name="largest")
    powers = b.compute(x.shape, lambda *at: unary("exp", x[at] - largest[drop_reduced_axes(axes, at)]), "powers")
    total = reduce_axes(b, "sum", powers, axes, name="total")
    return b.compute(x.shape, lambda *at: powers[at] / total[drop_reduced_axes(axes, at)])


@legalize("nn.log_softmax", widen=True)
def log_softmax(b: RuleBuilder, x: Operand, *, axis: int) -> Buffer:
    axes = (axis % x.rank,)
    largest = reduce_axes(b, "max", x, axes, name="largest")
    rows, inner = split_shape(x.shape, axes)
    element = _broadcast_over(x, axes)
    total = b.reduce("sum", rows, inner, lambda at, p: unary("exp", element(at, p) - largest[at]), name="total")
    log_total = b.compute(rows, lambda *at: unary("log", total[at]), "log_total")

    def body(*at: Axis) -> Expr:
        row = drop_reduced_axes(axes, at)
        return x[at] - largest[row] - log_total[row]

    return b.compute(x.shape, body)


# --- lrn ---------------------------------------------------------------------------------------------------------
@legalize("nn.lrn", widen=True)
def lrn(b: RuleBuilder, x: Operand, *, size: int, alpha: float, beta: float, bias: float) -> Buffer:
    before = (size - 1) // 2

    def square(at: Sequence[Axis], point: Sequence[Axis]) -> Expr:
        channel = at[1] + point[0] - before
        value = x[(at[0], channel, *at[2:])]
        return select((channel >= 0) & (channel < index(x.shape[1])), value * value, const(0, x.dtype))

    total = b.reduce("sum", x.shape, (size,), square, name="squares")
    return b.compute(x.shape, lambda *at: x[at] / binary("pow", total[at] * (alpha / size) + bias, beta))
