"""Expressions of four bits: sixteen values, which are worked out at compile time."""

from __future__ import annotations

from functools import lru_cache

from kernelyard.plugins.codegen_api import Binary, Cast, Const, Expr, ExprRewriter, Simplifier, Unary

_MASK = Const(15, "int32")
_MOST_NODES = 64  # a dequantization is short


@lru_cache(maxsize=1 << 12)
def four_bits(expr: Expr) -> Binary | None:
    """Return the `x & 15` that a computed float32 depends on, where it depends on nothing else.

    Example:
        >>> from kernelyard.tir.expr import cast, load
        >>> from kernelyard.tir import Buffer
        >>> bits = load(Buffer("x", (), "int32"), ()) & 15
        >>> four_bits(cast(bits, "float32") - 8.0) == bits
        True
    """
    if expr.size > _MOST_NODES:
        return None
    leaves = set(_leaves(expr))
    (leaf,) = leaves if len(leaves) == 1 else (None,)
    return leaf if isinstance(leaf, Binary) and leaf != expr else None


def _leaves(expr: Expr) -> list[Expr]:
    if isinstance(expr, Const):
        return []
    if isinstance(expr, Binary) and expr.op == "and" and expr.b == _MASK:
        return [expr]
    if isinstance(expr, (Binary, Unary, Cast)):
        return [leaf for child in expr.children for leaf in _leaves(child)]
    return [expr]


@lru_cache(maxsize=1 << 8)
def table_of(expr: Expr, bits: Expr) -> tuple[float, ...]:
    """Return the values of an expression where `bits` are 0 to 15."""
    simplify = Simplifier({})

    def value(number: int) -> float:
        folded = simplify(ExprRewriter(lambda part: Const(number, "int32") if part == bits else part)(expr))
        assert isinstance(folded, Const)
        return float(folded.value)

    return tuple(map(value, range(16)))
