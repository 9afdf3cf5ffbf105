"""Post-ops: tables from operator names to oneDNN algorithms.

Source: the oneDNN developer guide, "Primitive Attributes: Post-ops", "Eltwise" and "Binary".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from kernelyard.runtime.api import NamedTuple

if TYPE_CHECKING:
    from kernelyard.plugins.api import Call, Expr

PRELU = "prelu"
LARGEST = (2 - 2**-23) * 2.0**127  # float32
LARGEST_RECIPROCAL = 2.0**126  # of the smallest normal float32


class Eltwise(NamedTuple):
    """`algorithm(x, alpha, beta)` on every element."""

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0

    def attributes(self) -> dict[str, float | str]:
        """Return it as a node of a graph has it; JSON has no infinities, so these are text."""
        numbers = {"alpha": self.alpha, "beta": self.beta}
        finite = {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()}
        return {"algorithm": self.algorithm, **finite}


class Binary(NamedTuple):
    """`x algorithm operand`, where the operand broadcasts to x. decoder: the dequantize that the operand is read by."""

    algorithm: str
    operand: Expr
    decoder: Call | None = None


Stage: TypeAlias = "Eltwise | Binary"

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
    "reciprocal": lambda _: RECIPROCAL,
    "round": lambda _: Eltwise("round"),
    "sigmoid": lambda _: Eltwise("logistic"),
    "sqrt": lambda _: SQUARE_ROOT,
    "square": lambda _: Eltwise("square"),
    "tanh": lambda _: Eltwise("tanh"),
}

# Squares and reciprocals are operators. Other exponents oneDNN computes one element at a time: see `checks.powers`.
POWERS: Mapping[float, tuple[Eltwise, ...]] = {0.5: (SQUARE_ROOT,), -0.5: RSQRT}

# Operators of several post-ops. Far below 0, soft_relu is -1.9e-6 here and there, of which a root or logarithm is NaN.
SEVERAL: Mapping[str, tuple[Eltwise, ...]] = {
    "nn.softplus": (Eltwise("soft_relu", 1.0), Eltwise("relu")),
    "rsqrt": RSQRT,
}

UNARY = (*ELTWISE, *SEVERAL)

# No `maximum` nor `minimum`: where one operand is NaN, oneDNN gives the second one, whichever it is.
BINARY: Mapping[str, str] = {
    "add": "add",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
}

# x op operand as a post-op: those, and what oneDNN has no binary primitive for.
COMBINED: Mapping[str, str] = {**BINARY, "nn.prelu": PRELU}

# c op x, where x is what the post-op is applied to.
REVERSED: Mapping[str, tuple[Eltwise, str]] = {"subtract": (NEGATIVE, "add"), "divide": (RECIPROCAL, "multiply")}

# x op c for a scalar constant c is one linear function, alpha * x + beta, which costs nothing beside a memory operand.
SCALAR: Mapping[str, Callable[[float], Eltwise | None]] = {
    "add": lambda c: Eltwise("linear", 1.0, c),
    "divide": lambda c: Eltwise("linear", 1.0 / c, 0.0) if 1 / LARGEST < abs(c) < LARGEST_RECIPROCAL else None,
    "multiply": lambda c: Eltwise("linear", c, 0.0),
    "subtract": lambda c: Eltwise("linear", 1.0, -c),
}


def _clip(least: float | None, most: float | None) -> Eltwise:
    if least == 0 and most is None:
        return Eltwise("relu")
    return Eltwise("clip", -math.inf if least is None else least, math.inf if most is None else most)
