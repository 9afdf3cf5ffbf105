"""Scans: blocks whose elements along an axis are the one before combined with an item."""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard import dtypes
from kernelyard.tir.analysis import offset_of
from kernelyard.tir.expr import Axis, Binary, Const, Expr, Load, Select, index
from kernelyard.tir.primfunc import ComputeBlock
from kernelyard.tir.visitor import substitute_axes

_REDUCERS = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}


@dataclass(frozen=True)
class Recurrence:
    """Along `axis`, each element is `op` (add, mul, min or max) of the one before it and `item`; that at 0 is `first`.

    dtype: of the elements.
    """

    axis: str
    op: str
    first: Expr
    item: Expr
    dtype: str

    @property
    def reducer(self) -> str:
        """The reducer that combines by the same operation."""
        return _REDUCERS[self.op]

    @property
    def is_associative(self) -> bool:
        """Return False for products of floats: those of neighbours may leave the range that the running one stays
        in.
        """
        return self.op != "mul" or not dtypes.is_float(self.dtype)


def recurrence_of(block: ComputeBlock) -> Recurrence | None:
    """Return what a block of the form `k < 1 ? first : before + item` is made of, over its only ordered axis k.

    Example:
        >>> from kernelyard.ir import TensorType
        >>> from kernelyard.tir.builder import PrimFuncBuilder
        >>> from kernelyard.tir.expr import select
        >>> b = PrimFuncBuilder()
        >>> x = b.input("x", TensorType((9,), "float32"))
        >>> body = lambda total, at: select(at[0] < 1, x[at[0]], total[at[0] - 1] * x[at[0]])
        >>> block = b.finish((b.scan((9,), 0, body, "float32", lambda k: k),)).blocks[0]
        >>> found = recurrence_of(block)
        >>> found.op, found.reducer, found.is_associative
        ('mul', 'prod', False)
    """
    if block.reducer is not None or len(block.reduce_axes) != 1:
        return None
    (axis,) = block.reduce_axes
    match block.body:
        case Select(
            condition=Binary(op="lt", a=Axis(name=axis.name), b=Const(value=1)),
            a=first,
            b=Binary(op=op, a=Load() as before, b=item),
        ) if op in _REDUCERS and _is_before(block, before, axis.name):
            return Recurrence(axis.name, op, first, item, block.output.dtype)
    return None


def _is_before(block: ComputeBlock, load: Load, axis: str) -> bool:
    """Return True for the element that the step before has written, where nothing else of the output is read."""
    if load.buffer != block.output or sum(each.buffer == block.output for each in block.loads) > 1:
        return False
    zeros = {each.name: index(0) for each in block.axes if each.extent == 1}
    earlier = tuple(substitute_axes(e, {**zeros, axis: Axis(axis) - 1}) for e in block.indices)
    written = offset_of(block.output, earlier)
    read = offset_of(load.buffer, tuple(substitute_axes(e, zeros) for e in load.indices))
    return read.plus(written, -1) == written.plus(written, -1)
