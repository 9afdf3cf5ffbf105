"""Entry points of what pip has installed; a distribution whose metadata cannot be read takes nothing down with it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from typing import NamedTuple


class Found(NamedTuple):
    """The entry points of a group by name and distribution, and the distributions whose own cannot be read, each with
    the reason."""

    entries: tuple[metadata.EntryPoint, ...]
    unreadable: tuple[tuple[str, str], ...] = ()


def find(group: str) -> Found:
    """The entry points of a group.

    Example:
        >>> "reference" in [entry.name for entry in find("kernelyard.runtime").entries]
        True
    """
    try:
        return Found(_sorted(metadata.entry_points(group=group)))
    except Exception:  # one malformed entry_points.txt makes the standard library give up on all
        return _find_one_by_one(group)


def _find_one_by_one(group: str) -> Found:
    entries: list[metadata.EntryPoint] = []
    unreadable: list[tuple[str, str]] = []
    for dist in metadata.distributions():
        try:
            entries += [entry for entry in dist.entry_points if entry.group == group]
        except Exception as error:  # whatever importlib.metadata makes of a malformed file
            if f"[{group}]" in (dist.read_text("entry_points.txt") or ""):
                unreadable.append((str(dist.metadata["Name"]), f"its entry_points.txt cannot be read: {error}"))
    return Found(_sorted(entries), tuple(unreadable))


def distribution_of(entry: metadata.EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution that an entry point comes from."""
    return (entry.dist.name, entry.dist.version) if entry.dist is not None else ("unknown", "")


def _sorted(entries: Iterable[metadata.EntryPoint]) -> tuple[metadata.EntryPoint, ...]:
    return tuple(sorted(entries, key=lambda entry: (entry.name, distribution_of(entry)[0])))
