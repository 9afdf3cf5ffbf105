"""Measured placements in a compile: those that are given, and those that an installed tuner finds."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from kernelyard.driver.session.session import CompileSession
from kernelyard.errors import ArtifactError, OptionError, PlacementWarning, warn_caller
from kernelyard.ir import IRModule, to_text
from kernelyard.runtime.abi.spec import read_json
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.installed.distributions import CORE, find_distribution, package_line
from kernelyard.runtime.installed.entry_points import load_named
from kernelyard.runtime.installed.processor import processor
from kernelyard.runtime.placement_decision import (
    BACKEND,
    PlacementDecision,
    merge_decisions,
    placements_from_json,
    placements_to_json,
)

TUNERS = "kernelyard.tuners"  # the group of entry points
TUNER = "tune"
_DIGEST_OF_WEIGHTS = re.compile(r'constant "[^"]*"')
EFFORTS = {"quick": 10.0, "full": 60.0}  # seconds

Placements: TypeAlias = "PlacementDecision | Sequence[PlacementDecision] | str | os.PathLike[str]"


@dataclass(frozen=True)
class Tuning:
    """Say how to measure placements.

    effort: "quick" (10 s), "full" (60 s), or seconds. threads: of the runs (None: the processors). feeds: inputs to
    measure with; random ones are made of those that it lacks, of `sizes` where the model has symbolic ones. sizes: of
    the symbols; several such sets are measured each, and runs take the placement of the nearest. remember: look for the
    decision in the cache of this machine first, and keep it there. remote: the URL of a cache that is asked next, ""
    for none; None: what the environment says.
    """

    effort: str | float = "quick"
    threads: int | None = None
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] = field(default_factory=dict)
    remember: bool = True
    remote: str | None = None

    @property
    def sets_of_sizes(self) -> tuple[Mapping[str, int], ...]:
        """The sets of sizes to measure at, each once; at least one."""
        given = [self.sizes] if isinstance(self.sizes, Mapping) else self.sizes
        return tuple({tuple(sorted(each.items())): each for each in given}.values()) or ({},)

    @property
    def seconds(self) -> float:
        """The budget. Raises: OptionError."""
        value = EFFORTS.get(self.effort) if isinstance(self.effort, str) else self.effort
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            expected = f"{', '.join(EFFORTS)}, or a number of seconds"
            raise OptionError("tune is no effort", found=repr(self.effort), expected=expected)
        return float(value)


@dataclass(frozen=True)
class TuneRequest:
    """Hold what a tuner is given.

    session: of the default placement. module: the model, as it was imported. facts: what a decision holds for.
    compile_with: compiles the model by a decision.
    """

    session: CompileSession
    module: IRModule
    facts: Mapping[str, str]
    tuning: Tuning
    compile_with: Callable[[PlacementDecision], Executable]


Tuner: TypeAlias = "Callable[[TuneRequest], PlacementDecision]"


def decide(
    session: CompileSession,
    module: IRModule,
    tune: Tuning | str | float | None,
    placement: Placements | None,
    compile_with: Callable[[PlacementDecision], Executable],
) -> PlacementDecision | None:
    """Return the placement among those given that fits; else, where `tune` says so, what the tuner measures.

    Warns: PlacementWarning where none fits and nothing is measured: None then, and the default is to be taken.
    Raises: OptionError where no tuner is installed, ArtifactError for a file that cannot be read.
    """
    facts = facts_of(session, module)
    given = () if placement is None else read_placements(placement)
    fitting = next((each for each in given if not each.misfits(facts)), None)
    if fitting is not None:
        return fitting
    if tune is None:
        _warn(given, facts)
        return None
    tuning = tune if isinstance(tune, Tuning) else Tuning(tune)
    tuning.seconds  # noqa: B018  checked before anything is measured
    return _tuner()(TuneRequest(session, module, facts, tuning, compile_with))


def add_alternatives(
    exe: Executable, decision: PlacementDecision, compile_with: Callable[[PlacementDecision], Executable]
) -> None:
    """Compile a model in the placements that a decision has for further sizes, and add them to it.

    exe: the model by the decision itself. compile_with: compiles the model by one for a size.
    """
    alike: dict[object, list[PlacementDecision]] = {decision.placement: []}
    for each in decision.by_size:
        alike.setdefault(each.placement, []).append(each)
    own, *others = alike.values()
    if others:
        compiled = [([each.sizes for each in group], compile_with(group[0])) for group in others]
        exe.add_alternatives([each.sizes for each in own], compiled)


def read_placements(given: Placements) -> tuple[PlacementDecision, ...]:
    """Return decisions as they are, or those of a file. Raises: ArtifactError, ArtifactCorruptedError."""
    if isinstance(given, PlacementDecision):
        return (given,)
    if not isinstance(given, (str, os.PathLike)):
        return tuple(given)
    try:
        data = Path(given).read_bytes()
    except OSError as error:
        raise ArtifactError("the file of placements cannot be read", where=str(given), found=error.strerror) from error
    return placements_from_json(read_json(data, str(given)))


def save_placements(path: str | os.PathLike[str], decisions: Iterable[PlacementDecision]) -> None:
    """Write decisions to a file; those that it has of other models and machines stay. Raises: ArtifactError."""
    file = Path(path)
    known = read_placements(file) if file.exists() else ()
    text = json.dumps(placements_to_json(merge_decisions(known, tuple(decisions))), indent=1, ensure_ascii=False)
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ArtifactError(
            "the file of placements cannot be written", where=str(path), found=error.strerror
        ) from error


def facts_of(session: CompileSession, module: IRModule) -> dict[str, str]:
    """Return what a decision holds for: model without weights, settings of the compile, machine, packages."""
    own = processor()
    settings = {
        "options": session.options,
        "required": dict(session.required),
        "precision": session.precision.name,
        "exclude_patterns": list(session.exclude_patterns),
        "pipeline": list(session.pipeline.changes),
    }
    generator = session.generator.name if session.generator is not None else ""
    return {
        "model": _digest(_DIGEST_OF_WEIGHTS.sub("constant", to_text(module, constants="elided"))),
        "settings": json.dumps(settings, sort_keys=True, default=repr),
        "target": str(session.target),
        "processor": own.model,
        "instructions": _digest(" ".join(sorted(own.flags)))[:16],
        "caches": ", ".join(own.caches),
        CORE: core.version if (core := find_distribution(CORE)) is not None else "",
        "generator": _versions(session, generator),
        **{f"{BACKEND}{each.name}": _versions(session, each.name) for each in session.backends},
    }


def _versions(session: CompileSession, name: str) -> str:
    """Return the distribution of a plugin and what it requires, with versions."""
    info = next((info for info in session.manager.infos() if info.name == name), None)
    own = find_distribution(info.dist) if info is not None else None
    if info is None or own is None:
        return info.version if info is not None else ""
    lines = own.read("METADATA").splitlines()
    required = [
        line.partition(":")[2] for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    names = dict.fromkeys(_name_of(text) for text in required)
    found = [each for each in map(find_distribution, names) if each is not None]
    return ", ".join(f"{each.name} {each.version}" for each in (own, *found))


def _name_of(requirement: str) -> str:
    from packaging.requirements import Requirement

    return Requirement(requirement.strip()).name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _warn(given: Sequence[PlacementDecision], facts: Mapping[str, str]) -> None:
    nearest = min((each.misfits(facts) for each in given), key=len, default=("no placement is given",))
    message = f"the default placement is taken, as no measured one fits: {'; '.join(nearest)}"
    warn_caller(message, PlacementWarning)


def _tuner() -> Tuner:
    found = load_named(TUNERS, TUNER)
    if found is None:
        raise OptionError(
            "tune= needs a tuner, and none is installed", hint=package_line(TUNER), expected="the package of a tuner"
        )
    return found
