"""One case of the kernel benchmark: a small module, its feeds, and the same in torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kernelyard.ops  # noqa: F401  declares the operators
from kernelyard import dtypes
from kernelyard.ir import Expr, FunctionBuilder, IRModule

Build = Callable[..., Expr]  # of a builder and the operands: the result
TorchRun = Callable[..., Callable[[], Any]]  # of torch and the tensors: a call that computes the same


@dataclass(frozen=True)
class Spec:
    """An operand; its numbers are made when they are asked for."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * dtypes.itemsize(self.dtype)

    def array(self) -> np.ndarray:
        """Normally distributed; whole numbers for integers."""
        # Large ones repeat a block: making them must not take longer than measuring them.
        block = np.random.default_rng(0).standard_normal(min(self.size, 1 << 20)).astype(np.float32)
        if not dtypes.is_float(self.dtype):
            block = np.rint(block * 30)
        with np.errstate(invalid="ignore"):
            return np.resize(block.astype(dtypes.to_numpy(self.dtype)), self.shape)


@dataclass(frozen=True)
class Case:
    """feeds: what it is given per call; weights: constants; flops, nbytes: what it must do and touch at least."""

    kind: str
    name: str
    build: Build
    feeds: Sequence[Spec]
    weights: Sequence[Spec] = ()
    flops: float = 0.0
    nbytes: float = 0.0
    torch: TorchRun | None = None

    def module(self, weights: Sequence[np.ndarray]) -> IRModule:
        """The operators as a module with the weights in it."""
        b = FunctionBuilder()
        inputs = [b.input(f"x{n}", feed.shape, feed.dtype) for n, feed in enumerate(self.feeds)]
        return IRModule({"main": b.function(self.build(b, *inputs, *weights))})


def op(name: str, **attributes: Any) -> Build:
    """One operator."""

    def build(b: FunctionBuilder, *operands: Any) -> Expr:
        return b.op(name, *operands, **attributes)

    return build


def sizes(shape: Sequence[int]) -> str:
    """For names of cases."""
    return "x".join(map(str, shape))
