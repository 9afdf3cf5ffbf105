"""Builds from executables: the report, a profile, and the memory of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard.runtime.execute.executable import Executable
from kernelyard_view.build import Build, PartRow, PassChange, StepRow
from kernelyard_view.memory_map import memory_map
from kernelyard_view.names import plain_name

if TYPE_CHECKING:
    from kernelyard.runtime.profiling.profile import Profile, StepTime


def build_of(
    executable: Executable,
    title: str,
    feeds: Mapping[str, Any] | None = None,
    calls: int = 10,
    passes: Sequence[PassChange] = (),
    roof: Mapping[str, float] | None = None,
) -> Build:
    """Return what is known of an executable; with feeds its steps are timed, and its memory is planned for them.

    Raises: as running the program.
    """
    if feeds is None:
        return Build(title, executable.report, passes=tuple(passes))
    return build_from_profile(executable, title, feeds, executable.profile(feeds, calls), passes, roof)


def build_from_profile(
    executable: Executable,
    title: str,
    feeds: Mapping[str, Any],
    profile: Profile,
    passes: Sequence[PassChange] = (),
    roof: Mapping[str, float] | None = None,
) -> Build:
    """Return what is known of an executable that was profiled."""
    shapes = tuple(np.shape(feeds[spec.name]) for spec in executable.inputs)
    memory = memory_map(executable, shapes)
    steps = step_rows(profile)
    return Build(title, executable.report, steps, profile.call_seconds, memory, tuple(passes), roof=roof or {})


def step_rows(profile: Profile) -> tuple[StepRow, ...]:
    """Return the steps of a profile."""
    return tuple(map(_row, profile.steps))


def _row(step: StepTime) -> StepRow:
    inside = tuple(
        PartRow(plain_name(part.node) or part.label, part.implementation or part.label, part.seconds, part.nodes)
        for part in step.inside
    )
    label = plain_name(step.label)
    return StepRow(label, step.module, step.symbol, step.seconds, step.nbytes, step.flops, step.nodes, inside)
