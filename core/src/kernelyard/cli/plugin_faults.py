"""Find what is wrong with plugins that are active: what they can never do, and what they make everybody wait for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from kernelyard.errors import BackendUnavailableError, KernelyardError, PluginError
from kernelyard.patterns.registry import FusionPattern
from kernelyard.plugins.discovery.manager import BackendInfo, get_manager
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.sandbox import sandbox_probe
from kernelyard.plugins.sandbox.guard import run_guarded
from kernelyard.runtime.abi.api_range import RUNTIME_API, check_runtime_api
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.device.device import GROUP, device_kinds
from kernelyard.runtime.installed.entry_points import EntryPoint, distribution_of
from kernelyard.target import Target

SLOW_SECONDS = 2.0  # that import, hooks and probe may take together; every compile waits for them


def faults_of(info: BackendInfo) -> list[str]:
    """List the faults that make an active plugin useless, a sentence each."""
    faults = [] if info.provides else ["its manifest provides nothing: it is never used"]
    if "backend" in info.provides:
        faults += _pattern_faults(info)
    undriven = [kind for kind in info.targets if kind not in device_kinds()]
    return faults + [f"for {k}, whose devices no installed plugin drives (entry point of {GROUP})" for k in undriven]


def notes_of(info: BackendInfo, runtime_halves: Sequence[EntryPoint]) -> list[str]:
    """List warnings for the authors of a plugin, a sentence each."""
    notes: list[str] = []
    if info.seconds > SLOW_SECONDS:
        notes.append(f"its import took {info.seconds:.1f} s, more than {SLOW_SECONDS:g} s: import libraries when used")
    needs_half = {"backend", "code_generator"} & set(info.provides)
    if needs_half and all(distribution_of(entry)[0] != info.dist for entry in runtime_halves):
        notes.append(
            f"it has no entry point of the group 'kernelyard.runtime': "
            f"modules of kind {info.name!r} cannot be saved, those of the core's kinds can"
        )
    return notes


def runtime_half_faults(entries: Sequence[EntryPoint]) -> list[str]:
    """Return for each runtime half why it cannot load modules, "" where nothing is against it.

    What was written for this runtime API is probed in a subprocess, then imported.
    """
    faults = list(map(_api_fault, entries))
    fitting = [entry for entry, fault in zip(entries, faults, strict=True) if not fault]
    verdicts = iter(sandbox_probe.probe_plugins(fitting, [()] * len(fitting)))
    return [
        fault or next(verdicts).reason or _import_fault(entry) for entry, fault in zip(entries, faults, strict=True)
    ]


def _api_fault(entry: EntryPoint) -> str:
    try:
        check_runtime_api(entry)
    except BackendUnavailableError as error:
        return f"{error.message}: {error.found}, this core has {RUNTIME_API}"
    return ""


def _import_fault(entry: EntryPoint) -> str:
    try:
        load = run_guarded(f"importing the runtime {entry.name!r}", entry.load)
    except PluginError as error:
        return error.message
    if not callable(load):
        return f"{entry.value} is no function"
    kinds = _kinds(entry.module)
    if kinds and entry.name not in kinds:
        return (
            f"its entry point is called {entry.name!r}, its modules are of kind {', '.join(map(repr, sorted(kinds)))}"
        )
    return ""


def _kinds(module: str) -> set[str]:
    """Return the kinds of the RuntimeModules that an imported module names and its own package defines."""
    package = module.partition(".")[0]
    classes = [each for each in vars(sys.modules[module]).values() if isinstance(each, type)]
    own = [each for each in classes if issubclass(each, RuntimeModule) and each.__module__.startswith(package)]
    return {each.kind for each in own if hasattr(each, "kind")}


def _pattern_faults(info: BackendInfo) -> Iterator[str]:
    backend: Backend = get_manager().get(info.name, "backend")
    has_any = False
    for kind in info.targets:
        try:
            target = Target(kind)
            patterns = run_guarded(
                f"asking for patterns for {kind}", lambda target=target: list(backend.patterns(target))
            )
        except KernelyardError as error:
            has_any = True
            yield error.message
            continue
        others = [pattern for pattern in patterns if not isinstance(pattern, FusionPattern)]
        if others:
            has_any = True
            yield f"among its patterns for {kind} is one that is no FusionPattern: {others[0]!r}"
            continue
        counts = Counter(pattern.name for pattern in patterns)
        has_any = has_any or bool(counts)
        for name in [name for name, count in counts.items() if count > 1]:
            yield f"{counts[name]} patterns for {kind} are called {name!r}: reports cannot tell them apart"
    if not has_any:
        yield f"it has no patterns for {', '.join(info.targets) or 'any target'}: it is never used"
