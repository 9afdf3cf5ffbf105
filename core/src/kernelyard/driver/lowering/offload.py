"""From placed IR to the backends' modules; what one fails on is offered to those that come after it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelyard.driver.lowering.fallbacks import attach_fallbacks
from kernelyard.driver.session.session import CompileSession
from kernelyard.errors import NoImplementationError
from kernelyard.ir import IRModule
from kernelyard.ir.visitor import callees, reachable_functions
from kernelyard.patterns.composite import CODEGEN, GLOBAL_SYMBOL
from kernelyard.patterns.registry import backend_of
from kernelyard.placement.nodes import CONTRACT_VIOLATION
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.sandbox.guard import progress, within_time
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.abi.threads import threads_of_a_run
from kernelyard.runtime.device.device import CPU
from kernelyard.runtime.report_entries import Reason, Violation
from kernelyard.target import Target
from kernelyard.transform.interprocedural.inline_functions import inline_functions
from kernelyard.transform.layout.border_agreement import BorderLayouts
from kernelyard.transform.partition.region import Codegen, Region
from kernelyard.transform.pipelines import codegen

_HERE = (None, platform.machine())  # architectures of targets for which modules can be prepared on this machine


def offload(session: CompileSession, placed: IRModule) -> tuple[IRModule, IRModule]:
    """Return the module as it is placed in the end, and with every region compiled.

    A backend is not asked again for what it has failed on, so that this ends.
    Raises: with `strict`, PluginContractError.
    """
    recorder, settings, later = session.recorder, session.placement, session.backends
    while True:
        known = len(recorder.violations)
        offloaded = _run_codegens(session, placed)
        failed = {symbol: violation for violation in recorder.violations[known:] for symbol in violation.functions}
        later = _backends_after(later, {violation.backend for violation in failed.values()})
        if not failed or not later:
            return placed, offloaded
        names = {backend.name for backend in later}
        excluded = tuple(name for name in settings.exclude_patterns if backend_of(name) in names)
        placed = partition(
            _inline_failed_regions(placed, failed, recorder), later, replace(settings, exclude_patterns=excluded)
        )


def _backends_after(backends: Sequence[Backend], failed: set[str]) -> tuple[Backend, ...]:
    """Return the backends that come after the first of the failed ones, and have not failed themselves."""
    first = next((i for i, backend in enumerate(backends) if backend.name in failed), -1)
    return tuple(backend for backend in backends[first + 1 :] if backend.name not in failed)


def _inline_failed_regions(placed: IRModule, failed: Mapping[str, Violation], recorder: Recorder) -> IRModule:
    """Return the module with failed regions as plain operators again, for each of which the failure is a reason."""
    for symbol, violation in failed.items():
        regions = placed.graph_functions().items()
        names = {n for n, f in regions if CODEGEN in f.attrs and f.attrs.get(GLOBAL_SYMBOL, n) == symbol}
        inner = names.union(*(callees(placed.graph_functions()[name]) for name in names))
        before = {binding.var for f in placed.entry_functions().values() for binding in f.bindings}
        placed = inline_functions(placed, inner)
        reason = Reason(violation.backend, "", CONTRACT_VIOLATION, violation.message)
        for function in placed.entry_functions().values():
            for binding in function.bindings:
                if binding.var not in before:
                    recorder.reasons.add(binding.var, getattr(binding.value, "op_name", ""), reason)
        others = tuple(name for name in placed.functions if name not in inner)
        placed = placed.without_functions(inner - reachable_functions(placed, others))
    return placed


def _run_codegens(session: CompileSession, module: IRModule) -> IRModule:
    """Run each backend's optimization and codegen of its regions; regions that it may refuse to run get fallbacks."""
    optimizers = {b.name: _limit_optimize(b) for b in session.backends if type(b).optimize is not Backend.optimize}
    refusable: dict[str, Region] = {}
    codegens = {backend.name: _preparing_codegen(session, backend, refusable) for backend in session.backends}
    layouts = {
        b.name: _limit_border_layouts(b)
        for b in session.backends
        if type(b).border_layouts is not Backend.border_layouts
    }
    passes = codegen(optimizers, codegens, session.options, session.recorder, session.strict, within_time, layouts)
    return attach_fallbacks(passes(module), refusable.values())


def _preparing_codegen(session: CompileSession, backend: Backend, refusable: dict[str, Region]) -> Codegen:
    """Return the backend's codegen, with the preparation of its module: what fails on that is not taken.

    refusable: gets the regions that the backend may refuse to run, by symbol.
    """

    def compile_regions(regions: list[Region], options: Mapping[str, Any]) -> RuntimeModule:
        module = backend.codegen(regions, options)
        refusable.update((region.symbol, region) for region in regions if backend.may_refuse(region))
        if isinstance(module, RuntimeModule):
            prepare(module, session.target, refusable)
        return module

    return compile_regions


def prepare(module: RuntimeModule, target: Target, refusable: Collection[str]) -> None:
    """Have a module prepare its functions, where it can run on this machine.

    refusable: functions that have a fallback. Where the library refuses one, it may accept it on another machine, and
    the runtime asks again. Raises: what the module's code raises.
    """
    if module.device_kind == CPU and target.arch not in _HERE:
        return
    threads = 1 if target.deterministic and not module.is_thread_invariant else threads_of_a_run()
    for symbol in module.symbols():
        try:
            module.prepare(symbol, {}, threads)
        except NoImplementationError:
            if symbol not in refusable:
                raise
        progress()


def _limit_border_layouts(backend: Backend) -> Callable[[Region], BorderLayouts | None]:
    """Wrap the `border_layouts` of a backend in a time limit."""

    def border_layouts(region: Region) -> BorderLayouts | None:
        what = f"asking {backend.name} for the layouts of a region"
        return within_time(what, lambda: backend.border_layouts(region), len(region.function.bindings))

    return border_layouts


def _limit_optimize(backend: Backend) -> Callable[[IRModule], IRModule]:
    """Wrap the `optimize` of a backend, which rewrites its own regions, in a time limit."""

    def optimize(region: IRModule) -> IRModule:
        count = sum(len(function.bindings) for function in region.graph_functions().values())
        return within_time(f"rewriting a region by {backend.name}", lambda: backend.optimize(region), count)

    return optimize
