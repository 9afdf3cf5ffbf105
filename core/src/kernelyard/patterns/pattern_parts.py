"""The parts of a pattern: what it is made of, what it may capture, whether a match has anything to compute."""

from __future__ import annotations

from kernelyard.patterns.pattern import (
    CallPattern,
    CapturePattern,
    FunctionCallPattern,
    Pattern,
    SameShapePattern,
    TupleGetItemPattern,
    field_values,
)

# What a match may move into its group.
COMPUTED = (CallPattern, FunctionCallPattern, TupleGetItemPattern)


def computes(pattern: Pattern) -> bool:
    """Return True for a pattern whose matches have something to compute, if there are any."""
    return pattern.root_ops != frozenset() and any(isinstance(part, COMPUTED) for part in walk(pattern))


def captured_names(pattern: Pattern) -> tuple[str, ...]:
    """Names that a match of this pattern may capture, in order of appearance, each once."""
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


def children(pattern: Pattern) -> list[Pattern]:
    """Return the patterns that this one is made of; those that it is only compared with are not among them."""
    if isinstance(pattern, SameShapePattern):
        return [pattern.pattern]
    parts: list[Pattern] = []
    for value in field_values(pattern).values():
        parts += [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Pattern)]
    return parts
