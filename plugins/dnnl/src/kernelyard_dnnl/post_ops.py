"""Which operators oneDNN runs as post-ops, and how: tables from operator names to oneDNN algorithms.

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


@dataclass(frozen=True)
class Eltwise:
    """`algorithm(x, alpha, beta)` on every element."""

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Binary:
    """`x algorithm operand`, where the operand broadcasts to x."""

    algorithm: str
    operand: Expr


Stage = Eltwise | Binary

ELTWISE: Mapping[str, Callable[[Mapping[str, Any]], Eltwise]] = {
    "abs": lambda _: Eltwise("abs"),
    "clip": lambda a: Eltwise("clip", *(_bound(a["min"], -LARGEST), _bound(a["max"], LARGEST))),
    "exp": lambda _: Eltwise("exp"),
    "log": lambda _: Eltwise("log"),
    "negative": lambda _: Eltwise("linear", -1.0),
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
    "round": lambda _: Eltwise("round"),
    "sigmoid": lambda _: Eltwise("logistic"),
    "sqrt": lambda _: Eltwise("sqrt"),
    "square": lambda _: Eltwise("square"),
    "tanh": lambda _: Eltwise("tanh"),
}

BINARY: Mapping[str, str] = {
    "add": "add",
    "divide": "div",
    "maximum": "max",
    "minimum": "min",
    "multiply": "mul",
    "subtract": "sub",
}

# x op c for a scalar constant c is one linear function, alpha * x + beta, which costs nothing beside a memory operand.
_SCALAR: Mapping[str, Callable[[float], Eltwise | None]] = {
    "add": lambda c: Eltwise("linear", 1.0, c),
    "divide": lambda c: Eltwise("linear", 1.0 / c, 0.0) if abs(c) > 1 / LARGEST else None,
    "multiply": lambda c: Eltwise("linear", c, 0.0),
    "subtract": lambda c: Eltwise("linear", 1.0, -c),
}


def _bound(value: float | None, default: float) -> float:
    return default if value is None else value


def scalar_of(expr: Expr) -> float | None:
    """The value of a constant with one element, else None."""
    if isinstance(expr, Constant) and expr.data.size == 1:
        return float(expr.data.reshape(()))
    return None


def stage_of(call: Call, x: Expr) -> Stage:
    """How `call`, one of whose arguments is `x`, is applied to x."""
    if call.op_name in ELTWISE:
        return ELTWISE[call.op_name](call.attrs)
    left, right = call.args
    operand = right if left is x else left
    scalar = scalar_of(operand)
    if scalar is not None and call.op_name in _SCALAR and math.isfinite(scalar):
        linear = _SCALAR[call.op_name](scalar)
        if linear is not None:
            return linear
    return Binary(BINARY[call.op_name], operand)


def is_per_channel(shape: Shape, channels: dims.Dim, channel_axis: int, rank: int) -> bool:
    """True for a shape that holds one value per channel and broadcasts over everything else."""
    if len(shape) > rank or rank - len(shape) > channel_axis:
        return False
    axis = channel_axis - (rank - len(shape))
    return shape[axis] == channels and all(dim == 1 for i, dim in enumerate(shape) if i != axis)
