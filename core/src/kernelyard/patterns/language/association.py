"""A product over a number, however it is put together: `(a * b) / c`, `a * (b / c)` and `(a / c) * b` are one value.

Patterns and values are decomposed in the same way, so that a pattern of one form finds the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

MULTIPLY, DIVIDE = "multiply", "divide"

Operand = TypeVar("Operand")


@dataclass(frozen=True)
class Quotient(Generic[Operand]):
    """Two `factors` over a `divisor`; `inner` is the operand that is itself the product, or the quotient."""

    factors: tuple[Operand, Operand]
    divisor: Operand
    inner: Operand


def quotients(
    op: str, args: Sequence[Operand], operands_of: Callable[[Operand, str], Sequence[Operand] | None]
) -> tuple[Quotient[Operand], ...]:
    """Return the ways to read a call of `op` as a product over a number; none for most calls.

    operands_of(operand, name) gives the two operands of a call of that op, None for anything else.

    Example:
        >>> calls = {"product": ("a", "b")}
        >>> quotients("divide", ["product", "c"], lambda operand, op: calls.get(operand) if op == "multiply" else None)
        (Quotient(factors=('a', 'b'), divisor='c', inner='product'),)
    """
    if len(args) != 2:
        return ()
    left, right = args
    if op == DIVIDE:
        product = operands_of(left, MULTIPLY)
        return (Quotient((product[0], product[1]), right, left),) if product else ()
    if op != MULTIPLY:
        return ()
    found: list[Quotient[Operand]] = []
    for inner, factor in ((left, right), (right, left)):
        quotient = operands_of(inner, DIVIDE)
        if quotient:
            found.append(Quotient((quotient[0], factor), quotient[1], inner))
    return tuple(found)
