"""Causal masks: which keys a query does not see, as far as that depends on the difference of their places alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    Axis,
    Binary,
    ComputeBlock,
    Const,
    Expr,
    IndexAlgebra,
    IterVar,
    Select,
    is_index,
)

_SIDES = {"le": ("a", "b", 0), "lt": ("a", "b", 1), "ge": ("b", "a", 0), "gt": ("b", "a", 1)}


class Mask(NamedTuple):
    """A query in row r sees the keys of the columns up to r + offset; condition: that it sees one."""

    condition: Expr
    offset: Dim


def mask_of(block: ComputeBlock, rows: Sequence[IterVar], column: IterVar) -> Mask | None:
    """Return the mask of a block that makes scores; None where it has none, or another one."""
    body = block.body
    if not isinstance(body, Select) or not isinstance(body.b, Const) or body.b.value != float("-inf"):
        return None
    condition = body.condition
    if len(rows) != 1 or not isinstance(condition, Binary):
        return None
    if condition.op not in _SIDES or not (is_index(condition.a) and is_index(condition.b)):
        return None
    left, right, more = _SIDES[condition.op]
    algebra = IndexAlgebra({axis.name: axis.extent for axis in block.axes})
    places = [algebra.to_dim(Axis(axis.name)) for axis in (rows[0], column)]
    # column - row <= offset
    difference = algebra.to_dim(getattr(condition, left)) - algebra.to_dim(getattr(condition, right)) + more
    offset = places[1] - places[0] - difference
    axes = {name for axis in block.axes for name in dims.symbols_of(algebra.to_dim(Axis(axis.name)))}
    return None if axes & set(dims.symbols_of(offset)) else Mask(condition, offset)
