"""A 1 x 1 convolution of channels that are scaled before, as squeeze-and-excitation has them: the scales go into its
weights while it runs, which are far fewer than the elements of the image.

W (s * x) = (W * s) x. Reordering the weights with a scale for each channel takes 2 to 4 microseconds where a pass over
the image takes 20 to 130 (EfficientNet's blocks of 112 x 112 to 28 x 28 pixels).
"""

from __future__ import annotations

import math
from dataclasses import replace

from kernelyard_dnnl.lowering import SOURCE, Given, Lowering
from kernelyard_dnnl.primitive_attributes import Runtime
from kernelyard_dnnl.primitives.affine import affine_of
from kernelyard_dnnl.values import Node, Value

# So many weights, at least, are scaled and reordered in the time in which the elements of an image are scaled.
PIXELS_FOR_A_FILTER = 4
INPUT_CHANNELS = 0b10  # the mask of dim 1 of the weights


def take_back_channel_scales(node: Node, graph: Lowering) -> tuple[Node, Given] | None:
    """Leave out the last operation where it scaled the channels of a 1 x 1 convolution's data, for this node alone.

    Returns: the node with the data as they are before, and the numbers by which to reorder its weights; None where
    there is no such operation, or more than one image is convolved, of which each has scales of its own.
    """
    data, weight = node.operands["data"], node.operands["weight"]
    maker = graph.last_maker(data) if _has_few_weights(weight, data) else None
    if maker is None or maker.shape != data.shape or not _is_product(maker) or not _are_floats(node, maker):
        return None
    if sum(value.buffer is data.buffer for value in node.sequence) > 1:
        return None
    channels, window = weight.shape[1], data.shape[2:]
    of_channels = (channels, *(1 for _ in window))
    sides = maker.operands["a"], maker.operands["b"]
    for scales, unscaled in (sides, sides[::-1]):
        if unscaled.shape == data.shape and scales.shape in (of_channels, (1, *of_channels)):
            graph.take_back()
            vector = graph.reshape(graph.make_plain(scales), (channels,))
            before = replace(node, operands={**node.operands, "data": unscaled})
            return before, {Runtime("scales", SOURCE, INPUT_CHANNELS): vector}
    return None


def _has_few_weights(weight: Value, data: Value) -> bool:
    """Return True for a 1 x 1 window of few filters on one large image."""
    filters, _, *window = weight.shape
    batch, _, *image = data.shape
    is_strided = weight.descriptor.strides is not None
    return is_strided and batch == 1 == math.prod(window) and PIXELS_FOR_A_FILTER * filters <= math.prod(image)


def _is_product(node: Node) -> bool:
    is_stored_quantized = any(affine_of(node, role) is not None for role in node.operands)
    return node.op == "binary" and node.attrs["algorithm"] == "mul" and not node.post_ops and not is_stored_quantized


def _are_floats(*nodes: Node) -> bool:
    dtypes = {value.descriptor.dtype for node in nodes for value in node.sequence}
    return dtypes | {node.dtype for node in nodes} == {"float32"}
