"""Oracles: what has to hold of every graph. Those that say most about a failure's place come first."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

import kernelyard as ky
import kernelyard.tir.interpreter  # PrimFuncs are evaluated too
from kernelyard.driver.compile import place, simplify, watch_passes
from kernelyard.driver.session.session import open_session
from kernelyard.errors import KernelyardError, PerformanceWarning, ShapeError
from kernelyard.ir import IRModule, parse_module, to_text, verify
from kernelyard.ops.interpreter import run
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.report import Report
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.transform.compile_pipeline import CompilePipeline
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES
from kernelyard.transform.pass_infra.pass_base import Instrument, Pass, Sequential
from kernelyard_fuzz.bound import Expected, compute_expected
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.configuration import Configuration
from kernelyard_fuzz.costs import DECLINED, Cost, cost_of
from kernelyard_fuzz.drawn_patterns import check_drawn
from kernelyard_fuzz.drawn_plans import check_plans
from kernelyard_fuzz.drawn_regions import check_regions
from kernelyard_fuzz.errors import FoundError, UndefinedError
from kernelyard_fuzz.graphs import Graph
from kernelyard_fuzz.programs import check_called, check_explained, check_saved, no_violation, run_program, same_bits
from kernelyard_fuzz.sketch import COMPUTE_ERRORS, is_tame
from kernelyard_fuzz.spliced import check_spliced
from kernelyard_fuzz.symbolic import resize_feeds, symbols, with_symbols
from kernelyard_fuzz.twins import twin

Built = TypeVar("Built")
# Of the reference with other rounding, one after the other, before a result is called wrong. Most need none.
RUNS = (4, 24, 96)


@dataclass
class Taken:
    """Count what took part in compiles: passes that changed something, patterns, codes of declines, kernels.

    costs: of the last graph, by stage.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    costs: dict[str, Cost] = field(default_factory=dict)

    def note(self, kind: str, name: str) -> None:
        """Count one."""
        self.counts[kind, name] += 1

    def note_report(self, report: Any) -> None:
        """Count what a report says."""
        for region in report.regions:
            self.note("pattern", region.pattern)
        declines = Counter(f"{declined.backend}: {declined.code}" for declined in report.declined)
        for name, count in declines.items():
            self.counts["decline", name] += count
            self.costs[f"{DECLINED}{name}"] = Cost(count)
        for kernel in report.kernels:
            for op in kernel.ops:
                self.note("kernel", op)


class _Watching(Instrument):
    """Verify the module after each pass that changed it, and interpret it after each stage, or after each pass.

    Loop-level functions, whose evaluation takes longest, and what libraries compiled are interpreted after each pass
    alone: programs that are run say whether these are right. found: what is wrong, whatever the compiler makes of it.
    """

    def __init__(self, wanted: _Wanted, taken: Taken, each_pass: bool) -> None:
        self._wanted, self._taken, self._each_pass = wanted, taken, each_pass
        self._known = wanted.graph.module
        self.found: FoundError | None = None

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        if isinstance(pass_, Sequential):
            if depth == 0 and not self._each_pass:
                self._taken.costs[pass_.name] = cost_of(after)
            if depth == 0 and after is not self._known and not self._each_pass and not _is_lowered(after):
                self._known = after
                self._interpret(after, pass_.name)
            return
        if after is before:
            return
        self._taken.note("pass", pass_.name)
        try:
            verify(after)
        except KernelyardError as error:
            raise self._end(FoundError("pass", "malformed", str(error), pass_.name)) from error
        if self._each_pass:
            self._interpret(after, pass_.name)

    def _interpret(self, module: IRModule, name: str) -> None:
        try:
            with np.errstate(all="ignore"):
                outputs = run(module, list(self._wanted.graph.feeds))
        except (KernelyardError, ArithmeticError, IndexError, TypeError, ValueError) as error:
            raise self._end(FoundError("pass", "error", f"{type(error).__name__}: {error}", name)) from error
        try:
            self._wanted.check("pass", outputs)
        except FoundError as found:
            found.place = name
            raise self._end(found) from found

    def _end(self, found: FoundError) -> _Wrong:
        self.found = self.found or found
        return _Wrong(str(found))


def _is_lowered(module: IRModule) -> bool:
    return EXTERNAL_MODULES in module.attrs or any(isinstance(f, PrimFunc) for f in module.functions.values())


class _Wrong(BaseException):
    """End a compile: it passes by what the compiler makes of errors in passes, though not by guards of plugins."""


class _Wanted:
    """Hold what a graph has to give."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.results: Sequence[Expected] = compute_expected(graph.module, graph.feeds, runs=0)
        self._left = list(RUNS)

    def check(self, oracle: str, outputs: Sequence[np.ndarray]) -> None:
        """Compare outputs. Raises: FoundError, UndefinedError."""
        if len(outputs) != len(self.results):
            raise FoundError(oracle, "shape", f"{len(outputs)} outputs in place of {len(self.results)}")
        share, at = self._worst(outputs)
        while share > 1 and self._left:
            self._allow_more()
            share, at = self._worst(outputs)
        if share > 1:
            actual, wanted = outputs[at], self.results[at]
            if actual.shape != wanted.value.shape or actual.dtype.name != wanted.dtype:
                message = f"{actual.shape} {actual.dtype.name} in place of {wanted.value.shape} {wanted.dtype}"
                raise FoundError(oracle, "shape", f"output {at}: {message}")
            kind = "nan" if np.isnan(actual.astype(np.float64)).any() else "values"
            raise FoundError(
                oracle, kind, f"output {at} {wanted.dtype}{list(actual.shape)}: {share:.3g} times the bound"
            )

    def is_defined(self) -> bool:
        """Return False where rounding decides whether there is a result."""
        try:
            while self._left:
                self._allow_more()
        except UndefinedError:
            return False
        return True

    def _allow_more(self) -> None:
        """Allow for what further runs of the reference show. Raises: UndefinedError."""
        more = compute_expected(self.graph.module, self.graph.feeds, self._left[0], seed=len(RUNS) - len(self._left))
        self.results = [
            one._replace(slack=np.fmax(one.slack, other.slack)) for one, other in zip(self.results, more, strict=True)
        ]
        del self._left[0]

    def _worst(self, outputs: Sequence[np.ndarray]) -> tuple[float, int]:
        shares = [(each.worst(output), at) for at, (each, output) in enumerate(zip(self.results, outputs, strict=True))]
        return max(shares, default=(0.0, 0))


def check(graph: Graph, how: Configuration, chooser: Chooser, taken: Taken) -> None:
    """Ask the oracles about a graph that a configuration says. Raises: FoundError."""
    taken.costs = {}
    wanted = _Wanted(graph)
    try:
        _ask_oracles(wanted, how, chooser, taken)
    except (FoundError, UndefinedError, KernelyardError, *COMPUTE_ERRORS):
        if wanted.is_defined():
            raise
        taken.note("oracle", "undefined")


def _ask_oracles(wanted: _Wanted, how: Configuration, chooser: Chooser, taken: Taken) -> None:
    graph = wanted.graph
    taken.note("oracle", "reference")
    if how.text:
        _text(graph.module)
    wanted.check("reference", run(graph.module, list(graph.feeds)))
    check_spliced(graph.module, graph.spliced)
    if how.drawn:
        check_drawn(chooser, graph.module)
        check_regions(chooser)
        check_plans(chooser)
    module = _vary_module(graph, how, wanted, chooser, taken)
    if how.compiled:
        _compile_and_run(module, how, wanted, chooser, taken)
    else:
        taken.note_report(_build_watched(place_module, module, how, wanted, taken))


def _vary_module(graph: Graph, how: Configuration, wanted: _Wanted, chooser: Chooser, taken: Taken) -> IRModule:
    """Return the module that is compiled: the graph's, or its twin's, with symbols in place of sizes or without."""
    module = graph.module
    other = twin(chooser, module) if how.twin else None
    if other is not None:
        taken.note("twin", other.rule)
        wanted.check(f"twin {other.rule}: reference", run(other.module, list(graph.feeds)))
        module = other.module
    symbolic = with_symbols(chooser, module) if how.symbolic else None
    if symbolic is not None:
        taken.note("oracle", "symbolic")
        wanted.check("symbolic reference", run(symbolic, list(graph.feeds)))
    return symbolic or module


def _compile_and_run(module: IRModule, how: Configuration, wanted: _Wanted, chooser: Chooser, taken: Taken) -> None:
    """Compile a module, run it, and ask what there is to ask of a program."""
    feeds = wanted.graph.feeds
    exe = _build_watched(ky.compile, module, how, wanted, taken)
    taken.note("oracle", "run")
    taken.note_report(exe.report)
    taken.costs["kernels"] = Cost(len(exe.report.kernels))
    no_violation(exe)
    exe.threads = how.threads
    outputs = run_program("run", exe, feeds)
    try:
        wanted.check("run", outputs)
    except FoundError:
        _build_watched(ky.compile, module, replace(how, each_pass=True), wanted, taken)  # finds the pass, if it was one
        raise
    same_bits("again", outputs, run_program("again", exe, feeds))
    check_called(exe, module, feeds, outputs)
    if how.deterministic:
        taken.note("oracle", "threads")
        exe.threads = 1 + how.threads % 3
        same_bits("threads", outputs, run_program("threads", exe, feeds))
    if how.again or how.saved:
        taken.note("oracle", "bytes" if how.again else "saved")
        check_saved(exe, module, how, feeds, outputs)
    if how.explained:
        taken.note("oracle", "explain")
        check_explained(exe, module, how)
    if symbols(module):
        _run_resized(exe, module, chooser, feeds, taken)


def _run_resized(
    exe: Executable, module: IRModule, chooser: Chooser, feeds: Sequence[np.ndarray], taken: Taken
) -> None:
    """Run a program with other sizes than those that its graph was made with."""
    others = resize_feeds(chooser, module, feeds)
    try:
        wanted = _Wanted(Graph(module, others)) if others else None
    except (KernelyardError, *COMPUTE_ERRORS):
        return  # these sizes mean nothing here
    if wanted is None or not all(is_tame(each.value) for each in wanted.results):
        return
    try:
        wanted.check("resized", run_program("resized", exe, others))
    except (FoundError, UndefinedError) as found:
        # An operator may need sizes to agree that its reference does not mind: the program says so.
        if isinstance(found.__cause__, ShapeError) or not wanted.is_defined():
            return
        raise
    taken.note("oracle", "resized")


def _text(module: IRModule) -> None:
    text = to_text(module)
    if to_text(parse_module(text)) != text:
        raise FoundError("text", "values", "the module's text is read as another module")


def place_module(
    module: IRModule,
    target: Target,
    backends: Sequence[str] | str,
    instruments: Sequence[Instrument],
    pipeline: CompilePipeline | None = None,
) -> Report:
    """Bring a module to where backends have taken their parts, as `explain` does, which then plans kernels, too."""
    session = open_session(target, backends, strict=True, pipeline=pipeline)
    with watch_passes(session, instruments):
        return session.report(place(session, simplify(session, module)), session.generator)


def _build_watched(
    build: Callable[..., Built], module: IRModule, how: Configuration, wanted: _Wanted, taken: Taken
) -> Built:
    """Compile or explain a module under watch. What is wrong after a stage is looked for after each pass of it."""
    if how.each_pass:
        taken.note("oracle", "pass")
    watching = _Watching(wanted, taken, how.each_pass)
    built: Built | None = None
    failed: BaseException | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            built = build(module, **how.arguments(), instruments=[watching])
    except (_Wrong, Exception) as error:  # whatever it is, the compiler raised it on a valid module
        failed = error
    if watching.found is not None:
        if not how.each_pass:
            _build_watched(build, module, replace(how, each_pass=True), wanted, taken)
        raise watching.found
    if built is None:
        raise FoundError("compile", "error", f"{type(failed).__name__}: {failed}") from failed
    return built
