"""Errors of fuzzing."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class FuzzError(KernelyardError):
    """What was asked of the fuzzer cannot be done: a folder holds no find."""

    code = "KY740"


class UndefinedError(Exception):
    """Rounding decides whether a graph can be computed at all: an index that follows from floats is at the end of its
    axis, say.
    """
