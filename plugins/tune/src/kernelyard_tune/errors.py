"""Errors of measuring placements."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class TuneError(KernelyardError):
    """A model cannot be run as it has to be to measure it: its feeds do not fit, or its values matter."""

    code = "KY770"


class PoolError(TuneError):
    """Workers cannot be reached or used: no such engine, a package that is not installed, no core, damaged work."""

    code = "KY771"


class MeasuringError(TuneError):
    """A process that measured ended without an answer, or passed a limit of time or memory."""

    code = "KY772"
