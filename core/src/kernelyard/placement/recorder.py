"""Recorder: keeps what was accepted, declined and broken while a module is partitioned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelyard.ir import Call, Expr, Var
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.registry import Decline, FusionPattern
from kernelyard.runtime.report_entries import DeclinedMatch, Reason, Violation
from kernelyard.transform.partition.fuse_ops_by_pattern import FailedCheck


@dataclass(frozen=True)
class _Declined:
    backend: str
    pattern: str
    subject: Var
    op: str
    decline: Decline


class Recorder:
    """Records what the passes decide; `build_report` reads it. One per compilation.

    matches: those accepted, by root. reasons: why backends decline, by node. offers: which ops each backend has
    patterns for. rest: a reason for all that a code generator runs, by its name.

    label_of: what a message calls a backend; the driver names the plugin with its distribution and version.
    """

    def __init__(self, label_of: Callable[[str], str] = str, rest: Mapping[str, Reason] | None = None) -> None:
        self.label_of = label_of
        self._declined: dict[_Declined, None] = {}  # in order, each once: a backend may be asked again
        self._taken: dict[Var | tuple[str, str], str] = {}
        self.matches: dict[Var, Match] = {}
        self.reasons = ReasonsByNode()
        self.offers: dict[str, frozenset[str]] = {}
        self.violations: list[Violation] = []
        self.rest = dict(rest or {})

    def branch(self) -> Recorder:
        """Return a copy to record a tentative attempt in; `adopt` commits it."""
        branch = Recorder(self.label_of, self.rest)
        branch.adopt(self)
        return branch

    def adopt(self, branch: Recorder) -> None:
        """Add the records of a branch."""
        self._declined = dict(branch._declined)
        self._taken = dict(branch._taken)
        self.matches = dict(branch.matches)
        self.reasons = branch.reasons.copy()
        self.offers = dict(branch.offers)
        self.violations = list(branch.violations)

    def record_offer(self, backend: str, patterns: Sequence[FusionPattern]) -> None:
        """Record that `backend` is offered the model next; backends come in order."""
        self.offers[backend] = frozenset(op for pattern in patterns for op in pattern.pattern.root_ops or ())

    def record_match(self, pattern: FusionPattern, match: Match, function: str, composite: str) -> None:
        """Record that `match` in `function` became a call of the composite function."""
        self.matches[match.root] = match
        for binding, call in zip(match.call_bindings, match.calls, strict=True):
            self._taken[binding.var] = pattern.backend
            if binding.var.origin:  # a later backend may see the same node under a new variable
                self._taken[(binding.var.origin, call.op_name)] = pattern.backend

    def record_release(self, pattern: FusionPattern, match: Match, function: str, decline: Decline) -> None:
        """Record that an accepted `match` stays unchanged after all: its region is not worth a call."""
        self.matches.pop(match.root, None)
        for binding, call in zip(match.call_bindings, match.calls, strict=True):
            self._taken.pop(binding.var, None)
            self._taken.pop((binding.var.origin, call.op_name), None)
        self.record_decline(pattern, match, function, decline)

    def record_decline(self, pattern: FusionPattern, match: Match, function: str, decline: Decline) -> None:
        """Record that `match` in `function` stays unchanged."""
        at = decline.at
        subject = at if isinstance(at, Var) and at in match.members else match.root
        value = match.value_of(subject)
        op = _op_of(value)
        if isinstance(decline, FailedCheck):
            self.record_violation(pattern.backend, (), decline.message)
        self._declined[_Declined(pattern.backend, pattern.name, subject, op, decline)] = None
        reason = Reason(pattern.backend, pattern.name, decline.code, decline.message)
        self.reasons.add(match.root, _op_of(match.value_of(match.root)), reason)
        if subject is not match.root:
            self.reasons.add(subject, op, reason)

    def record_violation(self, backend: str, symbols: Sequence[str], message: str) -> None:
        """Record a contract violation: the accepted regions `symbols` of `backend` run elsewhere."""
        violation = Violation(backend, tuple(symbols), f"{self.label_of(backend)}: {message}")
        if violation not in self.violations:
            self.violations.append(violation)

    def list_declined_matches(self) -> tuple[DeclinedMatch, ...]:
        """Return all declines, in order, with the backend that took the op in the end."""
        return tuple(
            DeclinedMatch(
                each.backend,
                each.pattern,
                node_label(each.subject),
                each.op,
                each.decline.code,
                each.decline.message,
                self._taken.get(each.subject) or self._taken.get((each.subject.origin, each.op), ""),
            )
            for each in self._declined
        )


class ReasonsByNode:
    """Reasons to decline, each once.

    A later backend may see the same node under a new variable, so the model's node and the op count as well.
    """

    def __init__(self) -> None:
        self._reasons: dict[Var | tuple[str, str], dict[Reason, None]] = {}

    def copy(self) -> ReasonsByNode:
        """Return the same reasons, to which others can be added."""
        copied = ReasonsByNode()
        copied._reasons = {key: dict(reasons) for key, reasons in self._reasons.items()}
        return copied

    def add(self, var: Var, op: str, reason: Reason) -> None:
        """Add a `reason` for which the backend does not run `op` at `var`."""
        for key in _keys(var, op):
            self._reasons.setdefault(key, {}).setdefault(reason)

    def of(self, var: Var, op: str) -> tuple[Reason, ...]:
        """Return the declines of `op` at `var`."""
        return tuple(next((self._reasons[key] for key in _keys(var, op) if key in self._reasons), ()))


def _keys(var: Var, op: str) -> tuple[Var | tuple[str, str], ...]:
    return (var, (var.origin, op)) if var.origin else (var,)


def _op_of(value: Expr) -> str:
    return value.op_name if isinstance(value, Call) else type(value).__name__


def node_label(var: Var) -> str:
    """Return the label of a value's origin in messages: the model's node, else the variable."""
    return var.origin or repr(var)
