"""Outcome: what came of a check, and what makes two failures the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelyard_debug.difference import Difference
from kernelyard_debug.isolation import Died, Failed

COMMAND = "the command"  # the stage of what a user's command says: what it prints is no part of its signature
AGREES, ERROR, CRASH, HANG, UNUSABLE = "agrees", "error", "crash", "hang", "unusable"
_PASS = re.compile(r"\bpass '([^']+)'")
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|%\w+|@\w+|0x[0-9a-f]+|-?\d+(\.\d+)?")


@dataclass(frozen=True)
class Place:
    """Locate a failure. kind: "pass", "region" (of a backend), "kernel" (generated), or "run".

    name: the pass, or the backend. patterns: what a region's composites match. ops: of the region or kernel.
    """

    kind: str
    name: str
    patterns: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    symbol: str = ""

    def includes(self, other: Place) -> bool:
        """Return True where a smaller model that fails at `other` may fail of the same cause."""
        if (self.kind, self.name) != (other.kind, other.name):
            return False
        own, theirs = (self.patterns, other.patterns) if self.patterns else (self.ops, other.ops)
        return not own or not theirs or bool(set(own) & set(theirs))

    def __str__(self) -> str:
        parts = ", ".join(dict.fromkeys(self.patterns or self.ops))
        return " ".join(filter(None, [self.kind, self.name, f"({parts})" if parts else ""]))


@dataclass(frozen=True)
class Outcome:
    """Hold the outcome of a check.

    kind: "agrees", "error", "crash", "hang", "shape", "nan", "inf" or "values"; "unusable" where it says nothing about
    the suspect: the other runner failed. code, message: of an error. stage: what was going on when it failed.
    outputs: the difference of each output, by name; output: the first that departs.
    """

    kind: str
    code: str = ""
    message: str = ""
    stage: str = ""
    output: str = ""
    outputs: Mapping[str, Difference] = field(default_factory=dict)
    place: Place | None = None

    @property
    def fails(self) -> bool:
        """Return True where the suspect is wrong."""
        return self.kind not in (AGREES, UNUSABLE)

    def is_same_failure(self, other: Outcome) -> bool:
        """Return True where another outcome has the same signature, as far as both are known."""
        if self.kind != other.kind or self.code != other.code:
            return False
        if _stage(self) != _stage(other):
            return False
        if self.stage != COMMAND and _skeleton(self.message) != _skeleton(other.message):
            return False
        return self.place is None or other.place is None or self.place.includes(other.place)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON data."""
        facts = {key: getattr(self, key) for key in ("kind", "code", "message", "stage", "output")}
        place = asdict(self.place) if self.place is not None else None
        return {**facts, "outputs": {name: each.to_json() for name, each in self.outputs.items()}, "place": place}

    def __str__(self) -> str:
        about = self.outputs[self.output] if self.output in self.outputs else self.message.splitlines()[:1]
        shown = about if isinstance(about, Difference) else " ".join(about)
        parts = [self.kind, f"[{self.code}]" if self.code else "", str(shown)]
        place = self.place or (self.stage and f"while {self.stage}")
        return " ".join(filter(None, parts)) + (f"; {place}" if place else "")


def outcome_of_error(failed: Failed, stage: str) -> Outcome:
    """Return the outcome of a suspect that raised."""
    facts = failed.facts
    texts = (*failed.notes, facts.get("where") or "", facts.get("message") or "")
    name = next((found[1] for text in texts if (found := _PASS.search(text))), None)
    code = facts.get("code") or facts.get("error") or ""
    place = Place("pass", name) if name else None
    return Outcome(ERROR, code, facts.get("message") or "", f"pass {name}" if name else stage, place=place)


def outcome_of_death(died: Died) -> Outcome:
    """Return the outcome of a suspect whose process ended."""
    return Outcome(HANG if died.timed_out else CRASH, "" if died.timed_out else died.reason, "", died.stage)


def _stage(outcome: Outcome) -> str:
    return outcome.stage if outcome.kind in (ERROR, CRASH, HANG) else ""


def _skeleton(message: str) -> str:
    """Return the first line of a message without what depends on the model: names and numbers."""
    return _DETAIL.sub("_", message.partition("\n")[0]) if message else ""
