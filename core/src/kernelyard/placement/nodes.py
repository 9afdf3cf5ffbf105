"""Every op of a partitioned module, with who runs it: one walk through functions, regions and composites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from kernelyard.ir import Binding, Call, Expr, Function, GlobalVar, IRModule, Op, Tuple, TupleGetItem, Var
from kernelyard.ir.module import PRIVATE
from kernelyard.ir.types import tensors_of
from kernelyard.patterns.composite import CODEGEN, COMPOSITE, GLOBAL_SYMBOL
from kernelyard.patterns.matching.match_result import Match
from kernelyard.placement.recorder import Recorder, node_label
from kernelyard.plugins.support.roofline import bytes_of, flops_of
from kernelyard.runtime.report_entries import Node, Reason
from kernelyard.runtime.report_words import NO_MATCH, TAKEN, VIEW, VM

CONTRACT_VIOLATION = "contract-violation"

# Where a value comes from: numbers of nodes and names of the model's inputs; of a tuple, one for each field.
Source = tuple["int | str", ...]
Sources = list[Source]


def nodes_of(module: IRModule, recorder: Recorder, rest: Callable[[Call], str]) -> tuple[Node, ...]:
    """Return the nodes of all entry functions, in order; `rest` names what runs a call that no backend took."""
    walk = _Walk(module, recorder, rest)
    for name, function in module.entry_functions().items():
        walk.entry(name, function)
    return tuple(walk.nodes)


class _Walk:
    def __init__(self, module: IRModule, recorder: Recorder, rest: Callable[[Call], str]) -> None:
        self.module = module
        self.recorder = recorder
        self.rest = rest
        self.nodes: list[Node] = []
        self._failed = {symbol: v for v in recorder.violations for symbol in v.functions}
        self._entry = ""
        self._groups = 0

    def entry(self, name: str, function: Function) -> None:
        self._entry = name
        params = [param.name for param in function.params]
        names = function.attrs.get("input_names") or params
        known: dict[Expr, Sources] = {p: [(text,)] for p, text in zip(function.params, names, strict=True)}
        region_results = _results_by_call(function)
        for binding in function.bindings:
            region = self._callee(binding.value)
            if region is not None and isinstance(binding.value, Call) and CODEGEN in region.attrs:
                known[binding.var] = self._region(region, binding.value, region_results[binding.var], known)
            else:
                known[binding.var] = self._value(binding.var, binding.value, known, None)
        if not function.attrs.get(PRIVATE):
            self._mark_outputs(function, known)

    def _mark_outputs(self, function: Function, known: Mapping[Expr, Sources]) -> None:
        results = _fields(function.result)
        names = function.attrs.get("output_names") or [f"output_{i}" for i in range(len(results))]
        for text, result in zip(names, results, strict=True):
            for source in known.get(result, [()])[0]:
                if isinstance(source, int):
                    node = self.nodes[source]
                    self.nodes[source] = replace(node, gives=(*node.gives, text))

    def _callee(self, value: Expr) -> Function | None:
        function = self.module[value.op.name] if isinstance(value, Call) and isinstance(value.op, GlobalVar) else None
        return function if isinstance(function, Function) else None

    def _region(
        self, region: Function, call: Call, results: Sequence[Var | None], outside: Mapping[Expr, Sources]
    ) -> Sources:
        originals = self._originals(region, results)
        known: dict[Expr, Sources] = {p: outside.get(a, [()]) for p, a in zip(region.params, call.args, strict=True)}
        for binding in region.bindings:
            composite = self._callee(binding.value)
            if composite is None or not isinstance(binding.value, Call):
                known[binding.var] = self._single(region, binding, known)
                continue
            match = self.recorder.matches.get(originals.get(binding.var, binding.var))
            known[binding.var] = self._composite(composite, region, binding.value, match, known)
        return [source for result in _fields(region.result) for source in known.get(result, [()])[:1]]

    def _single(self, region: Function, binding: Binding, known: Mapping[Expr, Sources]) -> Sources:
        """Return an operator that is in a region by itself, in no composite: a single-op rule has put it there."""
        value, backend = binding.value, region.attrs[CODEGEN]
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return self._value(binding.var, value, known, None)
        place = backend, f"{backend}.{value.op_name}", region.attrs.get(GLOBAL_SYMBOL, "")
        sources = self._value(binding.var, value, known, place)
        self._groups += 1
        return sources

    def _originals(self, region: Function, results: Sequence[Var | None]) -> dict[Var, Var]:
        """Return the model's variables behind those of a region, which several places may share.

        From its results back.
        """
        found: dict[Expr, Var] = {}
        for result, original in zip(_fields(region.result), results, strict=True):
            if original is not None:
                found[result] = original
        for binding in reversed(region.bindings):
            original = found.get(binding.var)
            match = self.recorder.matches.get(original) if original is not None else None
            if original is not None and isinstance(binding.value, Call) and match is not None:
                inputs = [operand for operand in match.inputs if isinstance(operand, Var)]
                args = [arg for arg in binding.value.args if isinstance(arg, Var)]
                if len(inputs) == len(args):
                    found.update(zip(args, inputs, strict=True))
        return {var: original for var, original in found.items() if isinstance(var, Var)}

    def _composite(
        self, composite: Function, region: Function, call: Call, match: Match | None, outside: Mapping[Expr, Sources]
    ) -> Sources:
        known: dict[Expr, Sources] = {p: outside.get(a, [()]) for p, a in zip(composite.params, call.args, strict=True)}
        symbol = region.attrs.get(GLOBAL_SYMBOL, "")
        place = region.attrs[CODEGEN], composite.attrs[COMPOSITE], symbol
        origins = [b.var for b in match.bindings] if match and len(match.bindings) == len(composite.bindings) else None
        for i, binding in enumerate(composite.bindings):
            var = origins[i] if origins else binding.var
            known[binding.var] = self._value(var, binding.value, known, place)
        self._groups += 1
        return known[composite.result]

    def _value(
        self, var: Var, value: Expr, known: Mapping[Expr, Sources], place: tuple[str, str, str] | None
    ) -> Sources:
        if isinstance(value, TupleGetItem):
            fields = known.get(value.tuple_value, [()])
            return [fields[value.index if value.index < len(fields) else 0]]
        if isinstance(value, Tuple):
            return [known.get(field, [()])[0] for field in value.fields]
        if not isinstance(value, Call):
            return known.get(value, [()])
        sources = dict.fromkeys(s for arg in value.args for field in known.get(arg, ()) for s in field)
        number = len(self.nodes)
        self.nodes.append(self._node(var, value, tuple(sources), place))
        if place is None:
            self._groups += 1
        return [(number,)] * max(1, len(list(tensors_of(value.type))))

    def _node(self, var: Var, call: Call, sources: Source, place: tuple[str, str, str] | None) -> Node:
        backend, pattern, function = place or ("", "", "")
        broken = self._failed.get(function) if function else None
        reasons = [*self.recorder.reasons.of(var, call.op_name)]
        if broken is not None:
            reasons.append(Reason(backend, pattern, CONTRACT_VIOLATION, broken.message))
        if place is None or broken is not None:
            backend, pattern, function = self.rest(call), "", ""
        counted = backend not in (VIEW, VM)
        return Node(
            self._entry,
            node_label(var),
            call.op_name,
            repr(call.type),
            backend,
            pattern,
            function,
            self._groups,
            flops_of(call) if counted else 0,
            bytes_of(call) if counted else 0,
            tuple(source for source in sources if isinstance(source, int)),
            tuple(source for source in sources if isinstance(source, str)),
            reasons=(*self._reasons_of_others(backend, call.op_name, reasons), *self._reasons_of_rest(backend)),
        )

    def _reasons_of_rest(self, owner: str) -> tuple[Reason, ...]:
        return (self.recorder.rest[owner],) if owner in self.recorder.rest else ()

    def _reasons_of_others(self, owner: str, op: str, reasons: Sequence[Reason]) -> Iterator[Reason]:
        """Yield the reasons of every backend that has a pattern ending in `op` but does not run it, in order."""
        for backend, ops in self.recorder.offers.items():
            given = [reason for reason in reasons if reason.backend == backend]
            if backend == owner:
                continue
            if given or op not in ops:
                yield from given
            elif owner in self.recorder.offers:
                yield Reason(backend, "", TAKEN, f"{owner} comes first")
            else:
                yield Reason(backend, "", NO_MATCH, "none of its patterns matches here")


def _fields(result: Expr) -> tuple[Expr, ...]:
    return tuple(result.fields) if isinstance(result, Tuple) else (result,)


def _results_by_call(function: Function) -> dict[Var, list[Var | None]]:
    """Return for each variable what takes the results of a region called there: itself, or the fields' variables."""
    found: dict[Var, list[Var | None]] = {binding.var: [binding.var] for binding in function.bindings}
    for binding in function.bindings:
        count = len(list(tensors_of(binding.var.type)))
        if count != 1:
            found[binding.var] = [None] * count
    for binding in function.bindings:
        value = binding.value
        if isinstance(value, TupleGetItem) and isinstance(value.tuple_value, Var) and value.tuple_value in found:
            fields = found[value.tuple_value]
            if value.index < len(fields):
                fields[value.index] = binding.var
    return found
