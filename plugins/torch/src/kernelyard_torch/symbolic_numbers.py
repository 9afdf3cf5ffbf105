"""Numbers that torch computes from sizes, or reads from tensors, as tensors of rank 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import sympy

from kernelyard.plugins.api import Constant, Expr
from kernelyard_torch.sizes import NotASizeError

if TYPE_CHECKING:
    from kernelyard_torch.node import Node

_COMPARISONS: dict[type[sympy.Basic], str] = {
    sympy.Eq: "equal",
    sympy.Ne: "not_equal",
    sympy.Lt: "less",
    sympy.Le: "less_equal",
    sympy.Gt: "greater",
    sympy.Ge: "greater_equal",
}
_FOLDED = {
    "And": "logical_and",
    "Or": "logical_or",
    "Add": "add",
    "Mul": "multiply",
    "Max": "maximum",
    "Min": "minimum",
}
_DIVISIONS = ("IntTrueDiv", "FloatTrueDiv")
_POWERS = ("Pow", "FloatPow", "PowByNatural")
_ROUNDING = {"FloorToInt": "floor", "CeilToInt": "ceil", "TruncToInt": "trunc", "TruncToFloat": "trunc"}


def number(node: Node, expr: Any) -> Expr:
    """Return a SymPy expression as a tensor of rank 0: bool for relations, int64 for sizes, else float64.

    Raises: RejectedError for functions that are not supported.
    """
    if isinstance(expr, (bool, int, float)):
        return Constant(expr)
    if expr in (sympy.true, sympy.false):
        return Constant(bool(expr))
    if isinstance(expr, sympy.Symbol) and expr in node.importer.shared.scalars:
        return node.importer.shared.scalars[expr]
    if isinstance(expr, sympy.Number) and not expr.is_integer:
        return Constant(float(expr))
    try:
        return node.expr(node.importer.shared.sizes.dim(expr), "int64")
    except NotASizeError:
        return _compute(node, expr)


def _compute(node: Node, expr: Any) -> Expr:
    kind = type(expr).__name__
    args = [number(node, arg) for arg in expr.args]

    def real(value: Expr) -> Expr:
        return node.cast(value, "float64")

    if kind == "Not":
        return node.op("logical_not", args[0])
    if kind in _ROUNDING:
        rounded = node.op(_ROUNDING[kind], real(args[0]))
        return node.cast(rounded, "int64") if kind.endswith("ToInt") else rounded
    if kind == "ToFloat":
        return real(args[0])
    combine = _combination(node, expr, kind)
    if combine is None:
        return node.reject(f"it computes an unsupported expression of a number: {expr}")
    if kind in ("And", "Or"):
        return reduce(combine, args)
    return reduce(combine, [real(arg) for arg in args])


def _combination(node: Node, expr: Any, kind: str) -> Callable[[Expr, Expr], Expr] | None:
    name = _FOLDED.get(kind) or _COMPARISONS.get(type(expr))
    name = name or ("divide" if kind in _DIVISIONS else "power" if kind in _POWERS else None)
    return None if name is None else lambda left, right: node.op(name, left, right)
