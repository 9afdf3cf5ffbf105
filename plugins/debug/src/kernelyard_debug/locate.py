"""Locate a wrong result in the compiler: the pass, the backend's region or the generated kernel that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from kernelyard.errors import KernelyardError
from kernelyard.ir import BaseFunction, Call, Function, GlobalVar, IRModule
from kernelyard.ops.interpreter import run
from kernelyard.patterns.composite import CODEGEN, COMPOSITE, GLOBAL_SYMBOL, op_names
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.tir import PrimFunc
from kernelyard.transform.pass_infra.pass_base import Instrument, Pass, Sequential
from kernelyard_debug.case import Case, record
from kernelyard_debug.halving import least_by_halves
from kernelyard_debug.isolation import Announce
from kernelyard_debug.outcome import Place

CODEGEN_PASS = "RunCodegen"
STEP = "step "  # before the place of a step that is announced
Departs = Callable[[np.ndarray, np.ndarray], bool]


class Snapshot(NamedTuple):
    """The module after a pass that changed it."""

    pass_name: str
    module: IRModule


class Snapshots(Instrument):
    """Keeps the module after every pass that changed it; modules are immutable, so that this costs nothing."""

    def __init__(self) -> None:
        self.taken: list[Snapshot] = []

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        if after is not before and not isinstance(pass_, Sequential):
            self.taken.append(Snapshot(pass_.name, after))

    @property
    def before_codegen(self) -> Sequence[Snapshot]:
        """The snapshots up to where backends compile their regions, or kernels are generated."""
        names = [snapshot.pass_name for snapshot in self.taken]
        ends = [names.index(name) for name in (CODEGEN_PASS, "legalize_ops") if name in names]
        return self.taken[: min(ends, default=len(names))]

    @property
    def functions(self) -> Mapping[str, BaseFunction]:
        """All functions that there were: what the symbols of a program's steps stand for, last form last."""
        return {name: function for snapshot in self.taken for name, function in snapshot.module.functions.items()}


def wrong_pass(
    case: Case, snapshots: Sequence[Snapshot], expected: Sequence[np.ndarray], departs: Departs
) -> Place | None:
    """Return the first pass after which the module means something else, by halving; None where none does."""

    def is_wrong(count: int) -> bool:
        return count > 0 and _means_other(snapshots[count - 1].module, case, expected, departs)

    if not is_wrong(len(snapshots)):
        return None
    return Place("pass", snapshots[least_by_halves(0, len(snapshots), is_wrong) - 1].pass_name)


def _means_other(module: IRModule, case: Case, expected: Sequence[np.ndarray], departs: Departs) -> bool:
    try:
        with np.errstate(all="ignore"):
            found = run(module, case.feeds)
    except (KernelyardError, ArithmeticError, IndexError, TypeError, ValueError, KeyError):
        return True  # a module that cannot be evaluated any more
    return len(found) != len(expected) or any(map(departs, found, expected))


def wrong_step(exe: Executable, case: Case, snapshots: Snapshots, departs: Departs) -> Place | None:
    """Return the first step whose result is not that of the model's node after which it is called."""
    placed = snapshots.before_codegen[-1].module if snapshots.before_codegen else case.module
    recorded = record(Case(placed, case.feeds))
    truth = {var.origin: array for var, array in recorded.items() if var.origin}
    wrong: list[Any] = []

    def instrument(step: Any, name: str, before_run: bool, ret_value: Any, *args: Any) -> None:
        if before_run or wrong or len(ret_value) != 1 or step.label not in truth:
            return
        found, expected = ret_value[0].numpy(), truth[step.label]
        if found.shape == expected.shape and departs(found, expected):
            wrong.append(step)

    _run_watched(exe, case, instrument)
    steps = [step for program in exe.programs.values() for step in program.steps]
    culprit = wrong[0] if wrong else steps[0] if len(steps) == 1 else None
    return describe_step(exe, culprit, snapshots) if culprit is not None else None


def announce_steps(exe: Executable, case: Case, snapshots: Snapshots, announce: Announce) -> None:
    """Run a program, and say before each step which it is."""

    def instrument(step: Any, name: str, before_run: bool, ret_value: Any, *args: Any) -> None:
        if before_run:
            announce(STEP + json.dumps(asdict(describe_step(exe, step, snapshots))))

    _run_watched(exe, case, instrument)


def find_announced_step(stage: str) -> Place | None:
    """Return the place of the step that was announced, if a stage is one."""
    if not stage.startswith(STEP):
        return None
    facts: dict[str, Any] = json.loads(stage.removeprefix(STEP))
    facts.update({key: tuple(value) for key, value in facts.items() if isinstance(value, list)})
    return Place(**facts)


def _run_watched(exe: Executable, case: Case, instrument: Callable[..., Any]) -> None:
    machine = VirtualMachine(exe, contexts=1)
    machine.set_instrument(instrument)
    machine.run(exe.main.name, dict(case.feeds))


def describe_step(exe: Executable, step: Any, snapshots: Snapshots) -> Place:
    """Return the region or kernel that a step of a program runs."""
    kind = exe.modules[step.module].kind
    function = snapshots.functions.get(step.symbol) or _region(step.symbol, snapshots.functions)
    if isinstance(function, PrimFunc):
        return Place("kernel", kind, (), tuple(function.attrs.get("ops", ())), step.symbol)
    if not isinstance(function, Function):
        return Place("kernel", kind, symbol=step.symbol)
    callees = [
        b.value.op.name for b in function.bindings if isinstance(b.value, Call) and isinstance(b.value.op, GlobalVar)
    ]
    composites = [snapshots.functions[name] for name in callees if name in snapshots.functions]
    patterns = tuple(dict.fromkeys(str(each.attrs[COMPOSITE]) for each in composites if COMPOSITE in each.attrs))
    ops = tuple(op for each in (composites or [function]) if isinstance(each, Function) for op in op_names(each))
    return Place("region", str(function.attrs.get(CODEGEN, kind)), patterns, ops, step.symbol)


def _region(symbol: str, functions: Mapping[str, BaseFunction]) -> BaseFunction | None:
    return next((each for each in functions.values() if each.attrs.get(GLOBAL_SYMBOL) == symbol), None)
