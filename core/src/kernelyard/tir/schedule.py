"""Ask the schedule rules of a code generator in order: each makes something of a stage, or declines with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kernelyard.errors import CodegenError


@dataclass(frozen=True)
class Declined:
    """The answer of a rule that does not apply; why."""

    reason: str


class Reasoned(Protocol):
    """A result of a schedule rule that can explain its choice."""

    @property
    def reason(self) -> str: ...


Made = TypeVar("Made", bound=Reasoned)
# The rules that were asked, each with its reason; the last one applied.
Reasons = tuple[tuple[str, str], ...]


def first_that_applies(rules: Sequence[Callable[..., Made | Declined]], *asked: object) -> tuple[Made, Reasons]:
    """Apply the first schedule rule that matches; return its result, and the reasons of all rules tried.

    Raises: CodegenError where none applies.
    """
    reasons: list[tuple[str, str]] = []
    for rule in rules:
        made = rule(*asked)
        reasons.append((rule.__name__, made.reason))
        if not isinstance(made, Declined):
            return made, tuple(reasons)
    raise CodegenError("no schedule rule applies", found="; ".join(f"{name}: {why}" for name, why in reasons))
