"""Simplification: index arithmetic in normal form, conditions decided by the axes' ranges, constants folded.

Floating-point results stay the same to the last bit; only operations that cannot change them go (`x * 1`, `x / 1`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kernelyard import dtypes
from kernelyard.dims import Dim
from kernelyard.tir.expr import COMPARISONS, INDEX, Binary, Cast, Const, DimValue, Expr, Load, Select, Unary, const
from kernelyard.tir.index_algebra import IndexAlgebra, is_index
from kernelyard.tir.iterate import Iterate
from kernelyard.tir.primfunc import ComputeBlock, PrimFunc
from kernelyard.tir.visitor import rewrite_block

_TRUE, _FALSE = Const(True, "bool"), Const(False, "bool")
# op: (the constant that changes nothing, whether it may also stand on the left).
# x + 0.0 is left alone: -0.0 + 0.0 is 0.0.
_NEUTRAL: dict[str, tuple[int, bool]] = {"mul": (1, True), "div": (1, False), "truncdiv": (1, False), "pow": (1, False)}
_NEUTRAL_INTEGER: dict[str, tuple[int, bool]] = {
    **_NEUTRAL,
    "add": (0, True),
    "sub": (0, False),
    "shl": (0, False),
    "shr": (0, False),
    "or": (0, True),
    "xor": (0, True),
}


class Simplifier:
    """Simplifies expressions over axes of known extents.

    Example:
        >>> from kernelyard.tir import Axis
        >>> i = Axis("i")
        >>> Simplifier({"i": 4})(Select(i < 4, i * 1, i + 7)) == i
        True
    """

    def __init__(self, extents: Mapping[str, Dim]) -> None:
        self.algebra = IndexAlgebra(extents)
        self.done: dict[Expr, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        known = self.done.get(expr)
        if known is None:
            known = self.done[expr] = self._simplify(expr)
        return known

    def _simplify(self, expr: Expr) -> Expr:
        match expr:
            case DimValue(dim=int(size)):
                return const(size, INDEX)
            case Select():
                return self._select(expr)
        if not expr.children:
            return expr
        children = tuple(map(self, expr.children))
        expr = expr.with_children(children)
        if not isinstance(expr, (Load, Iterate)) and all(isinstance(child, Const) for child in children):
            return _fold(expr)
        match expr:
            case Binary():
                return self._binary(expr)
            case Unary(op="not", x=Unary(op="not")):
                return expr.x.children[0]
            case Cast() if expr.dtype == expr.x.dtype:
                return expr.x
        return expr

    def _binary(self, expr: Binary) -> Expr:
        if expr.op in COMPARISONS and is_index(expr.a) and is_index(expr.b):
            return self._compare(expr)
        if is_index(expr):
            return self.algebra.normalize(expr)
        return _logical(expr) if expr.dtype == "bool" else _remove_neutral(expr)

    def _select(self, expr: Select) -> Expr:
        condition = self(expr.condition)
        if isinstance(condition, Const):
            return self(expr.a if condition.value else expr.b)
        a, b = self(expr.a), self(expr.b)
        return a if a == b else Select(condition, a, b)

    def _compare(self, expr: Binary) -> Expr:
        a, b = self.algebra.to_dim(expr.a), self.algebra.to_dim(expr.b)
        at_least = self.algebra.is_nonnegative
        less, not_less = at_least(b - a - 1), at_least(a - b)
        greater, not_greater = at_least(a - b - 1), at_least(b - a)
        decided = {
            "lt": (less, not_less),
            "ge": (not_less, less),
            "gt": (greater, not_greater),
            "le": (not_greater, greater),
            "eq": (a == b, less or greater),
            "ne": (less or greater, a == b),
        }[expr.op]
        return _TRUE if decided[0] else _FALSE if decided[1] else expr


def _fold(expr: Expr) -> Expr:
    from kernelyard.tir import interpreter  # inside: few functions have constants to fold

    values = [np.asarray(c.value).astype(dtypes.to_numpy(c.dtype)) for c in expr.children if isinstance(c, Const)]
    with np.errstate(all="ignore"):
        match expr:
            case Unary():
                result = interpreter.UNARY[expr.op](values[0].reshape(1))
            case Binary(op="floordiv" | "truncdiv" | "mod" | "fmod") if dtypes.is_integer(expr.dtype) and not values[1]:
                return expr
            case Binary():
                result = interpreter.BINARY[expr.op](*values)
            case Cast():
                result = dtypes.convert(values[0], expr.dtype)
            case _:
                return expr
    return const(np.asarray(result).reshape(()).item(), expr.dtype)


def _logical(expr: Binary) -> Expr:
    for one, other in ((expr.a, expr.b), (expr.b, expr.a)):
        if isinstance(one, Const) and expr.op in ("and", "or"):
            return other if one.value == (expr.op == "and") else one
    return expr.a if expr.a == expr.b and expr.op in ("and", "or") else expr


def _remove_neutral(expr: Binary) -> Expr:
    table = _NEUTRAL if dtypes.is_float(expr.dtype) else _NEUTRAL_INTEGER
    neutral, either_side = table.get(expr.op, (None, False))
    if neutral is not None and isinstance(expr.b, Const) and expr.b.value == neutral:
        return expr.a
    if neutral is not None and either_side and isinstance(expr.a, Const) and expr.a.value == neutral:
        return expr.b
    return expr


def simplify_block(block: ComputeBlock) -> ComputeBlock:
    """Return the block with simplified expressions."""
    if any(axis.extent == 0 for axis in block.axes):
        block = _remove_body(block)
    return rewrite_block(block, Simplifier({axis.name: axis.extent for axis in block.axes}))


def _remove_body(block: ComputeBlock) -> ComputeBlock:
    """Return a block without points, whose body is never evaluated, with one that divides by no empty axis."""
    arg = None if block.arg is None else const(0, INDEX)
    return replace(block, body=const(0, block.body.dtype), arg=arg)


def simplify(function: PrimFunc) -> PrimFunc:
    """Return the function with every block simplified."""
    return function.with_blocks(tuple(map(simplify_block, function.blocks)))
