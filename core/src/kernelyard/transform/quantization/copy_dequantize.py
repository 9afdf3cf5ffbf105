"""CopyDequantize: each reader of a dequantized tensor of 8 bits gets a dequantize of its own.

A backend computes on what is stored where the dequantize is part of its group, which nobody outside may read. It costs
nothing elsewhere: kernels dequantize in registers, and read a byte in the place of four.

Nobody computes on 16 bits. There, the dequantize belongs to the group that makes the numbers, which are rounded in
registers and never stored.
"""

from __future__ import annotations

from kernelyard.dtypes import itemsize
from kernelyard.ir import Binding, Call, Function, IRModule, Var, operands, with_operands
from kernelyard.ir.visitor import result_vars
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

DEQUANTIZE = "dequantize"


class CopyDequantize(FunctionPass):
    """Give each reader of a dequantized tensor of 8 bits a dequantize of its own."""

    name = "copy_dequantize"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        made = {binding.var: binding.value for binding in function.bindings if _is_dequantize(binding)}
        taken: set[Var] = set(result_vars(function))
        bindings: list[Binding] = []
        for binding in function.bindings:
            own: dict[Var, Var] = {}
            for operand in operands(binding.value):
                if not isinstance(operand, Var) or operand not in made or operand in own:
                    continue
                own[operand] = operand
                if operand in taken:
                    own[operand] = Var(operand.name, operand.type, operand.origin)
                    bindings.append(Binding(own[operand], made[operand]))
                taken.add(operand)
            if any(var is not copy for var, copy in own.items()):
                read = [own.get(o, o) if isinstance(o, Var) else o for o in operands(binding.value)]
                binding = Binding(binding.var, with_operands(binding.value, read))
            bindings.append(binding)
        if len(bindings) == len(function.bindings):
            return function
        return Function(function.params, bindings, function.result, function.attrs)


def _is_dequantize(binding: Binding) -> bool:
    value = binding.value
    return isinstance(value, Call) and value.op_name == DEQUANTIZE and itemsize(value.args[0].tensor_type.dtype) == 1
