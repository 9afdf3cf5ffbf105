"""AgreeBorderLayouts: tensors that go from region to region lie in memory as both sides like them.

Tensors of a program are row-major, also those that one region hands to the next. Where the one would write another
order of the dims, and the other read it, both would reorder for nothing: so each backend is asked how its regions would
like the tensors at their borders, and where writer and readers agree, the tensor itself has its dims in that order.
Regions then begin and end with a `permute_dims`, which only renames the dims of what they have. What a code generator
computes element by element in between takes the order that it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from kernelyard.errors import PluginContractError, describe
from kernelyard.ir import (
    Binding,
    Call,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    get_op,
)
from kernelyard.ir.types import tensors_of
from kernelyard.patterns.composite import CODEGEN, COMPOSITE, GLOBAL_SYMBOL
from kernelyard.transform.layout.border_agreement import (
    Agreement,
    BorderLayouts,
    Borders,
    Flow,
    Place,
    Port,
    orders_handed_on,
    region_of,
)
from kernelyard.transform.partition.region import Region, ViolationRecorder
from kernelyard.transform.pass_infra.fresh_names import FreshNames
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

log = logging.getLogger(__name__)

BORDER_LAYOUT = "border_layout"  # the composites `<backend>.border_layout` are a `permute_dims` at a region's border
PreferredLayouts: TypeAlias = Callable[[Region], "BorderLayouts | None"]


class AgreeBorderLayouts(Pass):
    """Let regions hand each other tensors in the order in which these are written and read.

    layouts: by backend, what tells the layouts that a region would like; the borders of others are row-major. A tensor
    that others read too is handed over twice. A region that is called several times has the same borders everywhere. An
    answer that fails, or does not fit the region, is recorded.
    strict: raise instead.

    Raises: with `strict`, PluginContractError.
    """

    name = "agree_border_layouts"

    def __init__(
        self, layouts: Mapping[str, PreferredLayouts], recorder: ViolationRecorder | None = None, strict: bool = False
    ) -> None:
        self.layouts = layouts
        self.recorder = recorder
        self.strict = strict

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        wishes: dict[Place, BorderLayouts] = dict(self._wishes(module))
        callers = {
            name: function
            for name, function in module.graph_functions().items()
            if CODEGEN not in function.attrs and COMPOSITE not in function.attrs
        }
        for function in callers.values():
            wishes |= orders_handed_on(function, wishes)
        borders = Agreement([Flow(function, wishes) for function in callers.values()], wishes).reach()
        if not borders.reads:
            return module
        rewriter = _Rewriter(module, wishes, borders)
        changed = {name: rewriter.region(module.graph_functions()[name]) for name in borders.regions}
        changed |= {name: rewriter.caller(function) for name, function in callers.items()}
        return module.with_functions({**rewriter.composites, **changed})

    def _wishes(self, module: IRModule) -> Iterator[tuple[str, BorderLayouts]]:
        for name, function in module.graph_functions().items():
            ask = self.layouts.get(function.attrs.get(CODEGEN, ""))
            if ask is None:
                continue
            region = Region(function.attrs.get(GLOBAL_SYMBOL, name), function.attrs[CODEGEN], function, module)
            try:
                wished = ask(region)
                if wished is not None:
                    _check(wished, function)
                    yield name, wished
            except Exception as error:  # a vendor's code
                self._record_failure(region, error)

    def _record_failure(self, region: Region, error: Exception) -> None:
        violation = PluginContractError(
            f"{region.backend} failed when it was asked for the layouts of {region.symbol}: {describe(error)}",
            found=getattr(error, "found", None),
            expected=getattr(error, "expected", None),
            hint="report this to the plugin's authors; exclude the backend to continue",
        )
        if self.strict:
            raise violation from error
        log.warning("%s failed when it was asked for layouts; they are row-major", region.backend, exc_info=True)
        if self.recorder is not None:
            self.recorder.record_violation(region.backend, (), violation.message)


def _check(wished: object, function: Function) -> None:
    """Check an answer. Raises: PluginContractError unless it is one order for each border."""
    if not isinstance(wished, BorderLayouts):
        raise PluginContractError("border_layouts returned no BorderLayouts", found=type(wished).__name__)
    sides = (wished.reads, [p.type for p in function.params]), (wished.writes, tensors_of(function.result_type))
    for orders, types in sides:
        ranks = [type_.rank if isinstance(type_, TensorType) else 0 for type_ in types]
        fits = len(orders) == len(ranks) and all(
            order is None or sorted(order) == list(range(rank)) for order, rank in zip(orders, ranks, strict=True)
        )
        if not fits:
            raise PluginContractError("orders do not fit a region's borders", found=orders, expected=f"ranks {ranks}")


class _Rewriter:
    """Rewrites regions and their callers. composites: the functions that were added, by name."""

    def __init__(self, module: IRModule, wishes: Mapping[Place, BorderLayouts], borders: Borders) -> None:
        self.composites: dict[str, Function] = {}
        self._regions = {name: module.graph_functions()[name] for name in borders.regions}
        self._names = FreshNames(module)
        self._name_of: dict[tuple[str, TensorType, tuple[int, ...]], str] = {}
        self._wishes = wishes
        self._borders = borders

    def region(self, function: Function) -> Function:
        """Return a region that reads and writes in the orders that were agreed on."""
        name = next(name for name, each in self._regions.items() if each is function)
        backend = function.attrs[CODEGEN]
        params: list[Var] = []
        bindings: list[Binding] = []
        for number, param in enumerate(function.params):
            order = self._wishes[name].reads[number] if Port(name, number) in self._borders.reads else None
            if order is None:
                params.append(param)
                continue
            params.append(Var(param.name, permute_type(param.tensor_type, order), param.origin))
            inverse = tuple(order.index(axis) for axis in range(len(order)))
            bindings.append(Binding(param, self._permute(params[-1], inverse, backend)))
        bindings += function.bindings
        results: list[Expr] = []
        for (number, is_plain), result in zip(self._results(name), self._repeat_results(name, function), strict=True):
            if is_plain:
                results.append(result)
                continue
            call = self._permute(result, self._order(name, number), backend)
            origin = result.origin if isinstance(result, Var) else ""
            bindings.append(Binding(Var(BORDER_LAYOUT, call.type, origin), call))
            results.append(bindings[-1].var)
        return Function(params, bindings, results[0] if len(results) == 1 else Tuple(results), function.attrs)

    def caller(self, function: Function) -> Function:
        """Return a function with its calls of regions as the regions now are."""
        own: dict[Expr, Var] = {}  # by a tensor, it in the order of its own
        tuples: dict[Expr, tuple[str, Var]] = {}
        bindings: list[Binding] = []
        for binding in function.bindings:
            value, name = binding.value, region_of(binding.value, self._regions)
            if name is not None:
                assert isinstance(value, Call)
                call = self._call(name, value, own)
                if isinstance(call.type, TensorType):
                    is_same = call.type == binding.var.type and self._results(name)[0][1]
                    var = binding.var if is_same else self._bind_in_agreed_order(binding.var, call.type, own)
                    bindings.append(Binding(var, call))
                    continue
                tuples[binding.var] = name, Var(binding.var.name, call.type, binding.var.origin)
                bindings.append(Binding(tuples[binding.var][1], call))
                if isinstance(value.type, TensorType):
                    bindings += self._items(name, tuples[binding.var][1], binding.var, 0, own)
            elif isinstance(value, TupleGetItem) and value.tuple_value in tuples:
                bindings += self._items(*tuples[value.tuple_value], binding.var, value.index, own)
            elif Port(binding.var, 0) in self._borders.reads:
                assert isinstance(value, Call)
                call = Call(value.op, [own[value.args[0]], *value.args[1:]], value.attrs)
                is_number = call.type == binding.var.type and not call.tensor_type.rank
                var = binding.var if is_number else self._bind_in_agreed_order(binding.var, call.type, own)
                bindings.append(Binding(var, call))
            else:
                bindings.append(binding)
        return Function(function.params, bindings, function.result, function.attrs)

    def _call(self, name: str, call: Call, own: Mapping[Expr, Var]) -> Call:
        reads = self._borders.reads
        args = [own[arg] if Port(name, number) in reads else arg for number, arg in enumerate(call.args)]
        tensors = tensors_of(call.type)
        types = [
            tensors[number] if is_plain else permute_type(tensors[number], self._order(name, number))
            for number, is_plain in self._results(name)
        ]
        return Call(call.op, args, call.attrs, types[0] if len(types) == 1 else TupleType(tuple(types)))

    def _items(self, name: str, whole: Var, var: Var, number: int, own: dict[Expr, Var]) -> Iterator[Binding]:
        """Yield what binds a result that was `var`, row-major and in its own order."""
        for place, (result, is_plain) in enumerate(self._results(name)):
            if result == number:
                item = TupleGetItem(whole, place)
                yield Binding(var if is_plain else self._bind_in_agreed_order(var, item.type, own), item)

    def _bind_in_agreed_order(self, var: Var, type_: Type, own: dict[Expr, Var]) -> Var:
        assert isinstance(type_, TensorType)
        own[var] = Var(var.name, type_, var.origin)
        return own[var]

    def _results(self, name: str) -> list[tuple[int, bool]]:
        """Return a region's new results: the number of the old one, and whether it is row-major."""
        count = len(tensors_of(self._regions[name].result_type))
        found: list[tuple[int, bool]] = []
        for number in range(count):
            port = Port(name, number)
            if port not in self._borders.writes or port in self._borders.plain:
                found.append((number, True))
            if port in self._borders.writes:
                found.append((number, False))
        return found

    def _repeat_results(self, name: str, function: Function) -> list[Expr]:
        results = function.result.fields if isinstance(function.result, Tuple) else [function.result]
        return [results[number] for number, _ in self._results(name)]

    def _order(self, name: str, number: int) -> tuple[int, ...]:
        order = self._wishes[name].writes[number]
        assert order is not None, "it was agreed on"
        return order

    def _permute(self, value: Expr, axes: tuple[int, ...], backend: str) -> Call:
        """Return a call of the composite that permutes the dims of a value."""
        key = backend, value.tensor_type, axes
        if key not in self._name_of:
            x = Var("x", value.type)
            call = Call(get_op("permute_dims"), [x], {"axes": axes})
            result = Var("lv", call.type)
            name = self._name_of[key] = self._names.numbered(BORDER_LAYOUT)
            attrs = {COMPOSITE: f"{backend}.{BORDER_LAYOUT}"}
            self.composites[name] = Function([x], [Binding(result, call)], result, attrs)
        name = self._name_of[key]
        return Call(GlobalVar(name), [value], type_=self.composites[name].result_type)


def permute_type(tensor: TensorType, order: Sequence[int]) -> TensorType:
    """Return the type of a tensor whose dims are in that order."""
    return TensorType(tuple(tensor.shape[axis] for axis in order), tensor.dtype)
