"""Elementwise operators of the domain com.microsoft: gates, branches that are mixed, complex products, checks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from kernelyard import dims
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

microsoft = partial(converter, domain=MICROSOFT)


@microsoft("SwiGLU")
def swiglu(node: Node) -> Expr:
    """Return gate * sigmoid(alpha * gate) * (linear + beta); both may be halves of one input, and clipped."""
    gate, linear, limit = node.input(0), node.optional(1), float(node.attr("limit", 0.0))
    dtype = node.dtype(gate)
    if linear is None:
        last = node.rank(gate) - 1
        half = dims.floordiv(node.shape(gate)[last], 2)
        gate, linear = node.slice(gate, last, 0, half), node.slice(gate, last, half, 2 * half)
    gate, linear = node.cast(gate, "float32"), node.cast(linear, "float32")
    if limit > 0:
        gate, linear = node.op("clip", gate, max=limit), node.op("clip", linear, min=-limit, max=limit)
    opened = node.op("sigmoid", node.op("multiply", gate, float(node.attr("activation_alpha", 1.0))))
    active = node.op("multiply", gate, opened)
    if node.attr("round_activation", 0):
        active = node.cast(node.cast(active, dtype), "float32")
    beta = float(node.attr("activation_beta", 0.0))
    return node.cast(node.op("multiply", active, node.op("add", linear, beta) if beta else linear), dtype)


@microsoft("GatedAdd")
def gated_sum(node: Node) -> Expr:
    if node.optional(3) is not None:
        node.reject("gate_weight is not supported")
    return node.op("add", node.input(0), node.broadcast("multiply", node.input(1), node.input(2)))


@microsoft("BiasDropout", "BitmaskBiasDropout")
def sum_without_dropout(node: Node) -> Sequence[Expr | None]:
    """Convert what inference leaves of it: the sums."""
    training, residual = node.optional(4), node.optional(2)
    if training is not None and node.scalar(training, "training_mode"):
        node.reject("training_mode is not supported")
    total = node.broadcast("add", node.input(0), node.input(1))
    return [total if residual is None else node.broadcast("add", total, residual), None]


@microsoft("IsAllFinite")
def are_all_finite(node: Node) -> Expr:
    """Return one flag for all inputs: that no number is NaN or infinite, or is not the one that is asked for."""
    if node.attr("isnan_only", 0):
        test = "isnan"
    else:
        test = "isinf" if node.attr("isinf_only", 0) else "isfinite"
    flags = [node.op(test, x) for x in node.require_inputs()]
    if test != "isfinite":
        flags = [node.op("logical_not", flag) for flag in flags]
    each = [node.op("all", flag, axes=tuple(range(node.rank(flag))), keepdims=False) for flag in flags]
    return reduce(lambda a, b: node.op("logical_and", a, b), each)


# --- complex numbers --------------------------------------------------------------------------------------------------
@microsoft("ComplexMul")
def complex_product(node: Node) -> Expr:
    return _complex_product(node, 1)


@microsoft("ComplexMulConj")
def complex_product_with_conjugate(node: Node) -> Expr:
    return _complex_product(node, -1)


def _complex_product(node: Node, sign: int) -> Expr:
    """Multiply numbers whose real and imaginary parts lie along the last axis; `sign` of the second imaginary part."""
    a, b = node.input(0), node.input(1)
    (a_real, a_imaginary), (b_real, b_imaginary) = (
        [node.select(x, node.rank(x) - 1, part) for part in (0, 1)] for x in (a, b)
    )
    b_imaginary = node.op("multiply", b_imaginary, sign)

    def product(x: Expr, y: Expr) -> Expr:
        return node.broadcast("multiply", x, y)

    real = node.op("subtract", product(a_real, b_real), product(a_imaginary, b_imaginary))
    imaginary = node.op("add", product(a_real, b_imaginary), product(a_imaginary, b_real))
    return node.stack([real, imaginary], node.rank(real))


# --- branches ---------------------------------------------------------------------------------------------------------
def _split_branches(node: Node, x: Expr) -> Expr:
    """(.., branches * width) -> (.., branches, width), where the attribute says so."""
    branches = int(node.attr("num_branches", 0))
    if not branches:
        return x
    *outer, width = node.shape(x)
    return node.reshape(x, (*outer, branches, dims.floordiv(width, branches)))


def _gates(node: Node, gates: Expr, streams: Expr) -> Expr:
    """Return gates of branches, or of their features, so that they multiply (.., branches, width)."""
    shape = node.shape(streams)
    if node.rank(gates) == len(shape):
        return gates
    is_of_branches = node.shape(gates)[-1] == shape[-2]
    return node.reshape(gates, (*shape[:-1], 1) if is_of_branches else shape)


@microsoft("HyperConnectionPreMix")
def sum_of_branches(node: Node) -> Expr:
    streams, dtype = _split_branches(node, node.input(0)), node.dtype(node.input(0))
    gates = node.cast(_gates(node, node.input(1), streams), "float32")
    product = node.op("multiply", node.cast(streams, "float32"), gates)
    total = node.op("sum", product, axes=(node.rank(streams) - 2,), keepdims=False)
    scale = float(node.attr("reduction_scale", 1.0))
    return node.cast(total if scale == 1 else node.op("multiply", total, scale), dtype)


@microsoft("HyperConnectionPostMix")
def mix_of_branches(node: Node) -> Expr:
    streams, added = _split_branches(node, node.input(0)), node.unsqueeze(node.input(1), node.rank(node.input(1)) - 1)
    gates, matrix = node.cast(_gates(node, node.input(2), streams), "float32"), node.optional(3)
    mixed = node.cast(streams, "float32")
    if matrix is not None:
        rank = node.rank(matrix)
        transposed = node.permute(node.cast(matrix, "float32"), (*range(rank - 2), rank - 1, rank - 2))
        mixed = node.op("matmul", transposed, mixed)
    total = node.op("add", mixed, node.op("multiply", gates, node.cast(added, "float32")))
    return node.reshape(node.cast(total, node.dtype(streams)), node.shape(node.input(0)))


@microsoft("BranchwiseRMSNorm")
def norm_of_branches(node: Node) -> Expr:
    x = _split_branches(node, node.input(0))
    branches, width = node.shape(x)[-2:]
    scale, epsilon = node.optional(1), float(node.attr("epsilon", 1e-5))
    one = node.full(1, (width,), "float32")
    y = node.op("nn.rms_norm", node.cast(x, "float32"), one, axes=(node.rank(x) - 1,), epsilon=epsilon)
    if scale is not None:
        is_shared = dims.product(node.shape(scale)) == width
        factors = node.reshape(node.cast(scale, "float32"), (width,) if is_shared else (branches, width))
        y = node.op("multiply", y, factors)
    return node.reshape(node.cast(y, node.dtype(x)), node.shape(node.input(0)))
