"""PartitionGraph: marked regions get the form in which codegens receive them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelyard.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
)
from kernelyard.ir.expr import replace_operands
from kernelyard.patterns.composite import CODEGEN, GLOBAL_SYMBOL, structural_key
from kernelyard.transform.interprocedural.bind_symbolic_vars import bind_function
from kernelyard.transform.partition.optimize_regions import Optimize, OptimizeRegions
from kernelyard.transform.pass_infra.fresh_names import FreshNames
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext
from kernelyard_tvm_compat.annotate_target import region_backend
from kernelyard_tvm_compat.canonicalize_bindings import CanonicalizeBindings


class PartitionGraph(Pass):
    """Name the regions `<module_name>_<target>_<function>_<number>`, and tidy what goes in and what comes out.

    Every input is passed once, and every output returned once; a tuple that a region makes is returned as its items.
    Constants are bound inside, or with `bind_constants=False` stay arguments. Equal regions are one function.
    optimize: by target, what may be done to each of its regions: see `OptimizeRegions`.
    """

    name = "PartitionGraph"

    def __init__(
        self,
        module_name: str = "default",
        bind_constants: bool = True,
        optimize: Mapping[str, Optimize] | None = None,
    ) -> None:
        self.module_name = module_name
        self.bind_constants = bind_constants
        self.optimize = dict(optimize or {})

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        partition = _Partition(module, self.module_name, self.bind_constants)
        for name, function in module.entry_functions().items():
            partition.rewrite(name, function)
        if not partition.regions:
            return module
        before = {name for name, f in module.functions.items() if CODEGEN in f.attrs}
        after = module.with_functions(partition.changed).without_functions(before).with_functions(partition.regions)
        return OptimizeRegions(self.optimize).run(CanonicalizeBindings().run(after, context), context)


class _Partition:
    def __init__(self, module: IRModule, module_name: str, bind_constants: bool) -> None:
        self.module = module
        self.module_name = module_name
        self.bind_constants = bind_constants
        self.changed: dict[str, Function] = {}
        self.regions: dict[str, Function] = {}
        self._names = FreshNames(module)
        self._name_of: dict[tuple[object, ...], str] = {}

    def rewrite(self, name: str, function: Function) -> None:
        """Call the regions of one entry function in their new form."""
        bindings: list[Binding] = []
        for binding in function.bindings:
            target = region_backend(binding.value, self.module)
            bindings += self._call_region(binding, target, name) if target else [binding]
        if len(bindings) != len(function.bindings) or any(map(_differ, bindings, function.bindings)):
            self.changed[name] = Function(function.params, bindings, function.result, function.attrs)

    def _call_region(self, binding: Binding, target: str, entry: str) -> list[Binding]:
        call = binding.value
        assert isinstance(call, Call)
        region, arguments = self._with_inputs_once(self.module.graph_functions()[call.op_name], call.args)
        region, places = _with_outputs_once(region)
        new = Call(GlobalVar(self._name(region, target, entry)), arguments, type_=region.result_type)
        if new.type == binding.var.type:
            return [Binding(binding.var, new)]
        # Somebody reads more items than there are outputs: the tuple they know is put together again.
        result = Var(binding.var.name, new.type, binding.var.origin)
        if not isinstance(new.type, TupleType):
            return [Binding(result, new), Binding(binding.var, Tuple([result] * len(places)))]
        items = [Var(f"{result.name}_{i}", type_, result.origin) for i, type_ in enumerate(new.type.fields)]
        unpacked = [Binding(item, TupleGetItem(result, i)) for i, item in enumerate(items)]
        return [Binding(result, new), *unpacked, Binding(binding.var, Tuple([items[place] for place in places]))]

    def _with_inputs_once(self, region: Function, args: Iterable[Expr]) -> tuple[Function, list[Expr]]:
        """Return the region with constants bound, and a single parameter for each different argument."""
        constants: dict[Var, Constant] = {}
        first: dict[object, Var] = {}
        same: dict[Expr, Expr] = {}
        arguments: list[Expr] = []
        for param, arg in zip(region.params, args, strict=True):
            key = (arg.type, arg.digest) if isinstance(arg, Constant) else arg
            if isinstance(arg, Constant) and self.bind_constants:
                constants[param] = arg
            elif key in first:
                same[param] = first[key]
            else:
                first[key] = param
                arguments.append(arg)
        if same:
            region = _drop_aliases(region, same)
        return (bind_function(region, {}, constants) if constants else region), arguments

    def _name(self, region: Function, target: str, entry: str) -> str:
        attrs = {name: value for name, value in region.attrs.items() if name != GLOBAL_SYMBOL}
        plain = Function(region.params, region.bindings, region.result, attrs)
        key = structural_key(plain)
        if key not in self._name_of:
            name = self._name_of[key] = self._names.numbered(f"{self.module_name}_{target}_{entry}")
            self.regions[name] = plain.with_attrs(**{GLOBAL_SYMBOL: name})
        return self._name_of[key]


def _differ(new: Binding, old: Binding) -> bool:
    return new is not old


def _drop_aliases(function: Function, same: Mapping[Expr, Expr]) -> Function:
    """Drop parameters that alias another parameter."""
    bindings = [Binding(b.var, replace_operands(b.value, same)) for b in function.bindings]
    params = [param for param in function.params if param not in same]
    return Function(params, bindings, replace_operands(function.result, same), function.attrs)


def _with_outputs_once(region: Function) -> tuple[Function, list[int]]:
    """Return the region with each output returned once; for each result that it had, the number of the output that it
    is now.

    A whole tuple becomes its items.
    """
    bindings = list(region.bindings)
    results = list(region.result.fields) if isinstance(region.result, Tuple) else [region.result]
    if len(results) == 1 and isinstance(results[0].type, TupleType):
        whole = results[0]
        results = [Var(f"item_{i}", type_) for i, type_ in enumerate(results[0].type.fields)]
        bindings += [Binding(item, TupleGetItem(whole, i)) for i, item in enumerate(results)]  # pyright: ignore[reportArgumentType]
    different = list(dict.fromkeys(results))
    result = different[0] if len(different) == 1 else Tuple(different)
    return Function(region.params, bindings, result, region.attrs), [different.index(each) for each in results]
