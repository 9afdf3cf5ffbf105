"""partition: offer a module to backends, one after another."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kernelyard.collector import collector_paused
from kernelyard.errors import OptionError, PluginContractError, describe, did_you_mean
from kernelyard.ir import IRModule
from kernelyard.ir.verify import verify
from kernelyard.patterns.dequantized import narrow_weights
from kernelyard.patterns.op_rules import op_rule_patterns
from kernelyard.patterns.registry import FusionPattern, get_patterns
from kernelyard.placement.epilogues import release_epilogues
from kernelyard.placement.float_weights import FloatWeights, split
from kernelyard.placement.near_misses import record_near_misses
from kernelyard.placement.prune import RegionAcceptance, merge_regions
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.sandbox.guard import within_time
from kernelyard.target import Target, as_target
from kernelyard.transform.partition.snapshot import Snapshot
from kernelyard.transform.pipelines import get_pipeline, match

log = logging.getLogger(__name__)


def partition(module: IRModule, backends: Sequence[Backend], settings: PlacementSettings | None = None) -> IRModule:
    """Return the module with regions for each backend in turn; an op belongs to the first that accepts it.

    A backend whose own code fails is recorded as having broken its contract and left out; with `strict` that raises.
    Raises: PluginContractError, OptionError for the name of a pattern that no backend has.
    """
    settings = settings or PlacementSettings()
    recorder = settings.recorder
    names: list[str] = []
    for backend in backends:
        attempt = recorder.branch()  # so that what a failing backend had accepted is not recorded
        before = Snapshot(module)
        try:
            patterns = _patterns(backend, settings.target)
            names += [pattern.name for pattern in patterns]
            with collector_paused():
                acceptance = RegionAcceptance(backend, settings.policy)
                placed = _check_in_time(acceptance, module, patterns, settings, attempt)
            if (changed := before.violation()) is not None:
                raise changed
            if settings.strict and len(attempt.violations) > len(recorder.violations):
                raise PluginContractError(attempt.violations[-1].message)
        except Exception as error:  # a vendor's code
            cause = before.violation() or error
            broken = _contract_error(backend, cause, recorder.label_of(backend.name))
            if settings.strict:
                raise broken from error
            log.warning("the backend %s failed while it was offered the model", backend.name, exc_info=True)
            recorder.record_violation(backend.name, (), str(broken))
        else:
            module = placed
            recorder.adopt(attempt)
    _check_excluded(settings.exclude_patterns, names)
    return module


def _patterns(backend: Backend, target: Target) -> tuple[FusionPattern, ...]:
    """Return what scripts registered for the backend, then its own patterns, then rules for single operators."""
    own = within_time(f"asking {backend.name} for patterns", lambda: tuple(backend.patterns(target)))
    _check_owner(backend, own)
    return (*get_patterns(backend.name), *own, *op_rule_patterns(backend.name))


def _check_in_time(
    acceptance: RegionAcceptance,
    module: IRModule,
    patterns: Sequence[FusionPattern],
    settings: PlacementSettings,
    recorder: Recorder,
) -> IRModule:
    """Run all of a backend's checks in one limited time: a limit for each would take longer than most checks do."""
    count = sum(len(function.bindings) for function in module.graph_functions().values())
    what = f"offering the model to {acceptance.backend.name}"
    return within_time(what, lambda: _offer(module, acceptance, patterns, settings, recorder), count)


def partition_for(
    backend: str,
    module: IRModule,
    params: Mapping[str, Any] | None = None,
    *,
    bind_constants: bool = True,
    target: Target | str | None = None,
    recorder: Recorder | None = None,
) -> IRModule:
    """Return the module with regions for one installed backend, for scripts that put the stages together themselves.

    Parameters become constants, the module is simplified, so that a batch norm goes into the convolution before it,
    then it is partitioned. Call it once for each backend, most wanted first.
    `kernelyard.placement.partition_for_<name>(module)` is the same.
    params: arrays by the name of a parameter of @main, or of the only entry function. bind_constants: False makes
    constants arguments of the regions. target: by default the first kind that the backend is for.
    Raises: UnknownBackendError, BackendUnavailableError, PassError for params that do not fit.
    """
    manager = get_manager()
    if target is None:
        kinds = [info.targets for info in manager.infos() if info.name == backend and info.targets]
        target = kinds[0][0] if kinds else "cpu"
    settings = PlacementSettings(as_target(target), recorder or Recorder(), bind_constants=bind_constants)
    chosen = manager.get(backend, "backend", settings.target.kind)
    simplified = get_pipeline("simplify")(_with_params(module, params or {}))
    return partition(get_pipeline("quantized")(simplified), [chosen], settings)


def _with_params(module: IRModule, params: Mapping[str, Any]) -> IRModule:
    if not params:
        return module
    from kernelyard.transform.interprocedural.bind_params import BindParams  # inside: the driver binds none

    entries = tuple(module.entry_functions())
    function = entries[0] if len(entries) == 1 else "main"
    return BindParams(function, params)(module)


def _offer(
    module: IRModule,
    acceptance: RegionAcceptance,
    patterns: Sequence[FusionPattern],
    settings: PlacementSettings,
    recorder: Recorder,
) -> IRModule:
    backend, excluded = acceptance.backend, frozenset(settings.exclude_patterns)
    wanted = [pattern for pattern in patterns if pattern.name not in excluded]
    recorder.record_offer(backend.name, patterns)
    prepared = _prepare(backend, module)
    checked, annotate = acceptance.wrap_checks(wanted), not backend.merge_composites
    weights = FloatWeights()
    fused = _match(prepared, weights, checked, annotate, settings, recorder)
    left_out = [pattern for pattern in patterns if pattern.name in excluded]
    record_near_misses(prepared, fused, backend.name, wanted, left_out, recorder)
    fused = release_epilogues(fused, acceptance.policy, {pattern.name: pattern for pattern in wanted}, recorder)
    # A region that is not wanted gives back products with the weights that it was offered.
    return weights.restore(merge_regions(fused, acceptance, wanted, recorder)) if backend.merge_composites else fused


def _match(
    module: IRModule,
    weights: FloatWeights,
    patterns: Sequence[FusionPattern],
    annotate: bool,
    settings: PlacementSettings,
    recorder: Recorder,
) -> IRModule:
    """Lift what patterns match; of products with quantized weights, those of integers come first."""

    def match_patterns(module: IRModule, patterns: Sequence[FusionPattern]) -> IRModule:
        return match(patterns, annotate, recorder, settings.bind_constants)(module)

    if not any(narrow_weights(function) for function in module.entry_functions().values()):
        return match_patterns(module, patterns)
    of_integers, others = split(patterns)
    return weights.restore(match_patterns(weights.fold(match_patterns(module, of_integers)), others))


def _prepare(backend: Backend, module: IRModule) -> IRModule:
    """Run the backend's `prepare` and verify its result, before any other code reads it."""
    prepared = backend.prepare(module)
    if prepared is not module:
        if not isinstance(prepared, IRModule):
            raise PluginContractError("prepare returned no IRModule", found=type(prepared).__name__)
        verify(prepared)
        _check_interface(module, prepared)
    return prepared


def _check_interface(before: IRModule, after: IRModule) -> None:
    """Check that entry functions keep their signatures. Raises: PluginContractError."""
    expected, found = _interface(before), _interface(after)
    if found != expected:
        name = next(name for name in {**expected, **found} if expected.get(name) != found.get(name))
        raise PluginContractError(
            f"prepare changed the signature of @{name}",
            found=found.get(name, "no such function"),
            expected=expected.get(name, "no such function"),
        )


def _interface(module: IRModule) -> dict[str, str]:
    functions = module.entry_functions().items()
    return {name: f"{[param.type for param in f.params]} -> {f.result_type!r}" for name, f in functions}


def _check_owner(backend: Backend, patterns: Sequence[FusionPattern]) -> None:
    others = [pattern for pattern in patterns if not isinstance(pattern, FusionPattern)]
    if others:
        raise PluginContractError(f"{backend.name} offers what is no FusionPattern: {others[0]!r}")
    foreign = [pattern.name for pattern in patterns if pattern.backend != backend.name]
    if foreign:
        raise PluginContractError(
            f"{backend.name} offers patterns of another backend",
            found=", ".join(foreign),
            expected=f"names that start with '{backend.name}.'",
        )


def _check_excluded(excluded: Sequence[str], names: Sequence[str]) -> None:
    for name in excluded:
        if name not in names:
            raise OptionError(
                f"exclude_patterns names {name!r}, which no backend that takes part has",
                expected=", ".join(names) or "nothing: no backend takes part",
                hint=did_you_mean(name, names),
            )


def _contract_error(backend: Backend, error: Exception, label: str) -> PluginContractError:
    return PluginContractError(
        f"the backend {backend.name} failed while it was offered the model: {describe(error)}",
        where=label if label != backend.name else None,
        hint="report this to the plugin's authors; exclude the backend to continue",
    )
