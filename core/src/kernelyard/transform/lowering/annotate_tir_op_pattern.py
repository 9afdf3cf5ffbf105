"""AnnotateTIROpPattern: every PrimFunc says how it relates outputs to inputs, for fusion."""

from __future__ import annotations

from kernelyard.ir import IRModule
from kernelyard.tir.op_pattern import classify
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


class AnnotateTIROpPattern(Pass):
    """Set the attribute "op_pattern" (see `kernelyard.tir.op_pattern`) of PrimFuncs that have none."""

    name = "annotate_tir_op_pattern"
    is_required = True

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return module.with_functions(
            {
                name: function.with_attrs(op_pattern=classify(function))
                for name, function in module.functions.items()
                if isinstance(function, PrimFunc) and "op_pattern" not in function.attrs
            }
        )
