"""lrn: local response normalisation across channels, channels last.

Node schema: operand x (N, C, spatial...); attributes size (odd), alpha, beta, bias. No post-ops.
"""

from __future__ import annotations

import math

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import Size
from kernelyard_dnnl.values import Node, Value


def lower_lrn(node: Node, graph: Lowering) -> Value:
    """Lowers an lrn node. oneDNN has fast code for images, so that space is shown as one row of an image."""
    shape = node.shape
    x = graph.reshaped(graph.channels_last(node.operands["x"]), (*shape[:2], 1, math.prod(shape[2:])))
    layout = x.descriptor.canonical
    parameters = Size(node.attrs["size"]), *(float(node.attrs[name]) for name in ("alpha", "beta", "bias"))
    arguments = (enums.FORWARD_INFERENCE, enums.LRN_ACROSS_CHANNELS, layout, layout, *parameters)
    primitive = graph.primitive("lrn_forward", *arguments)
    result = graph.new(layout)
    graph.emit(primitive, {SOURCE: x, DESTINATION: result})
    return graph.reshaped(result, shape)
