"""Read builds from files: models, which are compiled, artifacts, traces and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernelyard.cli.feeds import make_feeds
from kernelyard.cli.model_files import is_artifact, open_executable
from kernelyard.cli.options import CompileOptions
from kernelyard.errors import ArtifactCorruptedError
from kernelyard.runtime.abi.spec import read_json
from kernelyard.runtime.execute.executable import Executable
from kernelyard_view.build import Build, PassChange
from kernelyard_view.build_json import KEY, build_from_json, build_of_difference, errors_of, is_difference, with_errors
from kernelyard_view.measure import build_of
from kernelyard_view.roof import measure_roof
from kernelyard_view.watch_passes import WatchPasses


@dataclass(frozen=True)
class Wanted:
    """Choose what to measure of models and artifacts. calls: that are timed, 0 for none."""

    how: CompileOptions
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    dim_values: tuple[str, ...] = ()
    threads: int | None = None
    calls: int = 10
    with_passes: bool = True


def read_builds(paths: Sequence[Path], wanted: Wanted) -> list[Build]:
    """Return the builds of some files; differences are shown on the build before all others.

    Raises: ArtifactError, and as compiling and running a model.
    """
    builds: list[Build] = []
    differences: list[tuple[Path, Any]] = []
    for path in paths:
        value = read_json(path.read_bytes(), str(path)) if path.suffix == ".json" else None
        if is_difference(value):
            differences.append((path, value))
        elif value is not None:
            builds.append(_read_trace(value, path))
        else:
            builds.append(_compile(path, wanted))
    if not builds:
        builds += [build_of_difference(value, path.name, str(path)) for path, value in differences]
    elif differences:
        errors = {k: v for path, value in differences for k, v in errors_of(value, str(path)).items()}
        builds[0] = with_errors(builds[0], errors)
    return builds


def _read_trace(value: Any, path: Path) -> Build:
    other = value.get("otherData") if isinstance(value, dict) else None
    if not isinstance(other, dict) or KEY not in other:
        raise ArtifactCorruptedError(
            "the file is neither a trace nor a difference",
            where=str(path),
            expected="what `kernelyard trace` or `kernelyard diff --json` has written",
        )
    return build_from_json(other[KEY], str(path))


def _compile(path: Path, wanted: Wanted) -> Build:
    executable, passes = open_model(path, wanted)
    if not wanted.calls:
        return build_of(executable, path.name, passes=passes)
    feeds = make_feeds(executable, wanted.feeds, wanted.dim_values)
    return build_of(executable, path.name, feeds, wanted.calls, passes, measure_roof(executable.threads))


def open_model(path: Path, wanted: Wanted) -> tuple[Executable, Sequence[PassChange]]:
    """Load an artifact, or compile a model and say what its passes changed."""
    if is_artifact(path) or not wanted.with_passes:
        return open_executable(path, wanted.how, wanted.threads), ()
    from kernelyard.driver.compile import compile as compile_model

    watch = WatchPasses()
    executable = compile_model(path, **wanted.how.arguments(), instruments=[watch])
    executable.threads = wanted.threads
    return executable, watch.changes
