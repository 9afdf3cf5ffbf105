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


class FoundError(Exception):
    """Something does not hold. oracle: what was asked; kind: "values", "shape", "error", ...; place: a pass."""

    def __init__(self, oracle: str, kind: str, message: str, place: str = "") -> None:
        super().__init__(message)
        self.oracle, self.kind, self.message, self.place = oracle, kind, message, place
