"""Bounds of symbolic dims whose symbols are at least 1."""

from __future__ import annotations

from kernelyard import dims
from kernelyard.dims import Dim, Function, SymbolicDim
from kernelyard.plugins.api import is_nonnegative


def at_least(dim: Dim, number: Dim) -> bool:
    """Return True when `dim >= number` is proved.

    Example:
        >>> at_least(dims.symbol("n") * 2 + 3, 5)
        True
    """
    difference = dim - number
    bound = _lower_bound(difference)
    return (bound is not None and bound >= 0) or is_nonnegative(difference)


def _lower_bound(dim: Dim) -> int | None:
    """Return a number that a sum of positive terms is never below; None when a term is subtracted or has no bound."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        if coefficient < 0 and monomial:
            return None
        least = coefficient
        for atom in monomial:
            factor = _lower_bound_of_atom(atom) if isinstance(atom, Function) else 1
            if factor is None or factor < 0:
                return None
            least *= factor
        total += least
    return total


def _lower_bound_of_atom(atom: Function) -> int | None:
    left, right = _lower_bound(atom.left), _lower_bound(atom.right)
    if atom.name == "floordiv":
        return left // atom.right if left is not None and isinstance(atom.right, int) and atom.right > 0 else None
    known = [bound for bound in (left, right) if bound is not None]
    if atom.name == "min":
        return min(known) if len(known) == 2 else None
    return max(known, default=None)


def maximum(left: Dim, right: Dim) -> Dim:
    """Return the larger of two dims, decided where it can be proved."""
    return left if at_least(left, right) else right if at_least(right, left) else dims.maximum(left, right)


def minimum(left: Dim, right: Dim) -> Dim:
    """Return the smaller of two dims, decided where it can be proved."""
    return right if at_least(left, right) else left if at_least(right, left) else dims.minimum(left, right)


def lone(dim: Dim, name: str) -> Function | None:
    """Return the `Function` atom of that name that the dim consists of, else None."""
    if isinstance(dim, SymbolicDim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Function) and monomial[0].name == name:
            return monomial[0]
    return None


def settle(dim: Dim) -> Dim:
    """Return the dim that a broadcast has whenever it is possible at all.

    A side that is at least 2 can only meet its equal or a 1, so it is the result. And where `x` meets `min(x, c)` with
    `c` at least 2, the result is `x`: either the two are equal, or the broadcast is impossible.

    Example:
        >>> n = dims.symbol("n")
        >>> settle(dims.broadcast(n * 2, dims.floordiv(n, 3)))
        n * 2
    """
    found = lone(dim, "broadcast")
    if found is None:
        return dim
    left, right = settle(found.left), settle(found.right)
    sides = [side for side in (left, right) if at_least(side, 2)]
    if sides:
        return min(sides, key=lambda side: len(str(side)))
    for side, other in ((left, right), (right, left)):
        if is_cut_of(other, side):
            return side
    return dims.broadcast(left, right)


def is_cut_of(dim: Dim, whole: Dim) -> bool:
    """Return True when `dim` is `min(whole, c)` with `c` at least 2.

    It broadcasts with `whole` only when it equals it.
    """
    found = lone(dim, "min")
    if found is None:
        return False
    sides = ((found.left, found.right), (found.right, found.left))
    return any(side == whole and at_least(limit, 2) for side, limit in sides)
