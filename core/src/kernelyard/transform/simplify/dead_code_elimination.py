"""Remove what nobody reads: bindings, and composites, regions and loop-level functions that nobody calls."""

from __future__ import annotations

from kernelyard.ir import Binding, Function, IRModule, Var, operands
from kernelyard.ir.purity import Purity
from kernelyard.ir.visitor import reachable_functions, result_vars
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


class DeadCodeElimination(Pass):
    """Keep the values that results and effects need, and the functions that entry functions reach."""

    name = "dead_code_elimination"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        purity = Purity(module)
        entries = module.entry_functions()
        swept = {name: _sweep(function, purity) for name, function in entries.items()}
        changed = {name: function for name, function in swept.items() if function is not entries[name]}
        module = module.with_functions(changed) if changed else module
        unused = set(module) - reachable_functions(module, tuple(module.public_functions()))
        return module.without_functions(unused) if unused else module


def _sweep(function: Function, purity: Purity) -> Function:
    live: set[Var] = set(result_vars(function))
    kept: list[Binding] = []
    for binding in reversed(function.bindings):
        if binding.var in live or not purity.is_pure(binding.value):
            kept.append(binding)
            live.update(operand for operand in operands(binding.value) if isinstance(operand, Var))
    if len(kept) == len(function.bindings):
        return function
    return Function(function.params, kept[::-1], function.result, function.attrs)
