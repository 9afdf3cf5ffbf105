"""Rough running times, for one decision: whether a loop is worth waking other threads."""

from __future__ import annotations

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.tir import Binary, ComputeBlock, Expr, Load, Unary
from kernelyard.tir.primfunc import walk
from kernelyard_native_cpu.codegen import math

# Nanoseconds per scalar operation; vector code does several at a time.
_OPERATION = 0.3
_MEMORY = 0.1  # per load, whatever its width
_WEIGHT_OF_FUNCTION = 12.0
_WEIGHT_OF_DIVISION = 4.0


def nanoseconds(block: ComputeBlock, lanes: int) -> tuple[Dim, float]:
    """The number of points of a block, and the time that each takes."""
    points = dims.product(axis.extent for axis in block.axes)
    operations = sum(map(_weight, walk(*block.expressions)))
    return points, round(operations * _OPERATION / lanes + len(block.loads) * _MEMORY, 4)


def _weight(expr: Expr) -> float:
    if isinstance(expr, Load):
        return 1.0
    if isinstance(expr, Unary) and expr.op in math.UNARY:
        return _WEIGHT_OF_FUNCTION
    if isinstance(expr, Binary):
        return _WEIGHT_OF_DIVISION if expr.op in ("div", "mod", "fmod", "floordiv", "truncdiv", "pow") else 1.0
    return 0.5 if expr.children else 0.0
