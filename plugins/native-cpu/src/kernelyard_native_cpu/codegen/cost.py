"""Rough running times, for one decision: whether a loop is worth waking other threads."""

from __future__ import annotations

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import PER_WORD, Binary, ComputeBlock, Expr, Load, Unary, walk, work_of
from kernelyard_native_cpu.codegen.unary_functions import UNARY_FUNCTIONS
from kernelyard_native_cpu.schedule.plan import Plan

# Nanoseconds on one lane, measured: an operation, a load, and what each point costs besides.
_OPERATION = 0.15
_LOAD = 0.25
_POINT = 0.5
# A record that is sorted, and an element that is compared with the last one wanted.
_SORTED, _SELECTED = 12.0, 0.3
# Tiles in registers use each operand several times.
_SHARE_IN_TILE = 0.15
_WEIGHT_OF_FUNCTION = 12.0
_WEIGHT_OF_DIVISION = 4.0


def nanoseconds(block: ComputeBlock, plan: Plan) -> tuple[Dim, float]:
    """Return the number of points of a block, in one step of a loop over steps, and the time that each takes."""
    if plan.sort is not None:
        return work_of(block), _SORTED if plan.sort.is_whole else _SELECTED
    points = dims.product(axis.extent for axis in (*block.spatial_axes, *block.reduce_axes))
    expressions, lanes = block.expressions, plan.lanes
    if plan.dot_product is not None:  # one product of words for as many points as a word has bytes
        expressions, lanes = (plan.dot_product.of.words,), PER_WORD * plan.lanes
    operations = sum(map(_weight, walk(*expressions)))
    time = (operations * _OPERATION + len(block.loads) * _LOAD + _POINT) / lanes
    is_tiled = bool(plan.tiles) and bool(block.reduce_axes)
    return points, round(time * _SHARE_IN_TILE if is_tiled else time, 5)


def _weight(expr: Expr) -> float:
    if isinstance(expr, Load):
        return 1.0
    if isinstance(expr, Unary) and expr.op in UNARY_FUNCTIONS:
        return _WEIGHT_OF_FUNCTION
    if isinstance(expr, Binary):
        return _WEIGHT_OF_DIVISION if expr.op in ("div", "mod", "fmod", "floordiv", "truncdiv", "pow") else 1.0
    return 0.5 if expr.children else 0.0
