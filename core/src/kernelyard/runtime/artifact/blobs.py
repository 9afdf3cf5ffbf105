"""Blobs: what modules have compiled for one kind of machine, as members of an artifact that it also runs without.

In a module's entry of the manifest: `blobs` (member by name) and `compatibility`, the token that the module gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelyard.errors import PerformanceWarning, describe, warn_caller
from kernelyard.runtime.abi.spec import Fields, corrupted
from kernelyard.runtime.artifact.container import Contents, Member

if TYPE_CHECKING:
    from kernelyard.runtime.abi.module import RuntimeModule

BLOBS, COMPATIBILITY = "blobs", "compatibility"
OPTIMAL, USABLE, UNUSABLE = "optimal", "usable", "unusable"


def describe_blobs(module: RuntimeModule, member: str) -> tuple[dict[str, Any], list[Member]]:
    """Return what a module's entry says of its blobs, nothing where it has none, and their members.

    member: the name of the module's own member. Raises: TypeError, and what the module raises.
    """
    blobs, token = module.blobs(), module.compatibility()
    if not isinstance(blobs, Mapping) or not isinstance(token, str):
        raise TypeError("its blobs are no dictionary of bytes, or its compatibility is no text")
    if not blobs:
        return {}, []
    if not all(isinstance(name, str) and isinstance(data, bytes) for name, data in blobs.items()):
        raise TypeError("its blobs are no dictionary of bytes by name")
    named = {name: f"{member}.blob{number}" for number, name in enumerate(blobs)}
    members = [Member(named[name], [data]) for name, data in blobs.items()]
    return {BLOBS: named, COMPATIBILITY: token}, members


def restore_blobs(module: RuntimeModule, fields: Fields, contents: Contents, owner: str) -> None:
    """Give a module the blobs that its entry `fields` names, unless it says that they do not fit.

    Warns: PerformanceWarning if it must compile again, or runs slower than with blobs made here.
    """
    token = fields.text(COMPATIBILITY)
    try:
        fit = verdict(module, token)
        found = f"{owner}: blobs for {token!r} are {fit} here ({module.compatibility()!r})"
        if fit == UNUSABLE:
            warn_caller(f"{found}; it compiles again", PerformanceWarning)
            return
        module.restore(_members(fields, contents))
    except (Exception, SystemExit) as error:  # a vendor's code; all that it needs is in the artifact without them
        warn_caller(f"{owner}: blobs cannot be used, it compiles again: {describe(error)}", PerformanceWarning)
    else:
        if fit == USABLE:
            warn_caller(f"{found}; compile again to run as quickly as can be", PerformanceWarning)


def verdict(module: RuntimeModule, token: str) -> str:
    """Return how blobs with this token fit a module here: one of OPTIMAL, USABLE, UNUSABLE."""
    found = module.fit(token)
    return found if found in (OPTIMAL, USABLE) else UNUSABLE


def _members(fields: Fields, contents: Contents) -> Mapping[str, memoryview]:
    named = fields.any(BLOBS)
    if not isinstance(named, dict) or not all(isinstance(each, str) for each in named.values()):
        raise corrupted(f"{fields.where}.{BLOBS}", named, "members by name")
    return {name: contents.member(member, fields.where).data for name, member in named.items()}
