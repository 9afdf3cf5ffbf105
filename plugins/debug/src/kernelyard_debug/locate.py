"""Locate a failure in the compiler: the pass, the backend's region or the generated kernel that is wrong."""

from __future__ import annotations

from kernelyard_debug.case import Case
from kernelyard_debug.oracle import Oracle
from kernelyard_debug.outcome import Outcome


def locate(oracle: Oracle, case: Case, outcome: Outcome) -> Outcome:
    """Return the outcome with its place."""
    return outcome
