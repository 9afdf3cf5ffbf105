"""Calls that belong together become calls of regions: what MergeCompositeFunctions and MergeCompilerRegions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from kernelyard.ir import (
    Binding,
    Call,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    operands,
)
from kernelyard.ir.expr import replace_operands
from kernelyard.ir.size_bounds import bounds_attribute
from kernelyard.ir.visitor import free_operands
from kernelyard.patterns.composite import CODEGEN, lift, structural_key
from kernelyard.patterns.matching.dataflow import Dataflow, remove_aliases
from kernelyard.patterns.regions import convex_regions
from kernelyard.transform.pass_infra.fresh_names import FreshNames

RegionFilter: TypeAlias = Callable[[Function, Sequence[Binding]], "bool | None"]
"""Return True where a region may be made of some calls; None: it is to be divided, and both parts are asked for."""


class RegionMerging:
    """Collects what a run changes in the module.

    backend_of_call: the backend of a value that may become part of a region, None for others. finished: what becomes of
    a region's function before it is added. is_wanted: whether bindings may become a region with that function, or
    parts of them; where not, they stay as they are.
    """

    def __init__(
        self,
        module: IRModule,
        backend_of_call: Callable[[Expr], str | None],
        finished: Callable[[Function], Function] = lambda function: function,
        is_wanted: RegionFilter | None = None,
    ) -> None:
        self.module = module
        self._backend = backend_of_call
        self._finished = finished
        self._is_wanted = is_wanted
        self._changed: dict[str, Function] = {}
        self._regions: dict[str, Function] = {}
        self._name_of: dict[tuple[object, ...], str] = {}
        self._names = FreshNames(module)

    def finish(self) -> IRModule:
        """Return the module with everything added; the same object when nothing was."""
        if not self._changed:
            return self.module
        return self.module.with_functions({**self._changed, **self._regions})

    def rewrite(self, name: str, function: Function) -> None:
        """Group the calls of one entry function into regions."""
        if not any(self._backend(binding.value) for binding in function.bindings):
            return
        function = remove_aliases(function)
        tuples = {b.var for b in function.bindings if isinstance(b.var.type, TupleType) and self._backend(b.value)}
        function = _unpack_escaping_tuples(function, tuples)
        dataflow = Dataflow.of(function)
        bindings: list[Binding] = []
        for group in self._group(function, dataflow):
            members = [function.bindings[i] for i in group]
            backend = self._backend(members[0].value)
            bindings += members if backend is None else self._call_region(backend, members, dataflow)
        self._changed[name] = Function(function.params, bindings, function.result, function.attrs)

    def _group(self, function: Function, dataflow: Dataflow) -> list[list[int]]:
        values = [binding.value for binding in function.bindings]
        producers = [[dataflow.position[o] for o in operands(v) if o in dataflow.position] for v in values]  # pyright: ignore[reportArgumentType]
        colours = [self._backend(value) for value in values]
        inseparable = [
            producers[i][0] if isinstance(v, TupleGetItem) and producers[i] and colours[producers[i][0]] else None
            for i, v in enumerate(values)
        ]
        return convex_regions(producers, colours, inseparable)

    def _call_region(self, backend: str, members: list[Binding], dataflow: Dataflow) -> list[Binding]:
        inside = {binding.var for binding in members}
        outputs = [b.var for b in members if dataflow.is_needed_outside(b.var, inside)] or [members[-1].var]
        attrs = {CODEGEN: backend, **bounds_attribute(dataflow.size_bounds)}
        lifted = lift(members, tuple(free_operands(members)), outputs, attrs)
        is_wanted = self._is_wanted is None or self._is_wanted(lifted.function, members)
        if is_wanted is None:
            parts = _halves(members)
            return [binding for part in parts for binding in self._call_region(backend, part, dataflow)]
        if not is_wanted:
            return members
        name = self._region(backend, self._finished(lifted.function))
        call = Call(GlobalVar(name), lifted.arguments, type_=lifted.function.result_type)
        if len(outputs) == 1:
            return [Binding(outputs[0], call)]
        result = Var(name, call.type)
        return [Binding(result, call), *(Binding(v, TupleGetItem(result, i)) for i, v in enumerate(outputs))]

    def _region(self, backend: str, function: Function) -> str:
        key = structural_key(function)
        if key not in self._name_of:
            name = self._name_of[key] = self._names.numbered(backend)
            self._regions[name] = function.with_attrs(global_symbol=name)
        return self._name_of[key]


def _halves(members: list[Binding]) -> tuple[list[Binding], list[Binding]]:
    """Divide calls, in order, about the middle; the items of a tuple stay with the call that makes it.

    Both parts of a convex region are convex, since they follow one another.
    """
    starts = [number for number, each in enumerate(members) if number and not isinstance(each.value, TupleGetItem)]
    middle = min(starts, key=lambda number: abs(2 * number - len(members)))
    return members[:middle], members[middle:]


def _unpack_escaping_tuples(function: Function, tuples: set[Var]) -> Function:
    """Make every use of these tuples an item: where the whole is needed, it is put together again from its items.

    A region's results are tensors, so a whole tuple cannot leave one.
    """
    dataflow = Dataflow(function.bindings, function.result)
    whole: dict[Expr, Expr] = {}
    bindings: list[Binding] = []
    for binding in function.bindings:
        is_item = isinstance(binding.value, TupleGetItem)
        bindings.append(binding if is_item else Binding(binding.var, replace_operands(binding.value, whole)))
        if binding.var in tuples and _escapes(binding.var, dataflow):
            whole[binding.var] = _repack(binding.var, bindings)
    if not whole:
        return function
    return Function(function.params, bindings, replace_operands(function.result, whole), function.attrs)


def _escapes(var: Var, dataflow: Dataflow) -> bool:
    users = dataflow.users(var)
    return dataflow.is_returned(var) or any(not isinstance(dataflow.values[u], TupleGetItem) for u in users)


def _repack(var: Var, bindings: list[Binding]) -> Var:
    assert isinstance(var.type, TupleType)
    items: list[Var] = []
    for i, type_ in enumerate(var.type.fields):
        items.append(Var(f"{var.name}_{i}", type_, var.origin))
        bindings.append(Binding(items[-1], TupleGetItem(var, i)))
    whole = Var(var.name, var.type, var.origin)
    bindings.append(Binding(whole, Tuple(items)))
    return whole
