"""Integers that a caller passes: each is the shape of an input without memory, so that it is known before a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernelyard.dims import Dim, Shape
from kernelyard.errors import ExecutionError
from kernelyard_torch.sizes import Sizes


@dataclass(frozen=True)
class ShapeEncodedInt:
    """An integer encoded in the shape of an array without memory, whose sizes are 1 or more, as all sizes are.

    sign: 1 for a number from 0 on, which is a size less 1; -1 for one below 0, which is a size with the other sign; 0
    for any, which is the difference of two sizes.
    """

    sign: int

    @classmethod
    def of(cls, number: torch.SymInt) -> ShapeEncodedInt:
        """Read the sign that TorchDynamo guards of a number that it has captured."""
        bounds = number.node.shape_env.bound_sympy(number.node.expr)
        return cls(1 if bounds.lower >= 0 else -1 if bounds.upper < 0 else 0)

    def dim(self, sizes: Sizes, name: str) -> tuple[Dim, Shape]:
        """Return the number and the shape of the input that encodes it, over new symbols."""
        first = sizes.fresh(name)
        if self.sign:
            return (first - 1 if self.sign > 0 else -1 * first), (first,)
        second = sizes.fresh(name)
        return first - second, (first, second)

    def feed(self, number: int) -> list[np.ndarray]:
        """Return the input that encodes a number. Raises: ExecutionError for one of another sign, or too large."""
        fits = {1: number >= 0, -1: number < 0, 0: True}[self.sign]
        if not fits or abs(number) >= np.iinfo(np.int64).max:
            expected = {1: "0 or more", -1: "below 0", 0: "a number of 63 bits"}[self.sign]
            raise ExecutionError(
                "a number that sizes depend on is not as when it was captured", found=number, expected=expected
            )
        shapes = {1: (number + 1,), -1: (-number,), 0: (max(number, 0) + 1, max(-number, 0) + 1)}
        shape = shapes[self.sign]
        return [np.ndarray(shape, np.bool_, b"\0", 0, (0,) * len(shape))]
