"""Products of integers: int8 weights, data of 8 bits, sums of 32 bits that are scaled and stored again in 8 bits.

Source: the oneDNN developer guide, "Quantization", "Convolution" and "Matrix Multiplication".
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.lowering import SOURCE, Given, Lowering
from kernelyard_dnnl.primitive_attributes import Runtime
from kernelyard_dnnl.primitives.affine import RESULT, Affine, affine_of, make_given_numbers, make_given_zero
from kernelyard_dnnl.primitives.post_ops import Step, steps_of
from kernelyard_dnnl.primitives.requantization import UNCHANGED, Chain, Line, chain_of
from kernelyard_dnnl.values import Node, Value

SHIFT = 128  # what makes int8 of uint8
WEIGHTS = enums.ARG["weights"]


# Bits of `dnnl_cpu_isa_t` of processors that multiply 8 bits and add up in 32: AVX-512 VNNI, AVX VNNI.
VNNI = (0x67, 0x0F)


@cache
def can_multiply_integers() -> bool:
    """Return whether the processor adds products of 8 bits in 32 bits.

    Without, oneDNN adds pairs of products in 16 bits, which are cut off silently where they are too large.
    """
    isa = load_library().call("dnnl_get_effective_cpu_isa")
    return any(isa & bits == bits for bits in VNNI)


class IntegerProduct(NamedTuple):
    """Hold what a product of integers has beside its layouts: the numbers given at execution, a bias, and post-ops."""

    given: Given
    bias: Value | None
    steps: list[Step]


def integer_product(node: Node, graph: Lowering, roles: tuple[str, str], mask: int, channels: int) -> IntegerProduct:
    """Return a node's scales, zero points and post-ops.

    roles: of the data and of the weights. mask: the dims of the weights along which their scales vary. channels: of
    the result, one number of the bias for each.
    """
    data, weight = (affine_of(node, role) for role in roles)
    assert data is not None
    assert weight is not None
    bias, steps = node.operands.get("bias"), steps_of(node)
    if not data.has_one_scale:
        bias, steps = None, [*_scale_rows(graph, data, bias), *steps]
    chain = chain_of(steps, affine_of(node, RESULT), node.dtype)
    if bias is not None:
        bias = graph.reshape(graph.make_plain(bias), (channels,))
        chain = chain if bias.is_constant else Chain(UNCHANGED, chain.all_steps)
    given = dict(make_given_zero(graph, SOURCE, data.zero)) | dict(make_given_zero(graph, WEIGHTS, weight.zero))
    scales = weight.scales * np.float32(chain.line.scale)
    if data.is_known and data.has_one_scale:
        scales = scales * data.scales
    elif data.has_one_scale:
        given |= {n: v for n, v in make_given_numbers(graph, SOURCE, data).items() if n.what == "scales"}
    given[Runtime("scales", WEIGHTS, mask if scales.size > 1 else 0)] = graph.numbers(scales.astype(np.float32))
    return IntegerProduct(given, _bias(graph, bias, chain.line, channels), chain.steps)


def _scale_rows(graph: Lowering, data: Affine, bias: Value | None) -> list[Step]:
    """Return post-ops that scale each row of the product, and add the bias after that."""
    rows = graph.reshape(data.scale, (math.prod(data.scale.shape), 1))
    scaled = [Step("binary", algorithm="mul", operand=rows)]
    return scaled if bias is None else [*scaled, Step("binary", algorithm="add", operand=bias)]


def with_signed(node: Node, graph: Lowering, role: str) -> Node:
    """Return the node with an operand of uint8 as int8, and its zero point accordingly."""
    value, affine = node.operands[role], affine_of(node, role)
    assert affine is not None
    if value.descriptor.dtype != "uint8":
        return node
    shift = graph.numbers(np.array(-SHIFT, np.int32))
    signed = graph.cast(value, "int8", {Runtime("zero_points", enums.ARG["dst"]): shift})
    operands = {role: signed, f"{role}_zero": graph.numbers(affine.zeros - SHIFT)}
    return replace(node, operands={**node.operands, **operands})


def _bias(graph: Lowering, bias: Value | None, line: Line, channels: int) -> Value | None:
    """Return the bias after a linear function; none where that makes it 0."""
    scale, offset = line
    if bias is None and offset == 0:
        return None
    if bias is not None and line == UNCHANGED:
        return bias
    numbers = np.zeros(channels, np.float32) if bias is None else bias.array().reshape(-1)
    return graph.numbers((numbers * scale + offset).astype(np.float32))
