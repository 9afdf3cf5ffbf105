"""Patterns of graphs: what must use what, said with edges between patterns that need not hang together as one tree.

Example:
    >>> from kernelyard.patterns import PatternContext, is_op, wildcard
    >>> with PatternContext() as context:
    ...     x = wildcard()
    ...     left, right = is_op("nn.relu")(x), is_op("tanh")(x)
    ...     seq = left ^ is_op("add")(wildcard(), wildcard())
    >>> len(context.edges)
    1
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from kernelyard.errors import PatternError
from kernelyard.records import record

if TYPE_CHECKING:
    from kernelyard.patterns.language.pattern import Pattern


@record(eq=False)
class Edge:
    """`consumer` reads the value of `producer` as operand `index` (None: any).

    only: and nothing else does, nor does the function return it.
    """

    producer: Pattern
    consumer: Pattern
    only: bool = False
    index: int | None = None


@record(eq=False)
class PatternSeq:
    """Patterns of which each uses the one before; made by `a ^ b` (used by) and `a >> b` (only used by)."""

    patterns: tuple[Pattern, ...]

    def used_by(self, other: Sequenced, index: int | None = None) -> PatternSeq:
        """Say that the last pattern is used by the first of `other`."""
        return self._then(other, False, index)

    def only_used_by(self, other: Sequenced, index: int | None = None) -> PatternSeq:
        """Say that the last pattern is used by the first of `other`, and by nothing else."""
        return self._then(other, True, index)

    __xor__ = used_by
    __rshift__ = only_used_by

    def dup(self) -> PatternSeq:
        """Return independent copies of the patterns, under the same edges."""
        copies = [pattern.dup() for pattern in self.patterns]
        context = current_context()
        for (old, old_next), (new, new_next) in zip(pairwise(self.patterns), pairwise(copies), strict=True):
            for edge in tuple(context.edges):
                if edge.producer is old and edge.consumer is old_next:
                    context.add_edge(Edge(new, new_next, edge.only, edge.index))
        return PatternSeq(tuple(copies))

    def _then(self, other: Sequenced, only: bool, index: int | None) -> PatternSeq:
        following = other.patterns if isinstance(other, PatternSeq) else (other,)
        current_context().add_edge(Edge(self.patterns[-1], following[0], only, index))
        return PatternSeq((*self.patterns, *following))


Sequenced: TypeAlias = "Pattern | PatternSeq"


class PatternContext:
    """Collects the patterns and edges that are made inside `with PatternContext() as context:`.

    All of them together are one pattern of a graph: the operators in it stand for different values. Patterns made
    outside take part as far as edges name them. incremental: what the enclosing context has collected holds too.
    """

    def __init__(self, incremental: bool = False) -> None:
        outer = _CURRENT.get() if incremental else None
        self.edges: list[Edge] = list(outer.edges) if outer else []
        self.patterns: dict[Pattern, None] = dict(outer.patterns) if outer else {}
        self._tokens: list[Token[PatternContext | None]] = []

    def __enter__(self) -> PatternContext:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(self, *exception: object) -> None:
        _CURRENT.reset(self._tokens.pop())

    def add_edge(self, edge: Edge) -> None:
        """Demand that an edge be there."""
        self.edges.append(edge)
        self.patterns.setdefault(edge.producer)
        self.patterns.setdefault(edge.consumer)

    def add_pattern(self, pattern: Pattern) -> None:
        """Demand that a pattern match."""
        self.patterns.setdefault(pattern)


_CURRENT: ContextVar[PatternContext | None] = ContextVar("kernelyard_pattern_context", default=None)


def current_context() -> PatternContext:
    """Return the innermost context entered.

    Raises: PatternError when there is none.
    """
    context = _CURRENT.get()
    if context is None:
        raise PatternError(
            "edges between patterns need a PatternContext", expected="the statement inside `with PatternContext():`"
        )
    return context


def record_pattern(pattern: Pattern) -> None:
    """Tell the innermost context, if there is one, about a new pattern."""
    context = _CURRENT.get()
    if context is not None:
        context.add_pattern(pattern)
