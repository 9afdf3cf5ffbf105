"""Prefilter patterns by the names of the ops around a value: a cheap necessary condition before the search.

A pattern of a convolution and what follows it ends in almost any op, but wants a convolution a few steps up; where
there is none the pattern need not be tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kernelyard.ir.expr import Call, Var, operands
from kernelyard.ir.op import Op
from kernelyard.patterns.language.pattern import (
    CallPattern,
    FunctionCallPattern,
    FunctionPattern,
    NotPattern,
    OrPattern,
    Pattern,
    TupleGetItemPattern,
    TuplePattern,
)
from kernelyard.patterns.language.pattern_parts import cache_by_pattern, children
from kernelyard.patterns.matching.dataflow import Dataflow

MAX_DEPTH = 16  # patterns that reach further are tested against all ops of the function

Clauses: TypeAlias = frozenset[frozenset[str]]  # of each set, one op has to be there


class Prefilter:
    """Answers for the values of one function and these patterns.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> from kernelyard.patterns import is_op, wildcard
        >>> b = FunctionBuilder()
        >>> y = b.op("nn.relu", b.op("exp", b.input("x", (2,))))
        >>> near, far = (is_op("nn.relu")(is_op(op)(wildcard())) for op in ("exp", "tanh"))
        >>> prefilter = Prefilter(Dataflow.of(b.function(y)), [near, far])
        >>> prefilter.may_match(near, y), prefilter.may_match(far, y)
        (True, False)
    """

    def __init__(self, dataflow: Dataflow, patterns: Iterable[Pattern]) -> None:
        needed = {pattern: find_required_ops(pattern) for pattern in patterns}
        self._bit: dict[str, int] = {}
        self._near = self._ops_near(dataflow, max(map(depth_of, needed), default=0))
        self._masks = {
            pattern: [self._mask(clause) for clause in sorted(clauses, key=sorted)]
            for pattern, clauses in needed.items()
        }

    def may_match(self, pattern: Pattern, var: Var) -> bool:
        """Return False when an op that `pattern` cannot do without is nowhere near `var`; True decides nothing."""
        near = self._near.get(var)
        return near is None or all(near & mask for mask in self._masks[pattern])

    def _mask(self, ops: Iterable[str]) -> int:
        mask = 0
        for op in ops:
            mask |= self._bit.get(op, 0)
        return mask

    def _ops_near(self, dataflow: Dataflow, depth: int) -> dict[Var, int]:
        """Return for each value the ops that it is made of, up to `depth` steps back."""
        own: list[tuple[Var, int, Sequence[Var]]] = []
        for var, value in dataflow.values.items():
            read = [o for o in map(dataflow.resolve, operands(value)) if isinstance(o, Var) and o in dataflow.values]
            own.append((var, self._own_bit(value), read))
        if depth > MAX_DEPTH:
            return dict.fromkeys(dataflow.values, self._mask(self._bit))
        near = {var: bit for var, bit, _ in own}
        for _ in range(depth - 1):
            wider: dict[Var, int] = {}
            for var, mask, read in own:
                for operand in read:
                    mask |= near[operand]
                wider[var] = mask
            near = wider
        return near

    def _own_bit(self, value: object) -> int:
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return 0
        return self._bit.setdefault(value.op.name, 1 << len(self._bit))


@cache_by_pattern
def find_required_ops(pattern: Pattern) -> Clauses:
    """Return sets of ops, of each of which every match of a pattern has one.

    Example:
        >>> from kernelyard.patterns import is_op, wildcard
        >>> sorted(sorted(clause) for clause in find_required_ops(is_op("nn.relu")(is_op("exp", "tanh")(wildcard()))))
        [['exp', 'tanh'], ['nn.relu']]
    """
    if isinstance(pattern, (FunctionPattern, NotPattern)):  # these speak of ops elsewhere, or of none
        return frozenset()
    if isinstance(pattern, OrPattern):
        return find_required_ops(pattern.left) & find_required_ops(pattern.right)
    own = frozenset([frozenset(pattern.ops)]) if isinstance(pattern, CallPattern) and pattern.ops else frozenset()
    return own.union(*map(find_required_ops, children(pattern)))


@cache_by_pattern
def depth_of(pattern: Pattern) -> int:
    """Return how many steps a match reaches back from its root, the root included."""
    steps = isinstance(pattern, (CallPattern, FunctionCallPattern, TuplePattern, TupleGetItemPattern))
    depths = [steps + depth_of(part) for part in children(pattern)]
    if isinstance(pattern, CallPattern):  # in another spelling, any of the three may be the furthest
        depths += [2 + depth_of(part) for q in pattern.quotients for part in (*q.factors, q.divisor)]
    return max(depths, default=int(steps))
