"""Loops inside of one element's expression: a walk from node to node of a tree, say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelyard.errors import IRError
from kernelyard.tir.expr import Expr


@dataclass(frozen=True, eq=False)
class State(Expr):
    """Name the state of an `Iterate`, the value of its steps so far; only its body may use it."""

    name: str
    dtype: str


@dataclass(frozen=True, eq=False)
class Iterate(Expr):
    """Repeat an expression `count` times from `init`: in each step, the value of `body` takes the place of `state`.

    A step that changes nothing ends the loop early: those after it would change nothing either.
    """

    state: State
    init: Expr
    body: Expr
    count: int

    @property
    def dtype(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.state.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.init, self.body)

    def with_children(self, new: tuple[Expr, ...]) -> Expr:
        init, body = new
        return Iterate(self.state, init, body, self.count)


def iterate(name: str, init: Expr, count: int, body: Callable[[State], Expr]) -> Expr:
    """Return a checked `Iterate`, whose state has a name that no other around it has.

    Raises: IRError where the body has another dtype than the state, or a state of the same name.

    Example:
        >>> from kernelyard.tir.expr import const
        >>> doubled = iterate("s", const(3, "int32"), 4, lambda s: s * 2)  # 3 * 2 ** 4
        >>> doubled.dtype
        'int32'
    """
    state = State(name, init.dtype)
    made = Iterate(state, init, body(state), count)
    check_iterate(made)
    return made


def check_iterate(expr: Iterate) -> None:
    """Check the parts of an `Iterate`. Raises: see `iterate`."""
    for part, what in ((expr.init, "first value"), (expr.body, "body")):
        if part.dtype != expr.state.dtype:
            raise IRError(f"the {what} has another dtype than the state", found=part.dtype, expected=expr.state.dtype)
    if expr.count < 0:
        raise IRError("there is no such number of steps", found=expr.count, expected="0 or more")
    stack, seen = [expr.body], set[int]()
    while stack:
        part = stack.pop()
        if isinstance(part, Iterate) and part.state.name == expr.state.name:
            raise IRError("the body has a state of the same name", found=part.state.name)
        if id(part) not in seen:
            seen.add(id(part))
            stack.extend(part.children)
