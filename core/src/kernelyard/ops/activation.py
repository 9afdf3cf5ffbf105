"""Activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernelyard.dtypes import FLOATS
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare, flops_per_output
from kernelyard.ops.elementwise import SIGNED_NUMBERS, SPECIAL
from kernelyard.ops.numeric import erf, sigmoid
from kernelyard.ops.samples import draw_numbers, floats
from kernelyard.ops.type_rules import elementwise, require_broadcastable, require_dtype, require_same_dtype


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _elu(x: np.ndarray, *, alpha: float) -> np.ndarray:
    return np.where(x < 0, alpha * np.expm1(x), x)


def _selu(x: np.ndarray, *, alpha: float, gamma: float) -> np.ndarray:
    return gamma * np.where(x < 0, alpha * np.expm1(x), x)


def _celu(x: np.ndarray, *, alpha: float) -> np.ndarray:
    return np.where(x < 0, alpha * np.expm1(x / alpha), x)


def _hard_sigmoid(x: np.ndarray, *, alpha: float, beta: float) -> np.ndarray:
    return np.clip(alpha * x + beta, 0, 1)


def _hard_swish(x: np.ndarray, *, alpha: float, beta: float) -> np.ndarray:
    return x * np.clip(alpha * x + beta, 0, 1)


# name: (reference, default attributes, operations per element, what it computes)
ActivationRow = tuple[Callable[..., np.ndarray], Mapping[str, float], int, str]
ACTIVATIONS: dict[str, ActivationRow] = {
    "nn.relu": (lambda x: np.maximum(x, 0), {}, 1, "max(x, 0)"),
    "nn.leaky_relu": (lambda x, alpha: np.where(x < 0, alpha * x, x), {"alpha": 0.01}, 2, "x, or alpha * x below 0"),
    "nn.elu": (_elu, {"alpha": 1.0}, 3, "x, or alpha * (exp(x) - 1) below 0"),
    "nn.selu": (
        _selu,
        {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
        4,
        "gamma * (x, or alpha * (exp(x) - 1) below 0)",
    ),
    "nn.celu": (_celu, {"alpha": 1.0}, 4, "x, or alpha * (exp(x / alpha) - 1) below 0"),
    "nn.gelu": (_gelu, {}, 5, "x / 2 * (1 + erf(x / sqrt(2)))"),
    "nn.gelu_tanh": (_gelu_tanh, {}, 9, "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))"),
    "nn.silu": (lambda x: x * sigmoid(x), {}, 4, "x * sigmoid(x)"),
    "nn.mish": (lambda x: x * np.tanh(_softplus(x)), {}, 6, "x * tanh(softplus(x))"),
    "nn.hard_sigmoid": (_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}, 4, "alpha * x + beta limited to [0, 1]"),
    "nn.hard_swish": (_hard_swish, {"alpha": 1 / 6, "beta": 0.5}, 5, "x * (alpha * x + beta limited to [0, 1])"),
    "nn.softplus": (_softplus, {}, 3, "log(1 + exp(x))"),
    "nn.softsign": (lambda x: x / (1 + np.abs(x)), {}, 3, "x / (1 + |x|)"),
    "nn.thresholded_relu": (
        lambda x, alpha: np.where(x > alpha, x, np.zeros_like(x)),
        {"alpha": 1.0},
        1,
        "x where x > alpha, else 0",
    ),
}
OTHER_ATTRIBUTES: dict[str, list[dict[str, Any]]] = {
    "nn.leaky_relu": [{"alpha": 0.3}, {"alpha": -0.5}],
    "nn.elu": [{"alpha": 0.7}],
    "nn.selu": [{"alpha": 1.5, "gamma": 0.9}],
    "nn.celu": [{"alpha": 2.0}],
    "nn.hard_sigmoid": [{"alpha": 1 / 6, "beta": 0.5}],
    "nn.hard_swish": [{"alpha": 0.25, "beta": 0.4}],
    "nn.thresholded_relu": [{"alpha": 0.0}, {"alpha": -0.5}],
}
INTEGER_ACTIVATIONS = ("nn.relu",)


def _samples(name: str) -> Iterator[Sample]:
    yield Sample((floats(3, 5, low=-5, high=5),), label="matrix")
    yield Sample((floats(1, 3, 1, 17, low=-5, high=5),), label="odd shape")
    yield Sample((floats(low=-5, high=5),), label="rank 0")
    yield Sample((SPECIAL[3:],), label="halves and large values")
    for dtype in ("float64", "float16", "bfloat16"):
        yield Sample((floats(4, 3, dtype=dtype, low=-5, high=5),), label=dtype)
    for attributes in OTHER_ATTRIBUTES.get(name, ()):
        yield Sample(
            (floats(2, 9, low=-5, high=5),), attributes, ", ".join(f"{k}={v:.3g}" for k, v in attributes.items())
        )
    if name in INTEGER_ACTIVATIONS:
        yield Sample((draw_numbers(2, 7, dtype="int32"),), label="int32")


for _name, (_reference, _defaults, _cost, _summary) in ACTIVATIONS.items():
    declare(
        _name,
        ("x",),
        elementwise(SIGNED_NUMBERS if _name in INTEGER_ACTIVATIONS else FLOATS),
        _reference,
        attributes={key: Attribute("float", value) for key, value in _defaults.items()},
        samples=partial(_samples, _name),
        flops=flops_per_output(_cost),
        widen=True,
        summary=_summary,
    )


def _prelu_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require_same_dtype(types)
    require_dtype(types[0], SIGNED_NUMBERS)
    require_broadcastable(types[1].shape, types[0].shape, "the slope")
    return types[0]


def _prelu_samples() -> Iterator[Sample]:
    yield Sample((floats(2, 3, 4, 5), floats(3, 1, 1, seed=1)), label="one slope per channel")
    yield Sample((floats(3, 5), floats(5, seed=1)), label="one slope per column")
    yield Sample((floats(3, 5), floats(seed=1)), label="one slope")
    yield Sample((floats(3, 5), floats(3, 5, seed=1)), label="full slope")
    yield Sample((floats(2, 3, dtype="float16"), floats(3, seed=1, dtype="float16")), label="float16")


declare(
    "nn.prelu",
    ("x", "slope"),
    _prelu_type,
    lambda x, slope: np.where(x < 0, slope * x, x),
    samples=_prelu_samples,
    flops=flops_per_output(2),
    widen=True,
    summary="x, or slope * x below 0; slope broadcasts to x",
)
