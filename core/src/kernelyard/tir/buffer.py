"""Buffers: the dense, row-major arrays that loop-level code reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelyard import dims, dtypes
from kernelyard.dims import Dim, Shape

if TYPE_CHECKING:
    from kernelyard.tir.expr import ExprLike, Load


@dataclass(frozen=True)
class Buffer:
    """A dense, row-major array; names are unique within a PrimFunc.

    scope: "global" buffers are parameters, "local" ones live only during one call of the PrimFunc.

    Example:
        >>> Buffer("x", (2, 3), "float32").numel
        6
    """

    name: str
    shape: Shape
    dtype: str
    scope: str = "global"

    def __post_init__(self) -> None:
        dtypes.to_numpy(self.dtype)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        """The number of elements."""
        return dims.product(self.shape)

    @property
    def nbytes(self) -> Dim:
        """The size in bytes."""
        return self.numel * dtypes.itemsize(self.dtype)

    @property
    def strides(self) -> Shape:
        """Elements from one index to the next, per dimension."""
        strides: list[Dim] = []
        step: Dim = 1
        for dim in reversed(self.shape):
            strides.append(step)
            step = step * dim
        return tuple(reversed(strides))

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Load:
        """Return the load of one element; `buffer[()]` for rank 0.

        Raises: IRError when the number of indices is not the rank.
        """
        from kernelyard.tir.expr import load  # expressions refer to buffers; only this notation goes the other way

        return load(self, indices if isinstance(indices, tuple) else (indices,))
