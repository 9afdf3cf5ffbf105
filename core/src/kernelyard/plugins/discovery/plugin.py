"""A plugin while it is being found and loaded, and as people see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernelyard.plugins.interfaces.manifest import Manifest
from kernelyard.runtime.installed.entry_points import EntryPoint

STATES = ("discovered", "blocked", "incompatible", "unavailable", "broken", "active")


@dataclass(frozen=True)
class BackendInfo:
    """A plugin as people see it: who it is, whether it can be used, and why not.

    seconds: how long import, hooks and probe took here; 0 where it was not taken into use.
    """

    name: str
    dist: str
    version: str
    api: str
    state: str
    reason: str
    provides: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    priority: int = 0
    summary: str = ""
    hint: str | None = None
    seconds: float = 0.0


@dataclass
class Plugin:
    """One plugin and what became of it. entry: where it is installed; None for one that this process made."""

    name: str
    dist: str
    version: str
    load: Callable[[], Any]
    manifest: Manifest | None = None
    state: str = "discovered"
    reason: str = ""
    hint: str | None = None
    entry: EntryPoint | None = None
    parts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def fail(self, state: str, reason: str, hint: str | None = None) -> None:
        """Take the plugin out of use, and keep why and how to go on."""
        self.state, self.reason, self.hint = state, reason, hint

    @property
    def label(self) -> str:
        """The plugin with its distribution and version, for messages."""
        return f"plugin {self.name!r} of {self.dist} {self.version}"

    def info(self) -> BackendInfo:
        """Return the public view."""
        shown = self.manifest or Manifest(self.name, "", ())
        return BackendInfo(
            self.name,
            self.dist,
            self.version,
            shown.api,
            self.state,
            self.reason,
            shown.provides,
            shown.targets,
            shown.priority,
            shown.summary,
            self.hint,
            self.seconds,
        )
