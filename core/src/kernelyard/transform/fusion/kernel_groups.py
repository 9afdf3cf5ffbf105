"""Groups: functions with the attribute "Primitive", whose calls become one kernel (FuseTIR)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelyard.ir import BaseFunction, Binding, Call, Expr, Function, GlobalVar, IRModule, Op, Tuple, Var
from kernelyard.ir.expr import replace_operands
from kernelyard.ir.visitor import free_operands
from kernelyard.tir.primfunc import PrimFunc

PRIMITIVE = "Primitive"
_LONGEST_NAME = 80


def is_primitive(function: BaseFunction) -> bool:
    """Return True for a group made by FuseOps or FuseSiblings."""
    return isinstance(function, Function) and PRIMITIVE in function.attrs


def callee(value: Expr, module: IRModule) -> PrimFunc | None:
    """Return the PrimFunc that a value calls by `call_tir`, if it does."""
    if isinstance(value, Call) and isinstance(value.op, Op) and value.op.name == "call_tir":
        target = value.args[0]
        function = module[target.name] if isinstance(target, GlobalVar) else None
        return function if isinstance(function, PrimFunc) else None
    return None


def group_function(bindings: Sequence[Binding], results: Sequence[Var]) -> tuple[Function, list[Expr]]:
    """Return the bindings as a function of what they read from outside, and what that is.

    Several results are a tuple.
    """
    params: dict[Expr, Var] = {o: Var(f"p{number}", o.type) for number, o in enumerate(free_operands(bindings))}
    body = [Binding(b.var, replace_operands(b.value, params)) for b in bindings]
    result = results[0] if len(results) == 1 else Tuple(results)
    return Function(list(params.values()), body, result, {PRIMITIVE: True}), list(params)


def group_name(functions: Iterable[PrimFunc]) -> str:
    """Return the name of a fused function: "fused" and its operators."""
    names = [str(op).rpartition(".")[2] for function in functions for op in function.attrs.get("ops", ())]
    return "_".join(["fused", *names])[:_LONGEST_NAME].rstrip("_")


def remove_unused_kernels(module: IRModule) -> IRModule:
    """Return the module without the PrimFuncs that nobody calls."""
    called = {
        operand.name
        for function in module.graph_functions().values()
        for binding in function.bindings
        if isinstance(binding.value, Call)
        for operand in binding.value.args
        if isinstance(operand, GlobalVar)
    }
    return module.without_functions(
        {name for name, function in module.functions.items() if isinstance(function, PrimFunc) and name not in called}
    )
