"""Errors of debugging a model."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class DebugError(KernelyardError):
    """A model cannot be debugged as asked: no such runner, feeds that do not fit, no failure to look for."""

    code = "KY720"


class IsolationError(DebugError):
    """A check cannot be run in a process of its own here: the system cannot fork."""

    code = "KY721"
