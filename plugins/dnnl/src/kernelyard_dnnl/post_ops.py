"""Which operators oneDNN runs as post-ops, and how: tables from operator names to oneDNN algorithms.

One operator may be several post-ops: `c / x` is a reciprocal, then a multiplication by c.

Source: the oneDNN developer guide, "Primitive Attributes: Post-ops", "Eltwise" and "Binary".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelyard import dims
from kernelyard.dims import Shape
from kernelyard.ir import Call, Constant, Expr

LARGEST = float(np.finfo(np.float32).max)
LARGEST_RECIPROCAL = 1 / float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Eltwise:
    """`algorithm(x, alpha, beta)` on every element."""

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0

    def attributes(self) -> dict[str, float | str]:
        """As a node of a graph has it; JSON has no infinities, so these are text."""
        numbers = {"alpha": self.alpha, "beta": self.beta}
        finite = {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()}
        return {"algorithm": self.algorithm, **finite}


@dataclass(frozen=True)
class Binary:
    """`x algorithm operand`, where the operand broadcasts to x."""

    algorithm: str
    operand: Expr


Stage = Eltwise | Binary

NEGATIVE = Eltwise("linear", -1.0, 0.0)
RECIPROCAL = Eltwise("pow", 1.0, -1.0)
SQUARE_ROOT = Eltwise("sqrt")
RSQRT = (SQUARE_ROOT, RECIPROCAL)

ELTWISE: Mapping[str, Callable[[Mapping[str, Any]], Eltwise]] = {
    "abs": lambda _: Eltwise("abs"),
    "clip": lambda a: _clip(a["min"], a["max"]),
    "exp": lambda _: Eltwise("exp"),
    "log": lambda _: Eltwise("log"),
    "negative": lambda _: NEGATIVE,
    "nn.elu": lambda a: Eltwise("elu", a["alpha"]),
    "nn.gelu": lambda _: Eltwise("gelu_erf"),
    "nn.gelu_tanh": lambda _: Eltwise("gelu_tanh"),
    "nn.hard_sigmoid": lambda a: Eltwise("hardsigmoid", a["alpha"], a["beta"]),
    "nn.hard_swish": lambda a: Eltwise("hardswish", a["alpha"], a["beta"]),
    "nn.leaky_relu": lambda a: Eltwise("relu", a["alpha"]),
    "nn.mish": lambda _: Eltwise("mish"),
    "nn.relu": lambda _: Eltwise("relu"),
    "nn.silu": lambda _: Eltwise("swish", 1.0),
    "nn.softplus": lambda _: Eltwise("soft_relu", 1.0),
    "reciprocal": lambda _: RECIPROCAL,
    "round": lambda _: Eltwise("round"),
    "sigmoid": lambda _: Eltwise("logistic"),
    "sqrt": lambda _: SQUARE_ROOT,
    "square": lambda _: Eltwise("square"),
    "tanh": lambda _: Eltwise("tanh"),
}

# Squares and reciprocals are operators. Other exponents oneDNN computes one element at a time: see checks.py.
POWERS: Mapping[float, tuple[Eltwise, ...]] = {0.5: (SQUARE_ROOT,), -0.5: RSQRT}

UNARY = (*ELTWISE, "rsqrt")

BINARY: Mapping[str, str] = {
    "add": "add",
    "divide": "div",
    "maximum": "max",
    "minimum": "min",
    "multiply": "mul",
    "subtract": "sub",
}

# c op x, where x is what the post-op is applied to.
REVERSED: Mapping[str, tuple[Eltwise, str]] = {"subtract": (NEGATIVE, "add"), "divide": (RECIPROCAL, "multiply")}

# x op c for a scalar constant c is one linear function, alpha * x + beta, which costs nothing beside a memory operand.
_SCALAR: Mapping[str, Callable[[float], Eltwise | None]] = {
    "add": lambda c: Eltwise("linear", 1.0, c),
    "divide": lambda c: Eltwise("linear", 1.0 / c, 0.0) if 1 / LARGEST < abs(c) < LARGEST_RECIPROCAL else None,
    "multiply": lambda c: Eltwise("linear", c, 0.0),
    "subtract": lambda c: Eltwise("linear", 1.0, -c),
}


def _clip(least: float | None, most: float | None) -> Eltwise:
    if least == 0 and most is None:
        return Eltwise("relu")
    return Eltwise("clip", -math.inf if least is None else least, math.inf if most is None else most)


def scalar_of(expr: Expr) -> float | None:
    """The value of a constant with one element, else None."""
    if isinstance(expr, Constant) and expr.data.size == 1:
        return float(expr.data.reshape(()))
    return None


def exponent_of(power: Call) -> float:
    """The exponent of a power, a constant scalar."""
    exponent = scalar_of(power.args[1])
    assert exponent is not None, "the pattern takes constants only"
    return exponent


def stages_of(call: Call, x: Expr) -> tuple[Stage, ...]:
    """How `call`, one of whose arguments is `x`, is applied to x."""
    if call.op_name == "astype":
        return ()  # the primitive stores its result in that dtype
    if call.op_name == "power":
        exponent = exponent_of(call)
        return POWERS.get(exponent, (Eltwise("pow", 1.0, exponent),))
    if call.op_name == "rsqrt":
        return RSQRT
    if call.op_name in ELTWISE:
        return (ELTWISE[call.op_name](call.attrs),)
    left, right = call.args
    if left is x:
        return (_combined(call.op_name, right),)
    if call.op_name in REVERSED:
        first, op = REVERSED[call.op_name]
        return _joined(first, _combined(op, left))
    return (_combined(call.op_name, left),)


def _combined(op: str, operand: Expr) -> Stage:
    """x op operand"""
    scalar = scalar_of(operand)
    if scalar is not None and op in _SCALAR and math.isfinite(scalar):
        linear = _SCALAR[op](scalar)
        if linear is not None:
            return linear
    return Binary(BINARY[op], operand)


def _joined(first: Eltwise, second: Stage) -> tuple[Stage, ...]:
    """Both, in one where that is exact: c - x is the linear function -x + c, and c / x the power c * x ** -1."""
    if not isinstance(second, Eltwise):
        return first, second
    if first == NEGATIVE:
        return (Eltwise("linear", -second.alpha, second.beta),)
    return (Eltwise("pow", second.alpha, -1.0),)


def is_per_channel(shape: Shape, channels: dims.Dim, channel_axis: int, rank: int) -> bool:
    """True for a shape that holds one value per channel and broadcasts over everything else."""
    if len(shape) > rank or rank - len(shape) > channel_axis:
        return False
    axis = channel_axis - (rank - len(shape))
    return shape[axis] == channels and all(dim == 1 for i, dim in enumerate(shape) if i != axis)
