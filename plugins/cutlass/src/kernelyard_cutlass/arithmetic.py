"""The kernels' arithmetic in NumPy: how operands are multiplied and gathered, and what epilogues do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from kernelyard_cutlass.epilogue import NONE, Epilogue

Array = np.ndarray
F32 = np.float32


def _tf32(x: Array) -> Array:
    """Round to ten bits of fraction, halves away from zero."""
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(F32)


def multiply(a: Array, b: Array, math_: str) -> Array:
    """Multiply with accumulators as the kernel's."""
    if math_ == "int8":
        total = a.astype(np.int64) @ b.astype(np.int64)
        return np.clip(total, np.iinfo(np.int32).min, np.iinfo(np.int32).max).astype(np.int32)
    a, b = a.astype(F32), b.astype(F32)
    if math_ not in ("tf32", "3xtf32"):
        return a @ b
    large_a, large_b = _tf32(a), _tf32(b)
    if math_ == "tf32":
        return large_a @ large_b
    small_a, small_b = _tf32(a - large_a), _tf32(b - large_b)
    return large_a @ small_b + small_a @ large_b + large_a @ large_b


def _erf(x: Array) -> Array:
    return np.array([math.erf(number) for number in x.ravel()], x.dtype).reshape(x.shape)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    NONE: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * F32(0.5) * (1 + _erf(x * F32(0.5**0.5))),
    "gelu_tanh": lambda x: x * F32(0.5) * (1 + np.tanh(F32(0.7978845608) * (x + F32(0.044715) * x * x * x))),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}
_COMBINATIONS: Mapping[str, Callable[[Array, Array], Array]] = {"add": np.add, "multiply": np.multiply}


def apply_epilogue(total: Array, epilogue: Epilogue, residual: Array | None) -> Array:
    """Apply the epilogue, activations and residual, to a matmul to which the bias has been added."""
    total = _ACTIVATIONS[epilogue.activation](total)
    if epilogue.combine == NONE or residual is None:
        return total
    return _ACTIVATIONS[epilogue.final](_COMBINATIONS[epilogue.combine](total, residual))


def store(target: Array, values: Array) -> None:
    """Round values to what is stored."""
    with np.errstate(all="ignore"):
        target[...] = values.astype(target.dtype)
