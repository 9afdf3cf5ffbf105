"""Infer all types again from those of the parameters, after a pass that changed some without propagating them."""

from __future__ import annotations

from collections.abc import Iterator

from kernelyard.ir import Call, Expr, Function, FunctionMutator, GlobalVar, IRModule, Var
from kernelyard.ir.visitor import callees
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


class InferTypes(Pass):
    """Rebuild calls whose type is no longer what the operator, or the called function, says; callees come first."""

    name = "infer_types"
    is_required = True

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        for name in list(_callees_first(module)):
            function = module[name]
            if not isinstance(function, Function):
                continue
            new = _Inferrer(module).mutate(function)
            if new is not function:
                module = module.with_functions({name: new})
        return module


class _Inferrer(FunctionMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__()
        self._module = module

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call):
            return value
        stated = value.type
        if isinstance(value.op, GlobalVar):
            function = self._module[value.op.name]
            stated = function.result_type if isinstance(function, Function) else stated
        inferred = Call(value.op, value.args, value.attrs, stated)
        return value if inferred.type == value.type else inferred


def _callees_first(module: IRModule) -> Iterator[str]:
    """Yield the names of graph-level functions, callees before callers."""
    done: set[str] = set()
    for root in module.graph_functions():
        stack = [(root, False)]
        while stack:
            name, visited = stack.pop()
            if visited:
                yield name
            elif name not in done and name in module:
                done.add(name)
                stack.append((name, True))
                function = module[name]
                if isinstance(function, Function):
                    stack.extend((callee, False) for callee in callees(function))
