"""Operators of the domain com.microsoft that onnxruntime's optimizers and quantizers write into models.

Definitions: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kernelyard.ir import Expr
from kernelyard_onnx.converters.convolution import convolve, subtract_zero_point
from kernelyard_onnx.converters.quantization import quantize, quantize_dynamically
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter

DOMAIN = "com.microsoft"
microsoft = partial(converter, domain=DOMAIN)


# --- activations ------------------------------------------------------------------------------------------------------
@microsoft("Gelu")
def gelu(node: Node) -> Expr:
    return node.op("nn.gelu", node.input(0))


@microsoft("BiasGelu")
def bias_gelu(node: Node) -> Expr:
    return node.op("nn.gelu", node.broadcast("add", node.input(0), node.input(1)))


@microsoft("FastGelu")
def fast_gelu(node: Node) -> Expr:
    x, bias = node.input(0), node.optional(1)
    return node.op("nn.gelu_tanh", x if bias is None else node.broadcast("add", x, bias))


@microsoft("QuickGelu")
def quick_gelu(node: Node) -> Expr:
    x = node.input(0)
    return node.op("multiply", x, node.op("sigmoid", node.op("multiply", x, float(node.attr("alpha", 1.702)))))


# --- products ---------------------------------------------------------------------------------------------------------
@microsoft("FusedMatMul")
def fused_matrix_product(node: Node) -> Expr:
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        node.reject("it moves batch axes")
    a, b = (
        _transposed(node, node.input(index)) if node.attr(name, 0) else node.input(index)
        for index, name in enumerate(("transA", "transB"))
    )
    product, alpha = node.op("matmul", a, b), float(node.attr("alpha", 1.0))
    return product if alpha == 1 else node.op("multiply", product, alpha)


def _transposed(node: Node, x: Expr) -> Expr:
    rank = node.rank(x)
    return x if rank < 2 else node.permute(x, (*range(rank - 2), rank - 1, rank - 2))


@microsoft("FusedConv")
def fused_convolution(node: Node) -> Expr:
    result, residual = convolve(node, node.input(0), node.input(1), node.optional(2)), node.optional(3)
    if residual is not None:
        result = node.op("add", result, residual)
    name, numbers = node.attr("activation", ""), node.attr("activation_params") or ()
    known = _FUSED.get(name) or node.reject(f"its activation {name!r} is unknown")
    return known(node, result, numbers)


_FUSED: dict[str, Callable[[Node, Expr, Sequence[float]], Expr]] = {
    "": lambda node, x, numbers: x,
    "Relu": lambda node, x, numbers: node.op("nn.relu", x),
    "Tanh": lambda node, x, numbers: node.op("tanh", x),
    "Sigmoid": lambda node, x, numbers: node.op("sigmoid", x),
    "LeakyRelu": lambda node, x, numbers: node.op("nn.leaky_relu", x, alpha=numbers[0]),
    "Clip": lambda node, x, numbers: node.op("clip", x, min=numbers[0], max=numbers[1]),
    "HardSigmoid": lambda node, x, numbers: node.op("nn.hard_sigmoid", x, alpha=numbers[0], beta=numbers[1]),
}


# --- normalization ----------------------------------------------------------------------------------------------------
@microsoft("SkipLayerNormalization")
def skip_layer_normalization(node: Node) -> Sequence[Expr | None]:
    """Outputs: result, mean, inverse deviation (both only for training), the sum that was normalized."""
    x, gamma, beta = _skip_sum(node, 4), node.input(2), node.optional(3)
    shift = node.full(0, node.shape(gamma), node.dtype(gamma)) if beta is None else beta
    axes, epsilon = (node.rank(x) - 1,), float(node.attr("epsilon", 1e-12))
    return [node.op("nn.layer_norm", x, gamma, shift, axes=axes, epsilon=epsilon), None, None, x]


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(node: Node) -> Sequence[Expr | None]:
    x = _skip_sum(node, 3)
    axes, epsilon = (node.rank(x) - 1,), float(node.attr("epsilon", 1e-12))
    return [node.op("nn.rms_norm", x, node.input(2), axes=axes, epsilon=epsilon), None, None, x]


def _skip_sum(node: Node, bias_index: int) -> Expr:
    total, bias = node.broadcast("add", node.input(0), node.input(1)), node.optional(bias_index)
    return total if bias is None else node.broadcast("add", total, bias)


@converter("SimplifiedLayerNormalization")
def simplified_layer_normalization(node: Node) -> Expr:
    """In the standard's own domain, although the standard does not have it."""
    x = node.input(0)
    axes = tuple(range(node.axis(node.attr("axis", -1), node.rank(x)), node.rank(x)))
    return node.op("nn.rms_norm", x, node.input(1), axes=axes, epsilon=float(node.attr("epsilon", 1e-5)))


# --- quantized --------------------------------------------------------------------------------------------------------
def _real(node: Node, first: int) -> Expr:
    """Stored numbers, scale and zero point at three inputs in a row -> real numbers."""
    stored, scale = node.cast(node.input(first), "int32"), node.reshape(node.input(first + 1), ())
    whole = subtract_zero_point(node, stored, node.optional(first + 2), None)
    return node.op("multiply", node.cast(whole, "float32"), scale)


def _stored(node: Node, x: Expr, scale: int, dtype: str) -> Expr:
    """Real numbers -> stored numbers, by the scale and zero point at two inputs in a row."""
    zero = node.optional(scale + 1)
    scaled = node.op("divide", x, node.reshape(node.input(scale), ()))
    return quantize(node, scaled, None if zero is None else node.reshape(zero, ()), dtype)


@microsoft("QLinearAdd")
def quantized_add(node: Node) -> Expr:
    total = node.broadcast("add", _real(node, 0), _real(node, 3))
    return _stored(node, total, 6, node.dtype(node.input(0)))


@microsoft("QLinearMul")
def quantized_multiply(node: Node) -> Expr:
    product = node.broadcast("multiply", _real(node, 0), _real(node, 3))
    return _stored(node, product, 6, node.dtype(node.input(0)))


@microsoft("QLinearSigmoid")
def quantized_sigmoid(node: Node) -> Expr:
    return _stored(node, node.op("sigmoid", _real(node, 0)), 3, node.dtype(node.input(0)))


@microsoft("QLinearLeakyRelu")
def quantized_leaky_relu(node: Node) -> Expr:
    activated = node.op("nn.leaky_relu", _real(node, 0), alpha=float(node.attr("alpha", 0.01)))
    return _stored(node, activated, 3, node.dtype(node.input(0)))


@microsoft("QLinearGlobalAveragePool")
def quantized_global_average_pool(node: Node) -> Expr:
    x = node.input(0)
    axes = tuple(range(1, node.rank(x) - 1) if node.attr("channels_last", 0) else range(2, node.rank(x)))
    return _stored(node, node.op("mean", _real(node, 0), axes=axes, keepdims=True), 3, node.dtype(x))


@microsoft("QLinearConcat")
def quantized_concat(node: Node) -> Expr:
    parts = [_real(node, first) for first in range(2, len(node.inputs), 3)]
    if not parts:
        node.reject("it joins nothing")
    axis = node.axis(node.required_attr("axis"), node.rank(parts[0]))
    return _stored(node, node.op("concat", *parts, axis=axis), 0, node.dtype(node.input(2)))


@microsoft("MatMulIntegerToFloat")
def integer_matrix_product_to_float(node: Node) -> Expr:
    a, b, a_scale, b_scale = (node.input(index) for index in range(4))
    return _integer_product(node, (a, a_scale, node.optional(4)), (b, b_scale, node.optional(5)), node.optional(6))


@microsoft("DynamicQuantizeMatMul")
def dynamically_quantized_matrix_product(node: Node) -> Expr:
    a, scale, zero = quantize_dynamically(node)
    return _integer_product(node, (a, scale, zero), (node.input(1), node.input(2), node.optional(3)), node.optional(4))


Quantized = tuple[Expr, Expr, Expr | None]


def _integer_product(node: Node, left: Quantized, right: Quantized, bias: Expr | None) -> Expr:
    """The exact product of stored numbers, then scales (one number, or one per column of the right side), then bias."""
    (a, a_scale, a_zero), (b, b_scale, b_zero) = left, right
    columns = node.rank(b) - 1
    x = subtract_zero_point(node, node.cast(a, "int32"), a_zero, None)
    y = subtract_zero_point(node, node.cast(b, "int32"), b_zero, columns)
    total = node.cast(node.op("matmul", x, y), "float32")
    for scale in (a_scale, b_scale):
        total = node.broadcast("multiply", total, scale)
    return total if bias is None else node.broadcast("add", total, bias)
