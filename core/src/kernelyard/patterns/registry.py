"""FusionPattern: a pattern owned by a backend, with the check that accepts or declines; and where they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from kernelyard.errors import PatternError, did_you_mean
from kernelyard.ir.expr import Expr
from kernelyard.patterns.cost import Cost
from kernelyard.patterns.language.pattern import Pattern
from kernelyard.patterns.language.pattern_parts import computes
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.matching.near_miss import describe
from kernelyard.records import record


@record
class Accept:
    """The backend takes the match. It is a promise: its codegen must then succeed.

    cost: an estimate of it. With `backends="auto"`, work that the target's code generator knows stays with it without.
    """

    cost: Cost | None = None

    def __post_init__(self) -> None:
        if self.cost is not None and not isinstance(self.cost, Cost):
            raise PatternError("a cost is no Cost", found=repr(self.cost), expected="Cost(seconds)")


@record
class Decline:
    """The backend does not take the match.

    code: a short stable word for tables ("dtype", "dynamic-shape"); message: a sentence with what was found and what
    would do; at: the operand or value in question, when it is not the root. divide: of a region that is too large for
    the device: it is halved, and the halves are asked for, down to single composites.
    """

    code: str
    message: str
    at: Expr | None = None
    divide: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.code, str) and self.code and isinstance(self.message, str)):
            found = f"{self.code!r}, {self.message!r}"
            raise PatternError("a refusal is not Decline(code, message)", found=found, expected="two texts")


Answer: TypeAlias = "Accept | Decline"


@record(eq=False)
class FusionPattern:
    """A pattern that a backend offers to execute.

    name: "<backend>.<pattern>", unique; a label for people and reports, and the backend's namespace.
    check: asked for each legal match; None accepts all. attrs_getter: attributes for the composite function, plain
    values (bool, int, float, str, None, dims, and tuples or dicts of these).

    Raises: PatternError when the name has no backend or pattern part, and for a pattern that no call can match.

    Example:
        >>> from kernelyard.patterns import is_op, wildcard
        >>> FusionPattern("acme.relu", is_op("nn.relu")(wildcard())).backend
        'acme'
    """

    name: str
    pattern: Pattern
    check: Callable[[Match], Answer] | None = None
    attrs_getter: Callable[[Match], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        backend, dot, rest = self.name.partition(".")
        if not (backend and dot and rest):
            raise PatternError("a pattern's name lacks its backend", found=self.name, expected="<backend>.<pattern>")
        if not isinstance(self.pattern, Pattern):
            raise PatternError(f"{self.name} has no pattern", found=repr(self.pattern), expected="a Pattern")
        if not computes(self.pattern):
            raise PatternError(
                f"{self.name} matches no call",
                found=describe(self.pattern),
                expected="a pattern of a call, such as is_op('nn.relu')(wildcard())",
            )

    @property
    def backend(self) -> str:
        """The backend that owns the pattern."""
        return backend_of(self.name)


PatternLike: TypeAlias = "FusionPattern | tuple[str, Pattern] | tuple[str, Pattern, Callable[[Match], Answer]]"


def backend_of(pattern_name: str) -> str:
    """Return the backend's part of a pattern name: what stands before the first dot."""
    return pattern_name.partition(".")[0]


def as_fusion_pattern(given: PatternLike) -> FusionPattern:
    """Return a FusionPattern from one, or from a tuple (name, pattern) or (name, pattern, check).

    Raises: PatternError naming what was given.
    """
    if isinstance(given, FusionPattern):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        return FusionPattern(given[0], given[1])
    if isinstance(given, tuple) and len(given) == 3:
        return FusionPattern(given[0], given[1], given[2])
    raise PatternError(
        "this is no fusion pattern",
        found=repr(given),
        expected="FusionPattern, (name, pattern) or (name, pattern, check)",
    )


class MatchRecorder(Protocol):
    """Observer of what happens to each match; `kernelyard.placement.recorder` has the default implementation."""

    def record_match(self, pattern: FusionPattern, match: Match, function: str, composite: str) -> None:
        """Record that `match` in `function` became a call of the composite function."""
        ...

    def record_decline(self, pattern: FusionPattern, match: Match, function: str, decline: Decline) -> None:
        """Record that `match` in `function` stays unchanged."""
        ...


class PatternRegistry:
    """Fusion patterns by backend, in priority order: the first registered is tried first."""

    def __init__(self) -> None:
        self._patterns: dict[str, FusionPattern] = {}

    def register(self, patterns: Iterable[PatternLike]) -> None:
        """Add patterns after those that are there.

        Raises: PatternError for a name that is taken by another pattern; nothing is registered then.
        """
        new = [as_fusion_pattern(pattern) for pattern in patterns]
        taken = dict(self._patterns)
        for pattern in new:
            if taken.setdefault(pattern.name, pattern) is not pattern:
                raise PatternError(
                    f"the pattern {pattern.name!r} is registered twice", hint="give each pattern its own name"
                )
        self._patterns = taken

    def unregister(self, backend: str) -> None:
        """Forget a backend's patterns."""
        self._patterns = {name: p for name, p in self._patterns.items() if p.backend != backend}

    def of_backend(self, backend: str) -> tuple[FusionPattern, ...]:
        """Return the backend's patterns, highest priority first; none for a backend that has registered none."""
        return tuple(pattern for pattern in self._patterns.values() if pattern.backend == backend)

    def find(self, name: str) -> FusionPattern:
        """Return the pattern of that name.

        Raises: PatternError with the nearest name.
        """
        if name not in self._patterns:
            hint = did_you_mean(name, self._patterns) or "register it first"
            raise PatternError(f"no pattern is called {name!r}", hint=hint)
        return self._patterns[name]


_REGISTRY = PatternRegistry()


def register_patterns(patterns: Iterable[PatternLike]) -> None:
    """Add patterns to this process's registry; the first is tried first.

    Raises: PatternError for a name that is taken.
    """
    _REGISTRY.register(patterns)


def unregister_patterns(backend: str) -> None:
    """Forget a backend's patterns."""
    _REGISTRY.unregister(backend)


def get_patterns(backend: str) -> tuple[FusionPattern, ...]:
    """Return the patterns registered for a backend, highest priority first."""
    return _REGISTRY.of_backend(backend)


def get_pattern(name: str) -> FusionPattern:
    """Return the registered pattern of that name.

    Raises: PatternError with the nearest name.
    """
    return _REGISTRY.find(name)
