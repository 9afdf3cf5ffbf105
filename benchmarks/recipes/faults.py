"""Faults to plant in a compiler: each is in force inside `planted`, and says which calls of a model it spoils."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import kernelyard as ky
from kernelyard.ir import Call, Function, FunctionMutator, IRModule, TensorType, Var, get_op
from kernelyard.legalize import Rule, find_rule, register_kernel, unregister_kernel
from kernelyard.plugins.api import KernelNode
from kernelyard.transform.pass_infra.pass_base import Pass, module_pass
from kernelyard_debug.case import Case

NAME = "planted_fault"
FOLLOWING = ("add", "clip", "nn.relu", "multiply")
KINDS = ("kernel", "region", "pass", "crash", "nan", "shape")


@dataclass(frozen=True)
class Target:
    """The calls that a fault spoils: all of an operator, or those of the same types and attributes alone."""

    op: str
    types: tuple[TensorType, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def of(call: Call, is_special: bool) -> Target:
        """Return what takes a call."""
        if not is_special:
            return Target(call.op_name)
        return Target(call.op_name, tuple(arg.tensor_type for arg in call.args), tuple(call.attrs.items()))

    def takes(self, op: str, types: Any, attrs: Mapping[str, Any]) -> bool:
        """Return True for a call that is spoiled."""
        if op != self.op:
            return False
        return not self.types or (tuple(types) == self.types and tuple(attrs.items()) == self.attrs)

    def takes_call(self, value: object) -> bool:
        """Return True for a call that is spoiled."""
        return isinstance(value, Call) and self.takes(value.op_name, [a.type for a in value.args], value.attrs)

    def __str__(self) -> str:
        return f"{self.op}{' of ' + ', '.join(map(repr, self.types)) if self.types else ''}"


@dataclass(frozen=True)
class Fault:
    """A fault. kind: one of KINDS. culprit: what `bisect` is to name, its kind and name."""

    kind: str
    target: Target
    culprit: tuple[str, str]
    arguments: Mapping[str, Any]


@contextmanager
def planted(kind: str, target: Target) -> Iterator[Fault]:
    """Plant a fault, and give the arguments of `compile` with which it shows."""
    if kind == "region":
        with _careless_library(target):
            yield Fault(kind, target, ("region", "dnnl."), {})
        return
    if kind in ("kernel", "nan"):
        factor = 0.5 if kind == "kernel" else float("nan")
        register_kernel(target.op, _spoiled(target.op, factor), name=NAME, accepts=_accepts(target))
        try:
            yield Fault(kind, target, ("kernel", target.op), {"backends": []})
        finally:
            unregister_kernel(NAME)
        return
    rewrite = {"pass": _negated, "crash": _killed, "shape": _doubled}[kind]
    pipeline = ky.get_default_pipeline("cpu").after("simplify", wrong_pass(target, rewrite))
    yield Fault(kind, target, ("pass", NAME), {"backends": [], "pipeline": pipeline})


def _accepts(target: Target) -> Callable[[Any, Any], bool]:
    return lambda types, attrs: target.takes(target.op, types, attrs)


def _spoiled(op: str, factor: float) -> Rule:
    """Return a rule that computes what the operator's does, times a factor where that is positive."""
    honest = find_rule(op)
    assert honest is not None, op

    def wrong(b: Any, *operands: Any, **attrs: Any) -> Any:
        result = honest.function(b, *operands, **attrs)
        assert not isinstance(result, tuple), op
        return b.compute(result.shape, lambda *i: result[i] * factor + result[i] * result[i] * (factor / 8))

    return Rule(wrong, honest.widen)


@contextmanager
def _careless_library(target: Target) -> Iterator[None]:
    """Have regions of oneDNN forget what follows a convolution or product of some types."""
    from kernelyard_dnnl.backend import DnnlSerializer

    honest = DnnlSerializer.visit_composite

    def careless(self: DnnlSerializer, composite: Function, call: Call) -> KernelNode:
        node = honest(self, composite, call)
        spoiled = any(target.takes_call(binding.value) for binding in composite.bindings)
        return replace(node, attrs={**node.attrs, "post_ops": []}) if spoiled else node

    DnnlSerializer.visit_composite = careless
    try:
        yield
    finally:
        DnnlSerializer.visit_composite = honest


# --- passes -----------------------------------------------------------------------------------------------------------
Rewrite = Callable[["_Wrong", Var, Call], Any]


def wrong_pass(target: Target, rewrite: Rewrite) -> Pass:
    """Return a pass that rewrites what a fault spoils, and infers the types anew."""

    def run(module: IRModule, context: object) -> IRModule:
        entries = module.entry_functions()
        changed = {name: _Wrong(target, rewrite).mutate(function) for name, function in entries.items()}
        return module.with_functions({name: new for name, new in changed.items() if new is not entries[name]})

    return module_pass(NAME)(run)


class _Wrong(FunctionMutator):
    def __init__(self, target: Target, rewrite: Rewrite) -> None:
        super().__init__()
        self.target = target
        self.wrong = rewrite

    def rewrite(self, var: Var, value: Any) -> Any:
        return self.wrong(self, var, value) if self.target.takes_call(value) else value


def _negated(mutator: _Wrong, var: Var, value: Call) -> Call:
    return Call(get_op("negative"), [mutator.emit(value, var.name, var.origin)])


def _doubled(mutator: _Wrong, var: Var, value: Call) -> Call:
    inner = mutator.emit(value, var.name, var.origin)
    return Call(get_op("concat"), [inner, inner], {"axis": 0})


def _killed(mutator: _Wrong, var: Var, value: Call) -> Call:
    os.kill(os.getpid(), signal.SIGSEGV)
    return value


# --- what is spoiled --------------------------------------------------------------------------------------------------
def layers_spoiled(case: Case, placed: IRModule, fault: Fault, first: bool) -> set[str]:
    """Return labels of the layers that `diff` may name: the nodes of calls that are spoiled.

    placed: the module as the fault meets it. first: only those that no spoiled value comes before; where an error is
    raised, the last one alone may be the cause. A call there may stand for several nodes of the model: those between
    its operands and its result.
    """
    spoiled: set[str] = set()
    behind: set[Var] = set()  # what is computed from something that is spoiled
    function = placed.functions["main"]
    assert isinstance(function, Function)
    for binding in function.bindings:
        read = [arg for arg in getattr(binding.value, "args", ()) if isinstance(arg, Var)]
        if first and behind.intersection(read):
            behind.add(binding.var)
        elif fault.target.takes_call(binding.value):
            last = _last_of_region(function, binding.var) if fault.kind == "region" else binding.var
            behind.add(last)
            spoiled |= _nodes_between(case, last.origin, {arg.origin for arg in read})
    return spoiled


def _last_of_region(function: Function, var: Var) -> Var:
    """Return the last of the elementwise ops after a value that nothing else reads: a library computes them with it."""
    while True:
        readers = [b for b in function.bindings if var in getattr(b.value, "args", ())]
        if len(readers) != 1 or getattr(readers[0].value, "op_name", "") not in FOLLOWING:
            return var
        var = readers[0].var


def _nodes_between(case: Case, origin: str, operands: set[str]) -> set[str]:
    made = {binding.var: binding.value for binding in case.function.bindings}
    found, waiting = {origin}, [var for var in made if var.origin == origin]
    while waiting:
        for arg in getattr(made.get(waiting.pop()), "args", ()):
            if isinstance(arg, Var) and arg.origin and arg.origin not in operands | found:
                found.add(arg.origin)
                waiting.append(arg)
    return found
