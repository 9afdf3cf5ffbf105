"""Extrema of a whole tensor in two steps, of which the first has rows that threads share."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelyard.dtypes import itemsize
from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.ir.types import TensorType
from kernelyard.tir.common_loops import LEAST_ROWS
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

# Sums depend on their order, and so stay.
EXTREMA = ("max", "min")
LEAST_BYTES = 1 << 15  # below, a second kernel takes longer than the first saves
LEAST_ROW = 64  # elements, which fill vectors


class FactorReductions(FunctionPass):
    """`max(x)` becomes `max(max(x, last axes))`, and likewise min: a reduction of rows, and one of its results.

    A reduction to one number has no points that threads could share. Rows have, and the least and the largest of the
    same rows, as dynamic quantization needs, become one kernel that reads them once (`FuseSiblings`). Runs when the
    order of dims in memory is settled.
    """

    name = "factor_reductions"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Factorizer().mutate(function)


class _Factorizer(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in EXTREMA:
            return value
        source = value.args[0].tensor_type
        axes = set(value.attrs["axes"]) or set(range(source.rank))
        first = _axis_of_rows(source) if len(axes) == source.rank else None
        if first is None:
            return value
        rows = _reduce(value, value.args[0], range(first, source.rank))
        result = _reduce(value, self.emit(rows, var.name, var.origin), range(first))
        if not value.attrs["keepdims"]:
            return result
        return Call(get_op("reshape"), [self.emit(result, var.name, var.origin)], {"shape": (1,) * source.rank})


def _reduce(call: Call, operand: Expr, axes: Sequence[int]) -> Call:
    return Call(call.op, [operand], {"axes": tuple(axes), "keepdims": False})


def _axis_of_rows(source: TensorType) -> int | None:
    """Return the first of the axes that make the longest rows of which there are enough; None without such."""
    shape = [dim for dim in source.shape if isinstance(dim, int)]
    if len(shape) < source.rank or prod(shape) * itemsize(source.dtype) < LEAST_BYTES:
        return None
    fitting = (n for n in range(1, source.rank) if prod(shape[:n]) >= LEAST_ROWS and prod(shape[n:]) >= LEAST_ROW)
    return next(fitting, None)
