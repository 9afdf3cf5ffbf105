"""Mixtures of experts (domain com.microsoft): each token goes through the feed-forward networks that a router picks.

Definitions: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from kernelyard.dims import ceildiv, floordiv, product
from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.microsoft_quantized import unpack_integers
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

microsoft = partial(converter, domain=MICROSOFT)

Products = Callable[[Expr, Expr], Expr]
"""`products(x, experts)`: rows (rows, in), each by the matrix of its expert -> (rows, out)."""

_ACTIVATIONS = {"relu": "nn.relu", "gelu": "nn.gelu_tanh", "silu": "nn.silu", "identity": ""}
_INTERLEAVED, _CONCATENATED = 1, 2  # the values of swiglu_fusion in which one product makes both halves


@dataclass(frozen=True)
class Layer:
    """A linear layer that each expert has: its products, and biases (experts, out) or None."""

    products: Products
    biases: Expr | None

    def of_rows(self, node: Node, x: Expr, experts: Expr) -> Expr:
        """Multiply rows (rows, in) -> (rows, out), each by the matrix of its expert, which a kernel reads in place."""
        y = self.products(x, experts)
        return y if self.biases is None else node.op("add", y, node.op("take", self.biases, experts, axis=0))


@microsoft("MoE")
def mixture_of_experts(node: Node) -> Expr:
    layers = [_layer(node, weights, weights + 1) for weights in (2, 4, 6)]
    return _mixture(node, layers, None)


def _layer(node: Node, weights: int, biases: int) -> Layer | None:
    given = node.optional(weights)
    if given is None:
        return None

    def products(x: Expr, experts: Expr) -> Expr:
        matrices = node.op("take", given, experts, axis=0)
        return node.op("sum", node.op("multiply", matrices, node.unsqueeze(x, 1)), axes=(2,))

    return Layer(products, node.optional(biases))


@microsoft("QMoE")
def quantized_mixture_of_experts(node: Node) -> Expr:
    """Convert experts whose weights have 2, 4 or 8 bits, with a scale for each row, or for each block of a row."""
    if node.attr("quant_type", "int") != "int" or node.attr("weights_prepacked", 0) == 1:
        node.reject("its quant_type is not 'int', or its weights are reordered (weights_prepacked)")
    layers = [_read_quantized_layer(node, number) for number in (1, 2, 3)]
    return _mixture(node, layers, node.optional(14))


def _read_quantized_layer(node: Node, number: int) -> Layer | None:
    """Return the layer fc1, fc2 or fc3: stored weights, scales and biases are three inputs in a row.

    A byte has several columns. Each of them is a product of its own, with every second (or fourth) element of x: so the
    kernel reads the bytes as they are stored.
    """
    first = 3 * number - 1
    stored, zeros = node.optional(first), node.optional(10 + number)
    if stored is None:
        return None
    scales = node.input(first + 1)
    bits = int(node.attr(f"fc{number}_expert_weight_bits", node.attr("expert_weight_bits", 4)))
    if bits not in (2, 4, 8):
        node.reject(f"its weights have {bits} bits; 2, 4 and 8 are supported")
    parts, dtype, has_blocks = 8 // bits, node.dtype(scales), node.rank(scales) == _RANK_OF_BLOCKS
    count, rows, width = (node.require_fixed(size, "size of its weights") for size in node.shape(stored))
    block = int(node.attr("block_size", 0)) if has_blocks else width * parts
    blocks = width * parts // block
    packed = node.reshape(stored, (count, rows, blocks, block // parts))
    scale, zero = node.reshape(scales, (count, rows, blocks, 1)), node.full(2 ** (bits - 1), (1, 1, 1, 1), dtype)
    if zeros is not None:
        flat = zeros if has_blocks else node.reshape(zeros, (count, ceildiv(rows, parts)))
        numbers = unpack_integers(node, flat, bits, blocks if has_blocks else rows)
        zero = node.cast(node.reshape(numbers, (count, rows, blocks, 1)), dtype)

    def products(x: Expr, experts: Expr) -> Expr:
        own, own_scale = (node.op("take", table, experts, axis=0) for table in (packed, scale))
        own_zero = zero if zeros is None else node.op("take", zero, experts, axis=0)
        columns = node.reshape(x, (node.shape(x)[0], 1, blocks, block // parts, parts))
        planes = [
            node.op("multiply", node.op("subtract", node.cast(plane, dtype), own_zero), node.select(columns, 4, part))
            for part, plane in enumerate(_planes(node, own, bits))
        ]
        total = reduce(lambda left, right: node.op("add", left, right), planes)
        return node.op("sum", node.op("multiply", total, own_scale), axes=(2, 3))

    return Layer(products, node.optional(first + 2))


def _planes(node: Node, packed: Expr, bits: int) -> list[Expr]:
    """Return the first number of each byte, the second ones, and so on, the lowest bits first."""
    if bits == 8:
        return [packed]
    shifted = [node.op("right_shift", packed, np.array(shift, np.uint8)) for shift in range(0, 8, bits)]
    return [node.op("bitwise_and", numbers, np.array(2**bits - 1, np.uint8)) for numbers in shifted]


_RANK_OF_BLOCKS = 3


def _mixture(node: Node, layers: Sequence[Layer | None], mixing: Expr | None) -> Expr:
    """Return the tokens (.., width) by the experts that the router picks.

    layers: fc1, fc2, and fc3, which may be missing. mixing: what weighs experts by, in place of the router's numbers.
    """
    first, second, gated = layers
    if first is None or second is None:
        node.reject("its weights fc1 or fc2 are missing")
    if node.attr("use_sparse_mixer", 0):
        node.reject("use_sparse_mixer is not supported")
    x, router, count = node.input(0), node.input(1), int(node.attr("k", 1))
    width = node.shape(x)[node.rank(x) - 1]
    tokens = floordiv(product(node.shape(x)), width)
    chosen, share = _route(node, router, mixing, count)
    experts = node.reshape(chosen, (tokens * count,))
    rows = node.broadcast_to(node.reshape(x, (tokens, 1, width)), (tokens, count, width))
    rows = node.reshape(rows, (tokens * count, width))
    hidden = _activate(node, first.of_rows(node, rows, experts), gated and gated.of_rows(node, rows, experts))
    y = second.of_rows(node, hidden, experts)
    y = node.reshape(y, (tokens, count, node.shape(y)[1]))
    total = node.op("sum", node.op("multiply", y, node.unsqueeze(share, 2)), axes=(1,))
    return node.reshape(total, (*node.shape(x)[:-1], node.shape(total)[1]))


def _route(node: Node, router: Expr, mixing: Expr | None, count: int) -> tuple[Expr, Expr]:
    """Return the experts of each token, and their shares in the result, both (tokens, count)."""
    _, chosen = node.ops("topk", router, k=count, axis=1, largest=True, sorted=True)
    given = node.op("nn.softmax", router, axis=1) if mixing is None else mixing
    share = node.op("gather_elements", given, chosen, axis=1)
    if not node.attr("normalize_routing_weights", 0):
        return chosen, share
    return chosen, node.op("divide", share, node.op("sum", share, axes=(1,), keepdims=True))


def _activate(node: Node, x: Expr, other: Expr | None) -> Expr:
    """Return the rows (rows, n) by their activation; one with a gate takes it from them, or multiplies the other."""
    name, fusion = node.attr("activation_type", "relu"), int(node.attr("swiglu_fusion", 0))
    if name == "swiglu":
        return _gate(node, *_halves(node, x, other, fusion))
    if name not in _ACTIVATIONS or other is not None:
        node.reject(f"its activation {name!r} is not supported" + (" with fc3" if other is not None else ""))
    return node.op(_ACTIVATIONS[name], x) if _ACTIVATIONS[name] else x


def _halves(node: Node, x: Expr, other: Expr | None, fusion: int) -> tuple[Expr, Expr]:
    """Return what is the gate, and what it multiplies."""
    if other is not None:
        return x, other
    rows, both = node.shape(x)
    half = floordiv(both, 2)
    if fusion == _INTERLEAVED:
        pairs = node.reshape(x, (rows, half, 2))
        return node.select(pairs, 2, 0), node.select(pairs, 2, 1)
    if fusion == _CONCATENATED:
        return node.slice(x, 1, 0, half), node.slice(x, 1, half, both)
    return node.reject("swiglu needs fc3, or a swiglu_fusion")


def _gate(node: Node, gate: Expr, linear: Expr) -> Expr:
    """Return gate * sigmoid(alpha * gate) * (linear + beta), clipped where the model has a limit."""
    if node.attr("swiglu_limit_after_activation", 0):
        node.reject("swiglu_limit_after_activation is not supported")
    alpha, beta = float(node.attr("activation_alpha", 1.0)), float(node.attr("activation_beta", 0.0))
    limit = node.attr("swiglu_limit")
    if limit is not None:
        gate = node.op("clip", gate, max=float(limit))
        linear = node.op("clip", linear, min=-float(limit), max=float(limit))
    opened = node.op("sigmoid", node.op("multiply", gate, alpha) if alpha != 1 else gate)
    shifted = node.op("add", linear, beta) if beta else linear
    return node.op("multiply", node.op("multiply", gate, opened), shifted)
