"""Small networks of convolutions, for tests of what stays in their layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import kernelyard as ky
from kernelyard.dims import Dim
from kernelyard.ir import Expr, FunctionBuilder, IRModule
from kernelyard.testing import evaluate


def weights(filters: int, channels: int, size: int = 1) -> np.ndarray:
    """Return square filters, scaled so that sums over channels stay small."""
    shape = (filters, channels, size, size)
    return np.random.default_rng(filters).standard_normal(shape, dtype=np.float32) / channels


def module_of(build: Callable[..., Expr], shape: Sequence[Dim], *args: Any, **attrs: Any) -> IRModule:
    """Return a module of what `build(builder, image, *args, **attrs)` returns."""
    b = FunctionBuilder()
    return IRModule({"main": b.function(build(b, b.input("x", tuple(shape)), *args, **attrs))})


def assert_right(module: IRModule, exe: ky.Executable, shape: Sequence[int]) -> np.ndarray:
    """Compare with the NumPy reference on a random image, which is returned."""
    x = np.random.default_rng(7).standard_normal(tuple(shape), dtype=np.float32)
    (expected,) = evaluate(module, [x])
    np.testing.assert_allclose(exe(x).numpy(), expected, rtol=1e-4, atol=1e-5)
    return x
