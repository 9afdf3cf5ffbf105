"""Affine quantization in lowerings: real = (stored - zero point) * scale.

An operand R of a node is stored in 8 bits, and reads as what dequantize makes of it, where the node also has R_scale
and R_zero; with result_scale and result_zero the result is quantized. Both are numbers, or broadcast to constants.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.lowering import SOURCE, Given, Lower, Lowering
from kernelyard_dnnl.primitive_attributes import Runtime
from kernelyard_dnnl.values import Node, Value

DESTINATION = enums.ARG["dst"]
RESULT = "result"
SCALE = "_scale"
PARAMETERS = (SCALE, "_zero")
ROWS = 0b1  # the mask of dim 0


class Affine(NamedTuple):
    """The scale and the zero point of a tensor."""

    scale: Value
    zero: Value

    @property
    def is_known(self) -> bool:
        """True for constants."""
        return self.scale.is_constant and self.zero.is_constant

    @property
    def has_one_scale(self) -> bool:
        """True where one scale is for all."""
        return math.prod(self.scale.shape) == 1

    @property
    def numbers(self) -> tuple[float, int]:
        """A known scale and zero point, one for all."""
        return float(self.scales[0]), int(self.zeros[0])

    @property
    def scales(self) -> np.ndarray:
        """Known scales, one or several."""
        return self.scale.array().reshape(-1)

    @property
    def zeros(self) -> np.ndarray:
        """Known zero points."""
        return self.zero.array().reshape(-1).astype(np.int32)

    def real(self, stored: np.ndarray) -> np.ndarray:
        """Return stored numbers as float32."""
        whole = stored.astype(np.int32) - self.zero.array().astype(np.int32)
        return (whole * self.scale.array()).astype(np.float32)


def affine_of(node: Node, role: str) -> Affine | None:
    """Return how an operand, or the result, is quantized; None where it is not."""
    scale = node.operands.get(f"{role}_scale")
    return None if scale is None else Affine(scale, node.operands[f"{role}_zero"])


def are_decoded(node: Node, *roles: str) -> bool:
    """Return True where all these operands are stored in 8 bits and read as what dequantize makes of them."""
    return all(affine_of(node, role) is not None for role in roles)


def is_parameter(role: str) -> bool:
    """Return True for roles of scales and zero points."""
    return role.endswith(PARAMETERS)


def is_scale(role: str) -> bool:
    """Return True for roles of scales."""
    return role.endswith(SCALE)


def make_given_numbers(graph: Lowering, argument: int, affine: Affine) -> Given:
    """Return the numbers by which a primitive reads or writes an argument; those that change nothing are left out.

    Of several scales, one is for each row.
    """
    given = dict(make_given_zero(graph, argument, affine.zero))
    scale = graph.reshape(affine.scale, (math.prod(affine.scale.shape),))
    return given | {Runtime("scales", argument, 0 if affine.has_one_scale else ROWS): scale}


def make_given_zero(graph: Lowering, argument: int, zero: Value) -> Given:
    """Return a zero point as an argument of an execution; none where it is known to be 0."""
    if zero.is_constant:
        known = zero.array().astype(np.int32).reshape(-1)[:1]  # one for all, which may be stated for each channel
        return {Runtime("zero_points", argument): graph.numbers(known)} if known.any() else {}
    zero = graph.reshape(zero, (1,))
    return {Runtime("zero_points", argument): zero if zero.descriptor.dtype == "int32" else graph.cast(zero, "int32")}


def quantize_result(node: Node, graph: Lowering, real: Value) -> Value:
    """Return a float32 tensor as the node's result is stored."""
    affine = affine_of(node, RESULT)
    assert affine is not None
    return graph.cast(real, node.dtype, make_given_numbers(graph, DESTINATION, affine))


def dequantize_operand(node: Node, graph: Lowering, role: str) -> Value:
    """Return an operand as float32."""
    value, affine = node.operands[role], affine_of(node, role)
    assert affine is not None
    if value.is_constant and affine.is_known:
        return graph.constant(affine.real(value.array()), f"{value.buffer.key}/{affine.scale.buffer.key}")
    return graph.cast(value, "float32", make_given_numbers(graph, SOURCE, affine))


def lower_in_floats(node: Node, graph: Lowering, lower: Lower) -> Value:
    """Lower a node of 8-bit operands by what computes it in float32: the same numbers, slower."""
    quantized_roles = [role for role in node.operands if affine_of(node, role) is not None]
    operands = {role: value for role, value in node.operands.items() if not is_parameter(role)}
    operands |= {role: dequantize_operand(node, graph, role) for role in quantized_roles}
    result = lower(replace(node, operands=operands, sequence=tuple(operands.values()), dtype="float32"), graph)
    return quantize_result(node, graph, result) if affine_of(node, RESULT) is not None else result
