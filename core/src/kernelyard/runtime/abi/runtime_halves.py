"""Runtime halves of plugins: each module of an artifact is loaded by that of the plugin which made it.

The runtime half of a plugin is an entry point of the group `kernelyard.runtime`, named as the kind of its modules:
`load(data: bytes, constants: Mapping[str, numpy.ndarray]) -> RuntimeModule`. The compiler is not needed. One that is
older than what the artifact was compiled with, or that was written for another runtime API, is refused before anything
of it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kernelyard.errors import (
    ArtifactError,
    ArtifactVersionError,
    KernelyardError,
    MissingRuntimeError,
    PluginContractError,
)
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.api_range import check_runtime_api
from kernelyard.runtime.installed.distributions import find_distribution
from kernelyard.runtime.installed.entry_points import EntryPoint, entry_points_of, find

if TYPE_CHECKING:
    import numpy as np

    from kernelyard.runtime.abi.module import RuntimeModule

    ModuleLoader = Callable[[bytes, Mapping[str, np.ndarray]], RuntimeModule]

GROUP = "kernelyard.runtime"


class Requirement(NamedTuple):
    """The distribution whose runtime half a module needs, at the version it was compiled with."""

    distribution: str
    version: str

    @property
    def wanted(self) -> str:
        """The distributions that will do, for messages."""
        return f"{self.distribution} {self.version} or newer"

    @property
    def pip_line(self) -> str:
        """The command that installs one."""
        return f"pip install '{self.distribution}>={self.version}'"


def runtime_entry_points() -> tuple[EntryPoint, ...]:
    """Return the installed runtime halves, by kind and distribution."""
    return find(GROUP).entries


def requirement(kind: str) -> Requirement | None:
    """Return the distribution that loads modules of a kind, None when nothing installed does."""
    for entry in runtime_entry_points():
        if entry.name == kind and entry.dist is not None:
            return Requirement(entry.dist.name, entry.dist.version)
    return None


def find_loader(kind: str, requires: Requirement) -> ModuleLoader:
    """Return the loader of a kind: that of the required distribution, or else of another one that has one.

    Raises: MissingRuntimeError, ArtifactVersionError, BackendUnavailableError (made for another runtime API).
    """
    entry = _own_entry_point(kind, requires.distribution)
    if entry is None:
        entry = _entry_point_of_others(kind, requires)
    elif entry.dist is not None:
        _check_version(kind, requires, entry.dist.version)
    check_runtime_api(entry)
    return lambda data, constants: _load_module(entry, kind, data, constants)


def _own_entry_point(kind: str, name: str) -> EntryPoint | None:
    """Return the entry point of a kind that the distribution of a name has; None where it has none to read."""
    distribution = find_distribution(name)
    if distribution is None:
        return None
    try:
        return next((entry for entry in entry_points_of(distribution, GROUP) if entry.name == kind), None)
    except ValueError:  # damaged metadata
        return None


def _entry_point_of_others(kind: str, requires: Requirement) -> EntryPoint:
    """Return the entry point of a kind that any distribution has; reading those of all takes milliseconds."""
    installed = runtime_entry_points()
    entry = next((each for each in installed if each.name == kind), None)
    if entry is None:
        raise MissingRuntimeError(
            f"the artifact needs the runtime {kind!r} of {requires.distribution}, which is not installed",
            found=f"installed runtimes: {', '.join(dict.fromkeys(each.name for each in installed)) or 'none'}",
            expected=requires.wanted,
            hint=requires.pip_line,
        )
    return entry


def _check_version(kind: str, requires: Requirement, version: str) -> None:
    """Refuse an older runtime half: it may not know, or may misread, what the newer compile half wrote."""
    if version == requires.version or _is_newer(version, requires.version):
        return
    raise ArtifactVersionError(
        f"the artifact was compiled with a newer {requires.distribution} than is installed",
        where=f"runtime {kind!r}",
        found=f"{requires.distribution} {version or 'of an unknown version'}",
        expected=requires.wanted,
        hint=f"{requires.pip_line}, or compile the model again",
    )


def _is_newer(version: str, other: str) -> bool:
    from packaging.version import InvalidVersion, Version  # takes 5 ms: mostly the versions are the same

    try:
        return Version(version) >= Version(other)
    except InvalidVersion:
        return False


def _load_module(entry: EntryPoint, kind: str, data: bytes, constants: Mapping[str, np.ndarray]) -> RuntimeModule:
    from kernelyard.runtime.abi.module import RuntimeModule

    owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    try:
        module = entry.load()(data, constants)
    except KernelyardError:
        raise
    except (Exception, SystemExit) as error:
        raise ArtifactError(
            f"the runtime {kind!r} could not load its part of the artifact",
            where=owner,
            found=f"{type(error).__name__}: {error}",
        ) from error
    if not isinstance(module, RuntimeModule) or module.kind != kind:
        raise PluginContractError(
            f"the {kind!r} loader returned another object", where=owner, found=repr(module), expected="a RuntimeModule"
        )
    return module
