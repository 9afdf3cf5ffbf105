"""Rules of operators that make tensors from attributes: one-hot codes, sizes, ranges."""

from __future__ import annotations

from kernelyard.dims import Dim
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, Axis, Expr, cast, const, equal, index, select


@legalize("one_hot")
def one_hot(
    b: RuleBuilder, indices: Operand, *, depth: int, axis: int, on_value: float, off_value: float, dtype: str
) -> Buffer:
    axis %= indices.rank + 1

    def body(*at: Axis) -> Expr:
        found = cast(indices[(*at[:axis], *at[axis + 1 :])], INDEX)
        hit = equal(select(found < 0, found + depth, found), at[axis])
        return select(hit, const(on_value, dtype), const(off_value, dtype))

    return b.compute(b.result.shape, body)


@legalize("shape_tensor")
def shape_tensor(b: RuleBuilder, *, dims: tuple[Dim, ...]) -> Buffer:
    if not dims:
        return b.compute((0,), lambda i: i)
    result = b.buffer((len(dims),), INDEX)
    for n, dim in enumerate(dims):
        b.store(result, (), lambda n=n: (n,), lambda dim=dim: index(dim))
    return result


@legalize("arange")
def arange(b: RuleBuilder, *, start: Dim, step: int, count: Dim, dtype: str) -> Buffer:
    return b.compute((count,), lambda i: cast(i * step + start, dtype))
