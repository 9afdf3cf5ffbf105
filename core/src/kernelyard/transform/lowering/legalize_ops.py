"""LegalizeOps: every op that has a rule becomes a `call_tir` of a loop-level function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import (
    Call,
    Constant,
    Expr,
    ExternFunc,
    FunctionMutator,
    GlobalVar,
    IRModule,
    Op,
    Tuple,
    TupleType,
    Type,
    Var,
    get_op,
)
from kernelyard.legalize import CustomKernel, Rule, find_kernel, has_rule, is_compiled, legalize_call
from kernelyard.tir.expr import Expr as ScalarExpr
from kernelyard.tir.expr import Load, const
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.simplify import simplify
from kernelyard.tir.visitor import ExprRewriter, rewrite_block
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext, place_of

# Another view of the same memory, made without running anything.
VIEWS = ("reshape",)
QUANTIZATION = ("quantize", "dequantize")


class LegalizeOps(Pass):
    """Replace op calls by `call_tir`, one PrimFunc for each different call.

    skip: names of ops that stay; `reshape` always does, and so do ops that have no rule (the reference interpreter runs
    these). rules: used instead of the registered ones, by op name. Constants of one element become literals of the
    PrimFunc, but for scales and zero points of quantization: these differ between layers, which then share a kernel.
    Custom kernels (`kernelyard.legalize.custom`) stand in for rules: of those that are compiled functions the call is a
    `call_dps_packed`, and their modules are attached.
    """

    name = "legalize_ops"
    is_required = True

    def __init__(self, skip: Collection[str] = (), rules: Mapping[str, Rule] = MappingProxyType({})) -> None:
        self.skip = frozenset((*VIEWS, *skip))
        self.rules = rules

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        compiled: dict[str, CustomKernel] = {}
        module = mutate_with_prim_funcs(module, lambda table: _Legalizer(table, self, context, compiled))
        if compiled:
            from kernelyard.transform.partition.attach_extern_modules import (
                AttachExternModules,  # inside: few users bring any
            )

            module = AttachExternModules([kernel.made_by for kernel in compiled.values()])(module)
        return module


class PrimFuncTable:
    """The module's loop-level functions while a pass adds to them: equal functions get one name."""

    def __init__(self, module: IRModule) -> None:
        self.added: dict[str, PrimFunc] = {}
        self._names = {f: name for name, f in module.functions.items() if isinstance(f, PrimFunc)}
        # The symbols of modules that are attached are taken, too: a program calls both by name.
        external = (symbol for each in module.attrs.get(EXTERNAL_MODULES, ()) for symbol in each.symbols())
        self._taken = {*module.functions, *external}
        self._counts: dict[str, int] = {}
        self._by_key: dict[Hashable, str] = {}

    def name_once(self, key: Hashable, wanted: str, make: Callable[[], PrimFunc]) -> str:
        """Return the name of the function that `make` returns: it is made once for a key, for all entry functions."""
        if key not in self._by_key:
            self._by_key[key] = self.name_of(make(), wanted)
        return self._by_key[key]

    def name_of(self, function: PrimFunc, wanted: str) -> str:
        """Return the name under which the module has this function."""
        known = self._names.get(function)
        if known is not None:
            return known
        name = self._fresh(wanted)
        self._names[function] = name
        self.added[name] = function
        return name

    def _fresh(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            count = self._counts[wanted] = self._counts.get(wanted, 0) + 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def mutate_with_prim_funcs(module: IRModule, mutator: Callable[[PrimFuncTable], FunctionMutator]) -> IRModule:
    """Mutate the entry functions by mutators that add loop-level functions, which these then call."""
    functions = PrimFuncTable(module)
    entries = module.entry_functions()
    mutated = {name: mutator(functions).mutate(function) for name, function in entries.items()}
    changed = {name: new for name, new in mutated.items() if new is not entries[name]}
    return module.with_functions({**changed, **functions.added}) if changed else module


class _Legalizer(FunctionMutator):
    def __init__(
        self,
        functions: PrimFuncTable,
        legalize: LegalizeOps,
        context: PassContext,
        compiled: dict[str, CustomKernel],
    ) -> None:
        super().__init__()
        self.functions = functions
        self.skip = legalize.skip
        self.rules = legalize.rules
        self.context = context
        self.compiled = compiled  # custom kernels that are called as they are, by name

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return value
        if value.op.name in self.skip or not (value.op.name in self.rules or has_rule(value.op.name)):
            return value
        if not self.context.allows("kernel", value.op.name, place_of(var)):
            return value
        custom = custom_kernel_of(value)
        if custom is not None and is_compiled(custom):
            self.compiled[custom.name] = custom
            return Call(get_op("call_dps_packed"), [ExternFunc(custom.name), *value.args], type_=value.type)
        operands = [arg for arg in value.args if not _is_literal(arg, value)]
        name = self._function_for(value, custom)
        if isinstance(value.type, TupleType) and len(value.type.fields) == 1:
            (field,) = value.type.fields
            return Tuple([self.emit(call_tir(name, operands, field), var.name, var.origin)])
        return call_tir(name, operands, value.type)

    def _function_for(self, call: Call, custom: CustomKernel | None) -> str:
        literal = {n: arg for n, arg in enumerate(call.args) if isinstance(arg, Constant) and _is_literal(arg, call)}
        literals = tuple((n, arg.digest) for n, arg in literal.items())
        types = tuple(arg.tensor_type for arg in call.args)
        key = (call.op_name, types, tuple(call.attrs.items()), literals)

        def make() -> PrimFunc:
            if custom is not None:
                function = custom.primfunc(types, call.attrs, call.type)
            else:
                function = legalize_call(call.op_name, types, call.attrs, call.type, self.rules.get(call.op_name))
            return with_literals(function, {n: arg.data for n, arg in literal.items()})

        return self.functions.name_once(key, call.op_name.rpartition(".")[2], make)


def custom_kernel_of(call: Call) -> CustomKernel | None:
    """Return the kernel that a user registered for a call of an operator."""
    if not isinstance(call.op, Op) or call.op.opaque_type:
        return None
    return find_kernel(call.op_name, [arg.tensor_type for arg in call.args], call.attrs, call.type)


def call_tir(name: str, args: Sequence[Expr], type_: Type) -> Call:
    """Return the call of a PrimFunc of the module."""
    return Call(get_op("call_tir"), [GlobalVar(name), *args], type_=type_)


def _is_literal(arg: Expr, call: Call) -> bool:
    if not isinstance(arg, Constant) or arg.data.size != 1:
        return False
    return call.op_name not in QUANTIZATION or not arg.data.any()


def with_literals(function: PrimFunc, values: Mapping[int, np.ndarray]) -> PrimFunc:
    """Return the function with some inputs, given by position, replaced by their only element."""
    if not values:
        return function
    literal = {
        function.params[n]: const(array.reshape(()).item(), dtypes.from_numpy(array.dtype))
        for n, array in values.items()
    }

    def visit(expr: ScalarExpr) -> ScalarExpr:
        return literal.get(expr.buffer, expr) if isinstance(expr, Load) else expr

    rewriter = ExprRewriter(visit)
    blocks = tuple(rewrite_block(block, rewriter) for block in function.blocks)
    params = tuple(buffer for buffer in function.params if buffer not in literal)
    return simplify(PrimFunc(params, blocks, function.num_outputs, function.locals, function.attrs))
