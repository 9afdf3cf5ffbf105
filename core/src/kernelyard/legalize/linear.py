"""Rule of matrix multiplication."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.legalize.common import broadcast_index
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Expr


@legalize("matmul", widen=True)
def matmul(b: RuleBuilder, left: Operand, right: Operand) -> Buffer:
    shape = b.result.shape
    rows, columns = int(left.rank > 1), int(right.rank > 1)
    batch = shape[: len(shape) - rows - columns]

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> Expr:
        (k,) = point
        outer, inner = at[: len(batch)], at[len(batch) :]
        row, column = inner[:rows], inner[rows:]
        a = left[(*broadcast_index(left.shape[:-2], batch, outer), *row, k)]
        return a * right[(*broadcast_index(right.shape[:-2], batch, outer), k, *column)]

    return b.reduce("sum", shape, (left.shape[-1],), body, name="matmul")
