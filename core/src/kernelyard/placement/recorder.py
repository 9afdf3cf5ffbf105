"""Recorder: keeps what was accepted, declined and broken while a module is partitioned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelyard.ir import Call, Var
from kernelyard.patterns.matcher import Match
from kernelyard.patterns.registry import Decline, FusionPattern
from kernelyard.runtime.report import DeclinedMatch, Violation


@dataclass(frozen=True)
class _Refusal:
    backend: str
    pattern: str
    subject: Var
    op: str
    decline: Decline


class Recorder:
    """Gets told by the passes; `build_report` reads it. One per compilation.

    label_of: what a message calls a backend; the driver names the plugin with its distribution and version.
    """

    def __init__(self, label_of: Callable[[str], str] = str) -> None:
        self._label_of = label_of
        self._refusals: list[_Refusal] = []
        self._taken: dict[Var | tuple[str, str], str] = {}
        self.violations: list[Violation] = []

    def accepted(self, pattern: FusionPattern, match: Match, function: str, composite: str) -> None:
        """`match` in `function` became a call of the composite function."""
        for binding, call in zip(match.call_bindings, match.calls, strict=True):
            self._taken[binding.var] = pattern.backend
            if binding.var.origin:  # a later backend may see the same node under a new variable
                self._taken[(binding.var.origin, call.op_name)] = pattern.backend

    def declined(self, pattern: FusionPattern, match: Match, function: str, decline: Decline) -> None:
        """`match` in `function` stays as it is."""
        at = decline.at
        subject = at if isinstance(at, Var) and at in match.members else match.root
        value = match.value_of(subject)
        op = value.op_name if isinstance(value, Call) else type(value).__name__
        self._refusals.append(_Refusal(pattern.backend, pattern.name, subject, op, decline))

    def violated(self, backend: str, symbols: Sequence[str], message: str) -> None:
        """The codegen of `backend` failed on the regions `symbols`, which it had accepted."""
        self.violations.append(Violation(backend, tuple(symbols), f"{self._label_of(backend)}: {message}"))

    def declined_matches(self) -> tuple[DeclinedMatch, ...]:
        """Every refusal, in order, with the backend that took the op in the end."""
        return tuple(
            DeclinedMatch(
                refusal.backend,
                refusal.pattern,
                node_label(refusal.subject),
                refusal.op,
                refusal.decline.code,
                refusal.decline.message,
                self._taker(refusal),
            )
            for refusal in self._refusals
        )

    def _taker(self, refusal: _Refusal) -> str:
        subject = refusal.subject
        return self._taken.get(subject) or self._taken.get((subject.origin, refusal.op), "")


def node_label(var: Var) -> str:
    """What a message calls the place where a value comes from: the model's node, else the variable."""
    return var.origin or repr(var)
