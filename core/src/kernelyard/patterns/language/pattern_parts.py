"""The parts of a pattern: what it is made of, what it may capture, whether a match has anything to compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from kernelyard.patterns.language.pattern import (
    CallPattern,
    CapturePattern,
    FunctionCallPattern,
    Pattern,
    PredicatePattern,
    SameShapePattern,
    TupleGetItemPattern,
    field_values,
)

T = TypeVar("T")

# What a match may move into its group.
COMPUTED = (CallPattern, FunctionCallPattern, TupleGetItemPattern)


def cache_by_pattern(compute: Callable[[Pattern], T]) -> Callable[[Pattern], T]:
    """Keep what a function says of a pattern as long as the pattern lives: patterns never change, and backends offer
    the same ones to every model.
    """
    known: WeakKeyDictionary[Pattern, T] = WeakKeyDictionary()

    @wraps(compute)
    def look_up(pattern: Pattern) -> T:
        if pattern not in known:
            known[pattern] = compute(pattern)
        return known[pattern]

    return look_up


@cache_by_pattern
def computes(pattern: Pattern) -> bool:
    """Return True for a pattern whose matches have something to compute, if there are any."""
    return pattern.root_ops != frozenset() and any(isinstance(part, COMPUTED) for part in walk(pattern))


@cache_by_pattern
def has_predicate(pattern: Pattern) -> bool:
    """Return True for a pattern of which some part is a predicate, a vendor's function."""
    return any(isinstance(part, PredicatePattern) for part in walk(pattern))


def list_captures(pattern: Pattern) -> tuple[str, ...]:
    """Return the names that a match of this pattern may capture, in order of appearance, each once."""
    names: dict[str, None] = {}
    for part in walk(pattern):
        if isinstance(part, CapturePattern):
            names.setdefault(part.name)
    return tuple(names)


def walk(pattern: Pattern) -> tuple[Pattern, ...]:
    """Return the pattern and its parts, each once, in order of appearance."""
    seen: dict[Pattern, None] = {}
    pending = [pattern]
    while pending:
        part = pending.pop()
        if part not in seen:
            seen[part] = None
            pending += reversed(children(part))
    return tuple(seen)


@cache_by_pattern
def children(pattern: Pattern) -> tuple[Pattern, ...]:
    """Return the patterns that this one is made of; those that it is only compared with are not among them."""
    if isinstance(pattern, SameShapePattern):
        return (pattern.pattern,)
    parts: list[Pattern] = []
    for value in field_values(pattern).values():
        parts += [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Pattern)]
    return tuple(parts)
