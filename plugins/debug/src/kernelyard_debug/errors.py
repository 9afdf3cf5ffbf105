"""Errors of debugging a model."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class DebugError(KernelyardError):
    """A model cannot be debugged as asked: no such way to run it, feeds that do not fit, no failure to look for."""

    code = "KY720"


class IsolationError(DebugError):
    """A check cannot be run in a process of its own here: the system cannot fork."""

    code = "KY721"
