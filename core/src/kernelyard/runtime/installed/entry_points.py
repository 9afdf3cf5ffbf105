"""Entry points of what pip has installed; a distribution whose metadata cannot be read takes nothing down with it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from kernelyard.errors import PluginContractError, PluginError
from kernelyard.records import NamedTuple
from kernelyard.runtime.installed.distributions import Distribution, iterate_distributions

FILE = "entry_points.txt"


class EntryPoint(NamedTuple):
    """A name in a group, and the object that it stands for: `package.module:object`, or a module."""

    name: str
    value: str
    dist: Distribution | None = None

    @property
    def module(self) -> str:
        """The module that is imported."""
        return self.value.partition(":")[0].strip()

    @property
    def folder(self) -> str | None:
        """The folder of its module, None where that is in no package, or not there. Nothing of it is imported."""
        package, *inner = self.module.split(".")
        folder = next(iter(_folders_of(package)), None)
        return None if folder is None else os.path.join(folder, *inner[:-1])

    def load(self) -> Any:
        """Return the object. Raises: whatever importing the module does, AttributeError."""
        found: Any = importlib.import_module(self.module)
        for attribute in self.value.partition(":")[2].partition("[")[0].strip().split("."):
            found = getattr(found, attribute) if attribute else found
        return found


def _folders_of(package: str) -> Iterable[str]:
    """Return the folders of a top-level package, as `importlib.util` does, whose import takes longer than this."""
    if package in sys.modules:
        return getattr(sys.modules[package], "__path__", ())
    for finder in sys.meta_path:
        spec = finder.find_spec(package, None) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec.submodule_search_locations or ()
    return ()


class Found(NamedTuple):
    """The entry points of a group by name and distribution, and the distributions whose own cannot be read, each with
    the reason."""

    entries: tuple[EntryPoint, ...]
    unreadable: tuple[tuple[str, str], ...] = ()


def find(group: str) -> Found:
    """Return the entry points of a group.

    Example:
        >>> "reference" in [entry.name for entry in find("kernelyard.runtime").entries]
        True
    """
    entries: list[EntryPoint] = []
    unreadable: list[tuple[str, str]] = []
    for dist in iterate_distributions():
        try:
            entries += entry_points_of(dist, group)
        except ValueError as error:
            unreadable.append((dist.name, f"its {FILE} cannot be read: {error}"))
    entries.sort(key=lambda entry: (entry.name, entry.dist.key if entry.dist else ""))
    return Found(tuple(entries), tuple(unreadable))


def entry_points_of(dist: Distribution, group: str) -> list[EntryPoint]:
    """Return those of a group that one distribution has. Raises: ValueError where they cannot be read."""
    return [EntryPoint(name, value, dist) for name, value in _lines(dist.read(FILE), group)]


def load_named(group: str, name: str, kind: type = object) -> Any:
    """Return the object that a distribution registers under a name of a group, None where none does.

    Raises: PluginError where several distributions do, or where its import fails, PluginContractError for an object
    that is no instance of `kind`.
    """
    fitting = [entry for entry in find(group).entries if entry.name == name]
    if not fitting:
        return None
    if len(fitting) > 1:
        raise PluginError(
            f"several distributions provide {name!r}",
            where=f"entry points of {group}",
            found=", ".join(map(_origin, fitting)),
            hint="pip uninstall all but one of them",
        )
    (entry,) = fitting
    where = f"{entry.value}, entry point of {group}"
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{_origin(entry)} provides {name!r}, which cannot be imported",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint=f"pip install --upgrade {distribution_of(entry)[0]}",
        ) from error
    if not isinstance(loaded, kind):
        message = f"{_origin(entry)} provides {name!r}, which is something else"
        raise PluginContractError(message, where=where, found=repr(loaded), expected=f"a {kind.__name__}")
    return loaded


def distribution_of(entry: EntryPoint) -> tuple[str, str]:
    """Return the name and version of the distribution that an entry point comes from."""
    return (entry.dist.name, entry.dist.version) if entry.dist is not None else ("unknown", "")


def _origin(entry: EntryPoint) -> str:
    return " ".join(distribution_of(entry)).strip()


def _lines(text: str, group: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values in a section. Raises: ValueError for a line that is neither."""
    is_in_group = False
    for line in map(str.strip, text.splitlines() if f"[{group}]" in text else ()):
        if line.startswith("["):
            is_in_group = line == f"[{group}]"
        elif is_in_group and line and not line.startswith("#"):
            name, is_there, value = line.partition("=")
            if not is_there:
                raise ValueError(f"{line!r} is no entry point")
            yield name.strip(), value.strip()
