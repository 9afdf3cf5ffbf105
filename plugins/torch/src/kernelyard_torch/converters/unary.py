"""Elementwise operators of one tensor: arithmetic, activations, rounding, tests, casts."""

from __future__ import annotations

import math

from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import Converter, converter, register

# What makes a float of an integer.
TO_FLOAT = {
    "acos": "acos",
    "acosh": "acosh",
    "asin": "asin",
    "asinh": "asinh",
    "atan": "atan",
    "atanh": "atanh",
    "cos": "cos",
    "cosh": "cosh",
    "erf": "erf",
    "exp": "exp",
    "expm1": "expm1",
    "log": "log",
    "log1p": "log1p",
    "mish": "nn.mish",
    "reciprocal": "reciprocal",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "silu": "nn.silu",
    "sin": "sin",
    "sinh": "sinh",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
}
ROUNDING = {"ceil": "ceil", "floor": "floor", "round": "round", "trunc": "trunc"}
SAME = {"abs": "abs", "neg": "negative", "sign": "sign", "sgn": "sign"}
TESTS = {"isinf": "isinf", "isnan": "isnan"}
UNSIGNED_OR_BOOL = ("bool", "uint8", "uint16", "uint32", "uint64")


def _to_float(name: str) -> Converter:
    return lambda node, x, *_: node.op(name, node.cast(x, node.result.dtype))


def _rounding(name: str) -> Converter:
    return lambda node, x, *_: node.op(name, x) if is_float(node.dtype(x)) else x


def _same(name: str) -> Converter:
    def convert(node: Node, x: Expr) -> Expr:
        if node.dtype(x) == "bool":
            return x  # neither its size nor its sign changes
        if name == "negative" and node.dtype(x) in UNSIGNED_OR_BOOL:
            return node.op("subtract", node.full(0, (), node.dtype(x)), x)
        return node.op(name, x)

    return convert


def _test(name: str) -> Converter:
    return lambda node, x: node.op(name, x) if is_float(node.dtype(x)) else node.full(False, node.shape(x), "bool")


# What takes an op or two.
SHORT: dict[str, Converter] = {
    "bitwise_not": lambda node, x: node.op("logical_not" if node.dtype(x) == "bool" else "bitwise_not", x),
    "exp2": lambda node, x: node.op("power", node.full(2, (), node.result.dtype), node.cast(x, node.result.dtype)),
    "gelu": lambda node, x, approximate: node.op("nn.gelu" if approximate == "none" else "nn.gelu_tanh", x),
    "hardsigmoid": lambda node, x: node.op("nn.hard_sigmoid", x, alpha=1 / 6, beta=0.5),
    "hardswish": lambda node, x: node.op("nn.hard_swish", x, alpha=1 / 6, beta=0.5),
    "hardtanh": lambda node, x, low, high: node.op("clip", x, min=float(low), max=float(high)),
    "leaky_relu": lambda node, x, slope: node.op("nn.leaky_relu", x, alpha=float(slope)),
    "log2": lambda node, x: node.op("multiply", node.op("log", node.cast(x, node.result.dtype)), 1 / math.log(2)),
    "log10": lambda node, x: node.op("multiply", node.op("log", node.cast(x, node.result.dtype)), 1 / math.log(10)),
    "logical_not": lambda node, x: node.op("logical_not", node.cast(x, "bool")),
    "relu": lambda node, x: node.op("nn.relu", x) if is_float(node.dtype(x)) else node.op("maximum", x, 0),
    "relu6": lambda node, x: node.op("clip", x, min=0.0, max=6.0),
}
for _aten, _convert in SHORT.items():
    register(f"aten.{_aten}.default", _convert)
for _table, _make in ((TO_FLOAT, _to_float), (ROUNDING, _rounding), (SAME, _same), (TESTS, _test)):
    for _aten, _name in _table.items():
        register(f"aten.{_aten}.default", _make(_name))


@converter("aten.alias.default", "aten.clone.default", "aten.detach.default", "aten.lift_fresh_copy.default")
@converter("aten.contiguous.default", "aten.lift_fresh.default", "aten.detach_.default")
def identity(node: Node, x: Expr) -> Expr:
    return x


@converter("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
def dropout(node: Node, x: Expr, p: float, train: bool) -> Expr:
    return node.reject("it is in training mode: call model.eval()") if train and p else x


@converter("aten.native_dropout.default")
def native_dropout(node: Node, x: Expr, p: float, train: bool | None) -> list[Expr]:
    if train and p:
        node.reject("it is in training mode: call model.eval()")
    return [x, node.full(True, node.shape(x), "bool")]


@converter("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default")
def cast(node: Node, x: Expr, *_: object) -> Expr:
    return node.cast(x, node.result.dtype)


@converter("aten.copy.default")
def copy(node: Node, x: Expr, source: Expr, *_: object) -> Expr:
    return node.broadcast_to(node.cast(source, node.dtype(x)), node.shape(x))


@converter("aten.round.decimals")
def round_decimals(node: Node, x: Expr, decimals: int) -> Expr:
    """Scale by a power of ten that is a whole number, as PyTorch does, round, and scale back."""
    if not decimals or not is_float(node.dtype(x)):
        return _rounding("round")(node, x)  # pyright: ignore[reportReturnType]
    there, back = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    scale = float(10 ** abs(decimals))
    return node.op(back, node.op("round", node.op(there, x, scale)), scale)


@converter("aten.elu.default")
def elu(node: Node, x: Expr, alpha: float, scale: float, input_scale: float) -> Expr:
    if scale == 1 and input_scale == 1:
        return node.op("nn.elu", x, alpha=float(alpha))
    below = node.op("multiply", node.op("expm1", node.op("multiply", x, input_scale)), alpha * scale)
    return node.op("where", node.op("greater", x, 0), node.op("multiply", x, scale), below)


@converter("aten.softplus.default")
def softplus(node: Node, x: Expr, beta: float, threshold: float) -> Expr:
    scaled = node.op("multiply", x, beta)
    smooth = node.op("divide", node.op("nn.softplus", scaled), beta)
    return node.op("where", node.op("greater", scaled, threshold), x, smooth)
