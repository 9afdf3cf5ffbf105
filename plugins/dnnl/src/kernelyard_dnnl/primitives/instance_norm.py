"""instance_norm: each channel of each image, less its mean, over its deviation, where the channels are innermost.

Node schema: operands x (N, C, spatial...), gamma, beta (C,); attribute epsilon; post-ops. oneDNN has no such primitive:
means are poolings over all of space, and the rest is one binary primitive for the squares and one for the result. So an
image between two convolutions stays in their layout.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernelyard_dnnl.layout import MemoryDescriptor, channels_last, channels_last_order, dense
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitive_attributes import Eltwise, PostOps
from kernelyard_dnnl.primitive_kind import FLOAT, Follows, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.post_ops import (
    SOURCE_1,
    Step,
    apply_steps,
    binary_primitive,
    execute,
)
from kernelyard_dnnl.primitives.reduction import pool_space
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate

SQUARE = Eltwise("square")
MEAN = "avg_include_padding"
# Numbers in a row, about: oneDNN's arithmetic per channel takes pixel by pixel, 16 channels at 15 GB/s.
WIDE = 256


def check(norm: Candidate) -> Refusal | None:
    """Require images and volumes that come channels-last; a generated kernel is faster with row-major ones."""
    data = norm.call.args[0].tensor_type
    if not 3 <= data.rank <= 5:
        return Refusal("rank", f"instance_norm of rank {data.rank}; a mean over space is a pooling of 1 to 3 axes")
    if norm.order_of(norm.operands[0]) != channels_last_order(data.rank):
        return Refusal("slow", "the image is not channels-last; a generated kernel reads it row by row")
    return norm.check_known("the number of channels", data.shape[1])


def lower_instance_norm(node: Node, graph: Lowering) -> Value:
    """Lower an instance_norm node: (x - mean) * scale + beta, with scale = gamma / sqrt(variance + epsilon).

    The variance is the mean of squared differences: that of squares would cancel.
    """
    x = graph.make_channels_last(node.operands["x"])
    layout, per_channel = x.descriptor, (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    squares = graph.new(layout)
    if 0 in x.shape:
        return squares
    gamma, beta = (graph.reshape(node.operands[role], per_channel) for role in ("gamma", "beta"))
    wide = _Wide(graph, x)
    mean = pool_space(graph, x, MEAN, node.dtype)
    arguments = {SOURCE: wide.require_shown(x), SOURCE_1: wide.require_shown(mean)}

    def difference(post_ops: PostOps) -> Primitive:
        left, right = (arguments[place].descriptor for place in (SOURCE, SOURCE_1))
        return binary_primitive(graph, "sub", left, right, post_ops)

    graph.emit(difference((SQUARE,)), arguments | {DESTINATION: wide.require_shown(squares)})
    variance = pool_space(graph, squares, MEAN, node.dtype)
    root = [
        Step("eltwise", Eltwise("linear", 1.0, float(node.attrs["epsilon"]))),
        Step("eltwise", Eltwise("pow", 1.0, -0.5)),
        Step("binary", algorithm="mul", operand=gamma),
    ]
    scale = apply_steps(graph, root, graph.copy(variance, variance.descriptor))
    steps = [Step("binary", algorithm="mul", operand=scale), Step("binary", algorithm="add", operand=beta)]
    busy = [mean, scale, *(value for role, value in node.operands.items() if role != "x")]
    reuse = x if graph.may_overwrite(x, busy) else squares
    return execute(graph, node, layout, arguments, difference, reuse=reuse, view=wide.show, before=steps)


class _Wide:
    """Several pixels as one, each with channels of its own, so that rows are long."""

    def __init__(self, graph: Lowering, x: Value) -> None:
        self._graph = graph
        self._shape = x.shape
        self._pixels = math.prod(x.shape[2:])
        self._joined = 1
        while self._pixels % (2 * self._joined) == 0 and 2 * self._joined * x.shape[1] <= WIDE:
            self._joined *= 2

    def show(self, value: Value) -> Value | None:
        """Show a channels-last tensor of the image's shape, or one with a number for each channel; None for others."""
        images, channels, *space = value.shape
        joined, dtype = self._joined, value.descriptor.dtype
        if value.shape == self._shape:
            shape = images, joined * channels, self._pixels // joined
            return value.view_as(channels_last(shape, dtype))
        if channels != self._shape[1] or any(size != 1 for size in space):
            return None
        repeated = MemoryDescriptor((images, joined, channels), dtype, (channels, 0, 1))
        copied = self._graph.reorder(value.view_as(repeated), dense(repeated.shape, dtype))
        return self._graph.reshape(copied, (images, joined * channels, 1))

    def require_shown(self, value: Value) -> Value:
        """Show a tensor that `show` takes."""
        shown = self.show(value)
        assert shown is not None
        return shown


INSTANCE_NORM = PrimitiveKind(
    node="instance_norm",
    summary="of images that come channels-last",
    ops=("nn.instance_norm",),
    operands=("x", "gamma", "beta"),
    attributes=lambda group: {"epsilon": group.anchor.attrs["epsilon"]},
    check=check,
    follows=Follows.POST_OPS,
    order=MemoryOrder.CHANNELS_LAST,
    dtypes=(FLOAT,),  # statistics are made in the dtype of the data, and bfloat16 is not enough
    lower=lower_instance_norm,
)
