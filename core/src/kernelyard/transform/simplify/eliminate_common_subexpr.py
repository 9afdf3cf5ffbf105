"""Compute equal values once: the same operator or function, operands and attributes give the same result."""

from __future__ import annotations

from kernelyard.ir import Function, IRModule
from kernelyard.ir.purity import Purity
from kernelyard.patterns.matching.equal_values import merge_equal_values
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext


class EliminateCommonSubexpr(FunctionPass):
    """Replace a value by an equal one that was bound before; operands of commutative operators may be swapped."""

    name = "eliminate_common_subexpr"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return merge_equal_values(function, Purity(module))
