"""Oracles: what has to hold of every graph. Those that say most about a failure's place come first."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kernelyard as ky
import kernelyard.tir.interpreter  # PrimFuncs are evaluated too
from kernelyard.errors import KernelyardError, PerformanceWarning
from kernelyard.ir import IRModule, parse_module, to_text, verify
from kernelyard.ops.interpreter import run
from kernelyard.runtime.execute.executable import Executable
from kernelyard.transform.pass_base import Instrument, Pass, Sequential
from kernelyard_fuzz.bound import Expected, expected
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.configuration import Configuration
from kernelyard_fuzz.graphs import Graph
from kernelyard_fuzz.symbolic import with_symbols
from kernelyard_fuzz.twins import twin

CERTAIN_RUNS = 24  # of the reference, before a result is called wrong


class FoundError(Exception):
    """Something does not hold. oracle: what was asked; kind: "values", "shape", "error", ...; place: a pass."""

    def __init__(self, oracle: str, kind: str, message: str, place: str = "") -> None:
        super().__init__(message)
        self.oracle, self.kind, self.message, self.place = oracle, kind, message, place


@dataclass
class Fired:
    """Count what took part in compiles: passes that changed something, patterns, codes of declines, kernels."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def note(self, kind: str, name: str) -> None:
        """Count one."""
        self.counts[kind, name] += 1

    def note_report(self, report: Any) -> None:
        """Count what a report says."""
        for region in report.regions:
            self.note("pattern", region.pattern)
        for declined in report.declined:
            self.note("decline", f"{declined.backend}: {declined.code}")
        for kernel in report.kernels:
            for op in kernel.ops:
                self.note("kernel", op)


class _AfterEachPass(Instrument):
    """Verifies and interprets the module after each pass that changed it."""

    def __init__(self, wanted: _Wanted, fired: Fired) -> None:
        self._wanted, self._fired = wanted, fired

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        if after is before or isinstance(pass_, Sequential):
            return
        self._fired.note("pass", pass_.name)
        try:
            verify(after)
        except KernelyardError as error:
            raise _Wrong(FoundError("pass", "malformed", str(error), pass_.name)) from error
        try:
            with np.errstate(all="ignore"):
                outputs = run(after, list(self._wanted.graph.feeds))
        except (KernelyardError, ArithmeticError, IndexError, TypeError, ValueError) as error:
            raise _Wrong(FoundError("pass", "error", f"{type(error).__name__}: {error}", pass_.name)) from error
        try:
            self._wanted.check("pass", outputs)
        except FoundError as found:
            found.place = pass_.name
            raise _Wrong(found) from found


class _Wrong(BaseException):  # passes by what the compiler makes of errors in passes
    def __init__(self, found: FoundError) -> None:
        super().__init__()
        self.found = found


class _Wanted:
    """Hold what a graph has to give."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.results: Sequence[Expected] = expected(graph.module, graph.feeds)
        self.is_certain = False

    def check(self, oracle: str, outputs: Sequence[np.ndarray]) -> None:
        """Compare outputs. Raises: FoundError."""
        if len(outputs) != len(self.results):
            raise FoundError(oracle, "shape", f"{len(outputs)} outputs in place of {len(self.results)}")
        worst = self._worst(outputs)
        if worst[0] > 1 and not self.is_certain:
            more = expected(self.graph.module, self.graph.feeds, CERTAIN_RUNS, seed=1)
            self.results = [
                Expected(one.value, np.fmax(one.slack, other.slack), one.dtype)
                for one, other in zip(self.results, more, strict=True)
            ]
            self.is_certain = True
            worst = self._worst(outputs)
        if worst[0] > 1:
            share, at = worst
            actual, wanted = outputs[at], self.results[at]
            if actual.shape != wanted.value.shape or actual.dtype.name != wanted.dtype:
                message = f"{actual.shape} {actual.dtype.name} in place of {wanted.value.shape} {wanted.dtype}"
                raise FoundError(oracle, "shape", f"output {at}: {message}")
            kind = "nan" if np.isnan(actual.astype(np.float64)).any() else "values"
            raise FoundError(
                oracle, kind, f"output {at} {wanted.dtype}{list(actual.shape)}: {share:.3g} times the bound"
            )

    def _worst(self, outputs: Sequence[np.ndarray]) -> tuple[float, int]:
        shares = [(each.worst(output), at) for at, (each, output) in enumerate(zip(self.results, outputs, strict=True))]
        return max(shares, default=(0.0, 0))


def check(graph: Graph, how: Configuration, chooser: Chooser, fired: Fired) -> None:
    """Ask every oracle about a graph in a configuration. Raises: FoundError."""
    wanted = _Wanted(graph)
    _text(graph.module)
    wanted.check("reference", run(graph.module, list(graph.feeds)))
    module = (with_symbols(chooser, graph.module) if how.symbolic else None) or graph.module
    if module is not graph.module:
        fired.note("oracle", "symbolic")
        wanted.check("symbolic reference", run(module, list(graph.feeds)))
    exe = _compiled(module, how, wanted, fired)
    fired.note_report(exe.report)
    _no_violation(exe)
    exe.threads = how.threads
    outputs = _run("run", exe, graph.feeds)
    wanted.check("run", outputs)
    _same_bits("again", outputs, _run("again", exe, graph.feeds))
    if how.deterministic:
        exe.threads = 1 + how.threads % 3
        _same_bits("threads", outputs, _run("threads", exe, graph.feeds))
    if how.again or how.saved:
        _saved(exe, module, how, graph, outputs)
    if how.explained:
        _explained(exe, module, how)
    other = twin(chooser, graph.module)
    if other is not None:
        fired.note("twin", other.rule)
        wanted.check(f"twin {other.rule}: reference", run(other.module, list(graph.feeds)))
        if chooser.chance(30):
            again = _compiled(other.module, how, wanted, fired)
            wanted.check(f"twin {other.rule}", _run("twin", again, graph.feeds))


def _text(module: IRModule) -> None:
    text = to_text(module)
    if to_text(parse_module(text)) != text:
        raise FoundError("text", "values", "the module's text is read as another module")


def _compiled(module: IRModule, how: Configuration, wanted: _Wanted, fired: Fired) -> Executable:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            return ky.compile(module, **how.arguments(), instruments=[_AfterEachPass(wanted, fired)])
    except _Wrong as wrong:
        raise wrong.found from None
    except Exception as error:  # whatever it is, the compiler raised it on a valid module
        raise FoundError("compile", "error", f"{type(error).__name__}: {error}") from error


def _run(oracle: str, exe: Executable, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    try:
        result = exe(*feeds)
    except Exception as error:  # likewise of a program
        raise FoundError(oracle, "error", f"{type(error).__name__}: {error}") from error
    return [tensor.numpy() for tensor in (result if isinstance(result, tuple) else (result,))]


def _no_violation(exe: Executable) -> None:
    for violation in exe.report.violations:
        raise FoundError("contract", "error", f"{violation.backend}: {violation.message}")


def _same_bits(oracle: str, one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> None:
    for at, (a, b) in enumerate(zip(one, other, strict=True)):
        if a.tobytes() != b.tobytes():
            raise FoundError(oracle, "values", f"output {at} has other bits")


def _saved(exe: Executable, module: IRModule, how: Configuration, graph: Graph, outputs: Sequence[np.ndarray]) -> None:
    data = exe.to_bytes()
    if how.again:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            if ky.compile(module, **how.arguments()).to_bytes() != data:
                raise FoundError("bytes", "values", "compiled again, it is saved as other bytes")
    if how.saved:
        loaded = ky.load(data)
        loaded.threads = how.threads
        _same_bits("saved", outputs, _run("saved", loaded, graph.feeds))


def _explained(exe: Executable, module: IRModule, how: Configuration) -> None:
    said = ky.explain(module, **how.arguments())
    if said.placed != exe.report.placed or said.regions != exe.report.regions or said.declined != exe.report.declined:
        raise FoundError("explain", "values", "explain says something else than compile does")
