"""Norms of a quantized tensor, which multiply and add numbers for each channel, quantized again: one binary primitive,
or code of our own.

x * factors + offsets, where scales and zero points are part of both vectors.
"""

from __future__ import annotations

import numpy as np

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.lowering import NOTHING, SOURCE, Lowering
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitive_attributes import PostOps
from kernelyard_dnnl.primitives.affine import RESULT, affine_of
from kernelyard_dnnl.primitives.byte_arithmetic import lower_byte_lines
from kernelyard_dnnl.primitives.post_ops import SOURCE_1, Step, broadcast_operand, pad_shape, steps_of
from kernelyard_dnnl.primitives.requantization import chain_of, execute_fused
from kernelyard_dnnl.values import Node, Value


class Lines(NamedTuple):
    """x * factors + offsets, arrays that broadcast to x."""

    factors: np.ndarray
    offsets: np.ndarray

    def then(self, step: Step) -> Lines | None:
        """Return the lines with a post-op after them; None where that is no linear function of known numbers."""
        function = step.eltwise
        if function is not None:
            is_linear = function.algorithm == "linear"
            return self.scale(np.array(function.alpha), np.array(function.beta)) if is_linear else None
        if step.operand is None or not step.operand.is_constant or step.affine is not None:
            return None
        return self.combine(step.algorithm, step.operand.array().astype(np.float64))

    def combine(self, algorithm: str, numbers: np.ndarray) -> Lines | None:
        """Return the lines of a sum, difference or product with numbers."""
        if algorithm == "mul":
            return self.scale(numbers, np.zeros(()))
        sign = {"add": 1.0, "sub": -1.0}.get(algorithm)
        return None if sign is None else self.scale(np.ones(()), sign * numbers)

    def scale(self, factors: np.ndarray, offsets: np.ndarray) -> Lines:
        """Return the lines with others after them."""
        return Lines(self.factors * factors, self.offsets * factors + offsets)


def lower_integer_norm(node: Node, graph: Lowering) -> Value | None:
    """Lower a binary node of a quantized operand and constants; None where oneDNN has no fast code for it."""
    x, numbers = node.operands["a"], node.operands["b"]
    affine, result = affine_of(node, "a"), affine_of(node, RESULT)
    assert affine is not None
    if pad_shape(x.shape, len(node.shape)) != node.shape or not numbers.is_constant:
        return None
    scale, zero = affine.numbers
    stored = Lines(np.array(scale), np.array(-scale * zero))
    lines = stored.combine(node.attrs["algorithm"], numbers.array().astype(np.float64))
    assert lines is not None, "the operators on integers"
    steps = steps_of(node)
    while steps and (longer := lines.then(steps[0])) is not None:
        lines, steps = longer, steps[1:]
    x = graph.make_gapless(graph.reshape(x, node.shape))
    made = lower_byte_lines(node, graph, x, lines, steps)
    if made is not None:
        return made
    chain = chain_of(steps, result, node.dtype)
    lines = lines.scale(np.array(chain.line.scale), np.array(chain.line.offset))
    return _emit_binary(node, graph, x, lines, chain.steps)


def _emit_binary(node: Node, graph: Lowering, x: Value, lines: Lines, steps: list[Step]) -> Value | None:
    shown = x.descriptor
    factors, offsets = (broadcast_operand(graph, _constant(graph, each), shown) for each in np.broadcast_arrays(*lines))
    destination = dense(node.shape, node.dtype, shown.order if shown.strides is not None else None)

    def create(post_ops: PostOps) -> Primitive:
        return graph.primitive("binary", enums.BINARY["mul"], shown, factors.descriptor, destination, post_ops=post_ops)

    added = Step("binary", algorithm="add", operand=offsets)
    return execute_fused(graph, [added, *steps], NOTHING, destination, {SOURCE: x, SOURCE_1: factors}, create)


def _constant(graph: Lowering, array: np.ndarray) -> Value:
    numbers = graph.numbers(array.astype(np.float32))
    return graph.reshape(numbers, array.shape)
