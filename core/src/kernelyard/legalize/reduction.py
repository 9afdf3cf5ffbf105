"""Rules of reductions over axes, and of the index of an extremum."""

from __future__ import annotations

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.legalize.common import drop_reduced_axes, merge_axes, split_shape
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, DimValue, Expr, binary, cast, index

REDUCERS = ("sum", "prod", "max", "min", "any", "all")


def reduce_axes(
    b: RuleBuilder, reducer: str, x: Operand | Buffer, axes: tuple[int, ...], keepdims: bool = False, name: str = "t"
) -> Buffer:
    """Reduce `x` over `axes`, which are dropped, or kept with size 1."""
    outer, inner = split_shape(x.shape, axes)
    shape = tuple(1 if n in axes else dim for n, dim in enumerate(x.shape)) if keepdims else outer

    def body(at: tuple[Axis, ...], point: tuple[Axis, ...]) -> Expr:
        return x[merge_axes(x.rank, axes, drop_reduced_axes(axes, at) if keepdims else at, point)]

    return b.reduce(reducer, shape, inner, body, name=name)


def divide_by_count(total: Expr, count: Dim) -> Expr:
    """Return `total / count`, in the dtype of the total; integers are truncated."""
    if dtypes.is_float(total.dtype):
        return total / (cast(DimValue(count), total.dtype) if isinstance(count, dims.SymbolicDim) else count)
    return binary("truncdiv", total, cast(index(count), total.dtype))


def _register(name: str) -> None:
    @legalize(name, widen=True)
    def rule(b: RuleBuilder, x: Operand, *, axes: tuple[int, ...], keepdims: bool) -> Buffer:
        return reduce_axes(b, name, x, axes or tuple(range(x.rank)), keepdims)


for _name in REDUCERS:
    _register(_name)


@legalize("mean", widen=True)
def mean(b: RuleBuilder, x: Operand, *, axes: tuple[int, ...], keepdims: bool) -> Buffer:
    axes = axes or tuple(range(x.rank))
    count = dims.product(x.shape[n] for n in axes)
    wide = x if dtypes.is_float(x.dtype) or x.dtype == "uint64" else Operand(x.buffer, "int64")
    total = reduce_axes(b, "sum", wide, axes, keepdims, "total")
    return b.compute(total.shape, lambda *at: cast(divide_by_count(total[at], count), x.dtype))


def _register_arg(reducer: str) -> None:
    @legalize(reducer)
    def rule(b: RuleBuilder, x: Operand, *, axis: int, keepdims: bool, select_last_index: bool) -> Buffer:
        axis %= x.rank
        extent = x.shape[axis]

        def place(k: Axis) -> Expr:
            return index(extent) - 1 - k if select_last_index else k

        def body(at: tuple[Axis, ...], point: tuple[Axis, ...]) -> Expr:
            behind = at[axis + 1 :] if keepdims else at[axis:]
            return x[(*at[:axis], place(point[0]), *behind)]

        return b.reduce(reducer, b.result.shape, (extent,), body, arg=lambda at, point: place(point[0]))


for _name in ("argmax", "argmin"):
    _register_arg(_name)
