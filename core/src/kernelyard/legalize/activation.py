"""Rules of activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelyard.legalize.common import elementwise
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Expr, maximum, minimum, select, unary


def _softplus(x: Expr) -> Expr:
    return maximum(x, 0) + unary("log1p", unary("exp", -unary("abs", x)))


def _clip_line(x: Expr, alpha: float, beta: float) -> Expr:
    return minimum(maximum(alpha * x + beta, 0), 1)


def _expm1(x: Expr) -> Expr:
    return unary("expm1", x)


def _gelu(x: Expr) -> Expr:
    half = 0.5 * x
    return half * unary("erf", x * math.sqrt(0.5)) + half  # one multiplication with addition


def _gelu_tanh(x: Expr) -> Expr:
    return 0.5 * x * (1 + unary("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _mish(x: Expr) -> Expr:
    # tanh(log(1 + e)) is (e^2 + 2 e) / (e^2 + 2 e + 2), for e = exp(x); above 20 it is 1.
    power = unary("exp", minimum(x, 20))
    ratio = power * (power + 2)
    return x * (ratio / (ratio + 2))


ACTIVATIONS: dict[str, Callable[..., Expr]] = {
    "nn.relu": lambda x: maximum(x, 0),
    "nn.leaky_relu": lambda x, alpha: select(x < 0, alpha * x, x),
    "nn.elu": lambda x, alpha: select(x < 0, alpha * _expm1(x), x),
    "nn.selu": lambda x, alpha, gamma: gamma * select(x < 0, alpha * _expm1(x), x),
    "nn.celu": lambda x, alpha: select(x < 0, alpha * _expm1(x / alpha), x),
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.silu": lambda x: x * unary("sigmoid", x),
    "nn.mish": _mish,
    "nn.hard_sigmoid": _clip_line,
    "nn.hard_swish": lambda x, alpha, beta: x * _clip_line(x, alpha, beta),
    "nn.softplus": _softplus,
    "nn.softsign": lambda x: x / (1 + unary("abs", x)),
    "nn.thresholded_relu": lambda x, alpha: select(x > alpha, x, 0),
}


def _register(name: str, body: Callable[..., Expr]) -> None:
    @legalize(name, widen=True)
    def rule(b: RuleBuilder, x: Operand, **attrs: float) -> Buffer:
        return elementwise(b, x.shape, lambda v: body(v, **attrs), x)


for _name, _body in ACTIVATIONS.items():
    _register(_name, _body)
