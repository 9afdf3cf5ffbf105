"""FuseTIR: every group that FuseOps or FuseSiblings made becomes one PrimFunc.

The calls' blocks are put one after another over shared buffers; then each intermediate buffer that is cheaper to
compute where it is read is computed there and disappears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from kernelyard.ir import (
    BaseFunction,
    Call,
    Expr,
    Function,
    FunctionMutator,
    GlobalVar,
    IRModule,
    TupleGetItem,
    Var,
    operands,
)
from kernelyard.legalize import CUSTOM
from kernelyard.patterns.composite import structural_key
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.inline import inline_locals
from kernelyard.tir.op_pattern import KINDS, OPAQUE, classify
from kernelyard.tir.primfunc import ComputeBlock, PrimFunc
from kernelyard.tir.visitor import rename_buffers
from kernelyard.transform.fusion.kernel_groups import callee, is_primitive, remove_unused_kernels
from kernelyard.transform.lowering.legalize_ops import PrimFuncTable, call_tir
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


class FuseTIR(Pass):
    """Replace groups by PrimFuncs, and the calls of groups by `call_tir`; PrimFuncs that nobody calls any more go."""

    name = "fuse_tir"
    is_required = True

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        groups = {n: f for n, f in module.graph_functions().items() if is_primitive(f)}
        if not groups:
            return module
        functions = PrimFuncTable(module.without_functions(set(groups)))
        names = {
            name: functions.name_once(structural_key(group), name, partial(fuse, group, module))
            for name, group in groups.items()
        }
        changed: dict[str, BaseFunction] = {
            name: _CallFused(names).mutate(function)
            for name, function in module.graph_functions().items()
            if name not in groups
        }
        module = module.without_functions(set(groups)).with_functions({**changed, **functions.added})
        return remove_unused_kernels(module)


class _CallFused(FunctionMutator):
    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self.names = names

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.name in self.names:
            return call_tir(self.names[value.op.name], value.args, value.type)
        return value


def fuse(group: Function, module: IRModule) -> PrimFunc:
    """Return one PrimFunc for a function of `call_tir`s; it has an output for each tensor that the function returns."""
    chain = _Chain(group)
    for binding in group.bindings:
        if not isinstance(binding.value, TupleGetItem):
            function = callee(binding.value, module)
            assert function is not None
            assert isinstance(binding.value, Call)
            chain.add(binding.var, function, binding.value.args[1:])
    return inline_locals(chain.function())


# A tensor of a group: the variable that is bound to the call which makes it, and its number among the call's results.
_Source: TypeAlias = tuple[Expr, int]


class _Chain:
    """PrimFuncs put one after another over shared buffers."""

    def __init__(self, group: Function) -> None:
        values = ((binding.var, binding.value) for binding in group.bindings)
        self.items = {var: (v.tuple_value, v.index) for var, v in values if isinstance(v, TupleGetItem)}
        self.results = [self._source(result) for result in operands(group.result)]
        self.inputs = [
            Buffer(f"p{n}", param.tensor_type.shape, param.tensor_type.dtype) for n, param in enumerate(group.params)
        ]
        self.buffers: dict[_Source, Buffer] = {(p, 0): b for p, b in zip(group.params, self.inputs, strict=True)}
        self.blocks: list[ComputeBlock] = []
        self.locals: list[Buffer] = []
        self.ops: list[str] = []
        self.kinds: list[str] = []
        self.custom: list[str] = []

    def _source(self, expr: Expr) -> _Source:
        return self.items.get(expr, (expr, 0)) if isinstance(expr, Var) else (expr, 0)

    def add(self, var: Var, function: PrimFunc, args: Sequence[Expr]) -> None:
        """Append a call whose result is `var`."""
        number = len(self.kinds)
        renamed = {b: replace(b, name=f"t{number}_{b.name}") for b in function.locals}
        self.locals += renamed.values()
        renamed.update(zip(function.inputs, (self.buffers[self._source(arg)] for arg in args), strict=True))
        for index, output in enumerate(function.outputs):
            name = f"t{number}" if len(function.outputs) == 1 else f"t{number}_{output.name}"
            renamed[output] = self.buffers[var, index] = self._result_buffer((var, index), output, name)
        self.blocks += (replace(rename_buffers(b, renamed), name=f"b{number}_{b.name}") for b in function.blocks)
        self.ops += function.attrs.get("ops", ())
        self.custom += function.attrs.get(CUSTOM, ())
        self.kinds.append(str(function.attrs.get("op_pattern") or classify(function)))

    def _result_buffer(self, source: _Source, output: Buffer, name: str) -> Buffer:
        if source in self.results:
            return replace(output, name=f"out{self.results.index(source)}")
        local = replace(output, name=name, scope="local")
        self.locals.append(local)
        return local

    def function(self) -> PrimFunc:
        """Return the whole chain."""
        outputs = [self.buffers[result] for result in self.results]
        kind = max(self.kinds, key=KINDS.index) if len(outputs) == 1 else OPAQUE
        attrs: dict[str, Any] = {"ops": tuple(self.ops), "op_pattern": kind}
        if self.custom:
            attrs[CUSTOM] = tuple(self.custom)
        params = (*self.inputs, *outputs)
        return PrimFunc(params, tuple(self.blocks), len(outputs), tuple(self.locals), attrs)
