"""Cost: what a plugin expects some work to take, as a part of its answer."""

from __future__ import annotations

import math

from kernelyard.errors import PatternError
from kernelyard.records import record


@record
class Cost:
    """Estimate of what a match or a region costs the plugin that states it; `placement/policy.py` compares them.

    seconds: one call on one core of the target, at the rates of `kernelyard.plugins.support.roofline`; None where
    the plugin would rather yield the work than guess. is_sure: it was measured on such targets; what is not displaces
    nothing. reason: a sentence for reports, why it takes so long or so short.

    Example:
        >>> Cost(2e-6, is_sure=True, reason="it is read once").seconds
        2e-06
    """

    seconds: float | None = None
    is_sure: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        seconds = self.seconds
        if seconds is None or (isinstance(seconds, (int, float)) and 0 <= seconds < math.inf):
            return
        raise PatternError("a cost is no time", found=repr(seconds), expected="seconds, or None")
