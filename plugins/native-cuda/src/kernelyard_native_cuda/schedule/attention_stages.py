"""The stages of an attention, and what kernels of it share.

An attention is products of queries and keys, what is done to each (a scale, a bias, a mask), a softmax over the keys,
and the values weighted by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelyard.plugins.codegen_api import (
    Axis,
    Binary,
    ComputeBlock,
    Declined,
    Expr,
    IterVar,
    Load,
    Stage,
    Unary,
    element_at_zeros,
)
from kernelyard_native_cuda.codegen.kernel import Kernel
from kernelyard_native_cuda.schedule.causal_mask import Mask
from kernelyard_native_cuda.schedule.contraction import Contraction, Operand, contraction_of
from kernelyard_native_cuda.schedule.points import finish_point

MOST_DEPTH = 128  # elements of a query, and of a value
LEAST_ROWS = 16  # fewer queries are a matter of reading the keys
COUNT = 5  # stages of a function that are one kernel


@dataclass(frozen=True)
class Attention:
    """scores: of the products with what is done to them, an element of the tensor whose softmax is taken. power: an
    element of the softmax's numerator as the last stage reads it."""

    products: Contraction
    queries: Operand
    keys: Operand
    weighted: Contraction
    values: Operand
    score: Load
    power: Load
    largest: ComputeBlock
    total: ComputeBlock

    @property
    def column(self) -> IterVar:
        return self.keys.own[0]

    @property
    def dtype(self) -> str:
        return self.queries.narrow.dtype


def attention_of(stages: Sequence[Stage]) -> Attention | Declined:
    """Return the first five stages as an attention, or why they are none that one kernel computes."""
    if len(stages) < COUNT:
        return Declined(f"the group does not have the {COUNT} stages of an attention")
    first, largest, powers, total, last = stages[:COUNT]
    products, weighted = contraction_of(first), contraction_of(last)
    if products is None or weighted is None or not all(it.a.own and it.b.own for it in (products, weighted)):
        return Declined("the first and the last stage are not matmuls")
    score = element_at_zeros(first.blocks[-1])
    if not _is_softmax(score, largest, powers, total) or any(b.output not in first.inside for b in first.blocks[:-1]):
        return Declined("no softmax follows the first matmul")
    column = f"s{largest.first.loads[0].indices.index(Axis('r0'))}"
    keys, queries = (products.a, products.b) if products.a.own[0].name == column else (products.b, products.a)
    factors = _weight_and_values(weighted, powers)
    if factors is None:
        return Declined("the softmax is not an operand of the last matmul")
    power, values = factors
    if _is_used_elsewhere(stages):
        return Declined("an intermediate result has other users")
    found = Attention(products, queries, keys, weighted, values, score, power, largest.first, total.first)
    return _why_not(found) or found


def _weight_and_values(weighted: Contraction, powers: Stage) -> tuple[Load, Operand] | None:
    """Return the element of the softmax's numerator that is a factor of the last product, and the other factor."""
    for weight, values in ((weighted.a, weighted.b), (weighted.b, weighted.a)):
        if isinstance(weight.expr, Load) and weight.expr.buffer == powers.first.output:
            return weight.expr, values
    return None


def _is_used_elsewhere(stages: Sequence[Stage]) -> bool:
    """Return True when later stages, or callers, read what the stages of an attention hand on to one another."""
    between = {block.output for stage in stages[: COUNT - 1] for block in stage.blocks}
    read_later = {buffer for stage in stages[COUNT:] for block in stage.blocks for buffer in block.reads}
    return bool(between & read_later) or any(buffer.scope != "local" for buffer in between)


def _is_softmax(score: Load, largest: Stage, powers: Stage, total: Stage) -> bool:
    """Return True for the largest score of a row, the powers of what the others are less, and their sum."""
    if any(len(stage.blocks) != 1 or stage.first.init is not None for stage in (largest, powers, total)):
        return False
    if (largest.first.reducer, total.first.reducer, len(largest.reduce), len(total.reduce)) != ("max", "sum", 1, 1):
        return False
    found, summed = largest.first.body, total.first.body
    if not isinstance(found, Load) or not isinstance(summed, Load) or Axis("r0") not in found.indices:
        return False
    column = found.indices.index(Axis("r0"))
    rows = tuple(at for n, at in enumerate(score.indices) if n != column)
    across = (*rows[:column], Axis("r0"), *rows[column:])
    if (
        column != len(score.indices) - 1
        or found != Load(score.buffer, across)
        or element_at_zeros(largest.first).indices != rows
    ):
        return False
    power = Unary("exp", Binary("sub", score, Load(largest.first.output, rows)))
    return powers.first.body == power and summed == Load(powers.first.output, across)


def _why_not(it: Attention) -> Declined | None:
    if any(len(axes) != 1 for axes in (it.keys.own, it.values.own, it.products.reduce)):
        return Declined("keys or values have several axes")
    depths = (it.products.depth, it.values.extent)
    if not all(isinstance(depth, int) and depth <= MOST_DEPTH for depth in depths):
        return Declined(f"queries or values have more than {MOST_DEPTH} elements")
    if {it.queries.narrow.dtype, it.keys.narrow.dtype, it.values.narrow.dtype} not in ({"float16"}, {"bfloat16"}):
        return Declined("tensor cores do not support the dtypes")
    if isinstance(it.queries.extent, int) and it.queries.extent < LEAST_ROWS:
        return Declined(f"there are fewer than {LEAST_ROWS} queries")
    rows = it.power.indices[:-1]
    statistics = (it.largest.output, it.total.output)
    for block in it.weighted.stage.blocks[1:]:
        if any(load.buffer in statistics and load.indices != rows for load in block.loads):
            return Declined("a row's result depends on another row's scores")
    return Declined("the matmuls have initial accumulators") if it.products.stage.first.init else None


# --- what kernels share -----------------------------------------------------------------------------------------------
def batch_of_last(it: Attention, axes: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the last stage's axes, given those of the products'."""
    pairs = zip(it.power.indices, it.score.indices, strict=True)
    known = {
        last.name: axes[first.name]
        for last, first in pairs
        if isinstance(last, Axis) and isinstance(first, Axis) and first.name in axes
    }
    return {**{axis.name: "0" for axis in it.weighted.stage.spatial if axis.extent == 1}, **known}


def write_score(kernel: Kernel, it: Attention, batch: Mapping[str, str], mask: Mask | None) -> None:
    """Write the return of the score of a `product` in a `row` and a `column`, which the mask is known to show."""
    known: dict[Expr, str] = {mask.condition: "true"} if mask is not None else {}
    axes = {**batch, **kernel.axes_at("row", it.queries.own), it.column.name: "column"}
    here = kernel.expressions(axes, known)
    finish_point(
        kernel, here, it.products.stage, "product", lambda block, value: kernel.writer.line(f"return (float){value};")
    )
