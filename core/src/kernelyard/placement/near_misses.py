"""Record why no pattern of a backend matched an op: the nearest miss, after each backend is partitioned."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.ir import Call, Function, IRModule, Op, Var
from kernelyard.patterns.matching.matcher import Matcher
from kernelyard.patterns.matching.near_miss import NearMisses
from kernelyard.patterns.registry import FusionPattern
from kernelyard.placement.recorder import Recorder
from kernelyard.runtime.report_entries import Reason
from kernelyard.runtime.report_words import EXCLUDED, NO_MATCH

NOT_TOGETHER = "each operand matches by itself, but values or shapes that must be equal differ"


def record_near_misses(
    offered: IRModule,
    left: IRModule,
    backend: str,
    patterns: Sequence[FusionPattern],
    excluded: Sequence[FusionPattern],
    recorder: Recorder,
) -> None:
    """Record the near miss of each op that a backend was `offered` and left in `left` without a reason.

    Codes: "no-match" (with the first part of the pattern that failed), "excluded" (the caller left the pattern out).
    """
    by_op = _group_by_root_op(patterns)
    excluded_by_op = _group_by_root_op(excluded)
    before = offered.entry_functions()
    for name, function in left.entry_functions().items():
        if name not in before:
            continue
        search = _Search(before[name])
        for binding in function.bindings:
            value = binding.value
            if not isinstance(value, Call) or not isinstance(value.op, Op) or binding.var not in search.values:
                continue
            if any(reason.backend == backend for reason in recorder.reasons.of(binding.var, value.op_name)):
                continue
            for pattern in excluded_by_op.get(value.op_name, ())[:1]:
                reason = Reason(backend, pattern.name, EXCLUDED, f"{pattern.name} is excluded by the caller")
                recorder.reasons.add(binding.var, value.op_name, reason)
            reason = search.nearest(binding.var, by_op.get(value.op_name, ()))
            if reason is not None:
                recorder.reasons.add(binding.var, value.op_name, reason)


def _group_by_root_op(patterns: Sequence[FusionPattern]) -> dict[str, list[FusionPattern]]:
    by_op: dict[str, list[FusionPattern]] = {}
    for pattern in patterns:
        for op in sorted(pattern.pattern.root_ops or ()):
            by_op.setdefault(op, []).append(pattern)
    return by_op


class _Search:
    def __init__(self, function: Function) -> None:
        matcher = Matcher(function)
        self._misses = NearMisses(matcher.feasibility)
        self.values = matcher.dataflow.values

    def nearest(self, var: Var, patterns: Sequence[FusionPattern]) -> Reason | None:
        """Return the reason of the pattern that came nearest; None without patterns."""
        best: tuple[int, Reason] | None = None
        for pattern in patterns:
            miss = self._misses.find(pattern.pattern, var)
            if miss is None:
                return Reason(pattern.backend, pattern.name, NO_MATCH, NOT_TOGETHER)
            if best is None or miss.fitted > best[0]:
                best = miss.fitted, Reason(pattern.backend, pattern.name, NO_MATCH, str(miss))
        return best[1] if best else None
