"""FuseTIR: every group that FuseOps made becomes one PrimFunc.

The calls' blocks are put one after another over shared buffers; then each intermediate buffer that is cheaper to
compute where it is read is computed there and disappears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernelyard.ir import BaseFunction, Call, Expr, Function, FunctionMutator, GlobalVar, IRModule, Var
from kernelyard.legalize import CUSTOM
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.inline import inline_locals
from kernelyard.tir.op_pattern import KINDS, classify
from kernelyard.tir.primfunc import ComputeBlock, PrimFunc
from kernelyard.tir.visitor import rename_buffers
from kernelyard.transform.fuse_ops import callee, is_primitive
from kernelyard.transform.legalize_ops import PrimFuncTable, call_tir
from kernelyard.transform.pass_base import Pass, PassContext


class FuseTIR(Pass):
    """Replace groups by PrimFuncs, and the calls of groups by `call_tir`; PrimFuncs that nobody calls any more go."""

    name = "fuse_tir"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        groups = {n: f for n, f in module.graph_functions().items() if is_primitive(f)}
        if not groups:
            return module
        functions = PrimFuncTable(module.without_functions(set(groups)))
        names = {name: functions.name_of(fuse(group, module), name) for name, group in groups.items()}
        changed: dict[str, BaseFunction] = {
            name: _CallFused(names).mutate(function)
            for name, function in module.graph_functions().items()
            if name not in groups
        }
        module = module.without_functions(set(groups)).with_functions({**changed, **functions.added})
        return without_unused(module)


class _CallFused(FunctionMutator):
    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self.names = names

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.name in self.names:
            return call_tir(self.names[value.op.name], value.args, value.type)
        return value


def without_unused(module: IRModule) -> IRModule:
    """The module without the PrimFuncs that nobody calls."""
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


def fuse(group: Function, module: IRModule) -> PrimFunc:
    """One PrimFunc for a function that is a chain of `call_tir`s and returns the last one's result."""
    chain = _Chain(group)
    for binding in group.bindings:
        function = callee(binding.value, module)
        assert function is not None
        assert isinstance(binding.value, Call)
        chain.add(binding.var, function, binding.value.args[1:])
    return inline_locals(chain.function())


class _Chain:
    """PrimFuncs put one after another over shared buffers."""

    def __init__(self, group: Function) -> None:
        self.group = group
        self.buffers: dict[Expr, Buffer] = {
            param: Buffer(f"p{n}", param.tensor_type.shape, param.tensor_type.dtype)
            for n, param in enumerate(group.params)
        }
        self.blocks: list[ComputeBlock] = []
        self.locals: list[Buffer] = []
        self.ops: list[str] = []
        self.kinds: list[str] = []
        self.custom: list[str] = []

    def add(self, var: Var, function: PrimFunc, args: Sequence[Expr]) -> None:
        """Append a call whose result is `var`."""
        number = len(self.kinds)
        (output,) = function.outputs
        result = self.buffers[var] = self._result_buffer(var, output, number)
        private = {b: replace(b, name=f"t{number}_{b.name}") for b in function.locals}
        given = dict(zip(function.inputs, (self.buffers[arg] for arg in args), strict=True))
        renamed = {**private, **given, output: result}
        self.blocks += (replace(rename_buffers(b, renamed), name=f"b{number}_{b.name}") for b in function.blocks)
        self.locals += private.values()
        self.ops += function.attrs.get("ops", ())
        self.custom += function.attrs.get(CUSTOM, ())
        self.kinds.append(str(function.attrs.get("op_pattern") or classify(function)))

    def _result_buffer(self, var: Var, output: Buffer, number: int) -> Buffer:
        if var is self.group.result:
            return replace(output, name="out0")
        local = replace(output, name=f"t{number}", scope="local")
        self.locals.append(local)
        return local

    def function(self) -> PrimFunc:
        """The whole chain."""
        params = (*(self.buffers[param] for param in self.group.params), self.buffers[self.group.result])
        attrs: dict[str, Any] = {"ops": tuple(self.ops), "op_pattern": max(self.kinds, key=KINDS.index)}
        if self.custom:
            attrs[CUSTOM] = tuple(self.custom)
        return PrimFunc(params, tuple(self.blocks), 1, tuple(self.locals), attrs)
