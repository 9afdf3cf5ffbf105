"""In which order the dims of a value will lie in memory: what checks know of the layouts that the runtime chooses."""

from __future__ import annotations

from kernelyard.plugins.api import Call, Expr, Match, Var
from kernelyard_dnnl.composite import kind_of, kind_that_made
from kernelyard_dnnl.layout import channels_last_order
from kernelyard_dnnl.primitive_kind import MemoryOrder

MAX_STEPS_BACK = 8


def infer_order(match: Match, operand: Expr, steps: int = MAX_STEPS_BACK) -> tuple[int, ...] | None:
    """Return the dims of an operand of a match from the outermost to the innermost in memory; None where that is not
    clear.

    What comes from outside oneDNN is row-major.
    """
    value, rank = match.value_of(operand), operand.tensor_type.rank
    kind = kind_that_made(value, match)
    if kind is None or kind.order == MemoryOrder.ROW_MAJOR:
        return tuple(range(rank))
    if kind.order == MemoryOrder.CHANNELS_LAST:
        return channels_last_order(rank)
    assert isinstance(value, Call)
    if not steps or kind_of(value) is None:
        return None
    kept = _find_layout_source(value, kind.order)
    read = value.args[0] if kept is None else kept
    order = infer_order(match, read, steps - 1)
    if kept is None:
        return tuple(range(rank)) if order == tuple(range(read.tensor_type.rank)) else None
    if order is not None and kind.order == MemoryOrder.RENAMED:
        axes = value.attrs["axes"]
        return tuple(axes.index(axis) for axis in order)
    return order


def _find_layout_source(value: Call, order: MemoryOrder) -> Expr | None:
    """Return the operand whose layout the result has."""
    if order == MemoryOrder.OPEN:
        return None
    if order != MemoryOrder.WHOLE_OPERAND:
        return value.args[0]
    shape = value.tensor_type.shape
    whole = [arg for arg in value.args if arg.tensor_type.shape == shape]
    # Of two whole operands, the layout that a primitive chose wins over that of an input.
    computed = [arg for arg in whole if isinstance(arg, Var)] or whole
    return computed[0] if computed else None
