"""Packing: a constant input of a loop-level function kept in the order in which its kernel reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.dims import Dim, Shape
from kernelyard.runtime.abi import memory
from kernelyard.tir.expr import Const, Expr, index
from kernelyard.tir.padding import pad_axis
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.visitor import replace_inputs


@dataclass(frozen=True)
class Packing:
    """An axis is cut into blocks of `block` elements: the index of the block becomes the first axis, the index within
    it the last one. Where the block does not divide the axis, the last one is filled up with zeros.

    Example:
        >>> Packing(axis=1, block=2).apply(np.arange(8).reshape(2, 4)).tolist()
        [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
        >>> Packing(axis=0, block=4).apply(np.arange(1, 7)).tolist()
        [[1, 2, 3, 4], [5, 6, 0, 0]]
    """

    axis: int
    block: int

    def blocks(self, shape: Shape) -> Dim:
        """Return the number of blocks of a tensor."""
        return dims.floordiv(shape[self.axis] + self.block - 1, self.block)

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of a packed tensor."""
        blocks = self.blocks(shape)
        return (blocks, *shape[: self.axis], *shape[self.axis + 1 :], self.block)

    def indices(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Map indices of the tensor to indices of the packed tensor."""
        whole = indices[self.axis]
        outer, inner = whole // index(self.block), whole % index(self.block)
        if isinstance(whole, Const):
            outer, inner = index(int(whole.value) // self.block), index(int(whole.value) % self.block)
        return (outer, *indices[: self.axis], *indices[self.axis + 1 :], inner)

    def apply(self, array: np.ndarray) -> np.ndarray:
        """Return the tensor packed, dense and 64-byte aligned: runs read it where it is."""
        shape = tuple(dims.evaluate(each, {}) for each in self.shape(array.shape))
        packed = memory.aligned_empty(shape, dtypes.from_numpy(array.dtype))
        whole, rest = divmod(array.shape[self.axis], self.block)
        rows = np.moveaxis(array, self.axis, -1)
        blocks = rows[..., : whole * self.block].reshape(*rows.shape[:-1], whole, self.block)  # a view
        packed[:whole] = np.moveaxis(blocks, -2, 0)
        if rest:
            packed[whole, ..., :rest] = rows[..., whole * self.block :]
            packed[whole, ..., rest:] = 0
        return packed


def pack_inputs(function: PrimFunc, packings: Mapping[int, Packing]) -> PrimFunc:
    """Return the function reading some of its inputs, given by position, packed.

    Where blocks do not divide an axis, the function computes all of the last one (`paddable_axis` must name the axis).
    """
    for position, packing in packings.items():
        buffer = function.inputs[position]
        whole = packing.blocks(buffer.shape) * packing.block
        if whole != buffer.shape[packing.axis]:
            function = pad_axis(function, buffer, packing.axis, whole)
    chosen = {function.inputs[position]: packing for position, packing in packings.items()}
    packed = {buffer: replace(buffer, shape=packing.shape(buffer.shape)) for buffer, packing in chosen.items()}
    return replace_inputs(function, packed, lambda buffer, indices: chosen[buffer].indices(indices))
