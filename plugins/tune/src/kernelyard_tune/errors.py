"""Errors of measuring placements."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class TuneError(KernelyardError):
    """A model cannot be run as it has to be to measure it: its feeds do not fit, or its values matter."""

    code = "KY770"
