"""lrn: local response normalisation across channels, channels last.

Node schema: operand x (N, C, spatial...); attributes size (odd), alpha, beta, bias. No post-ops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import Size
from kernelyard_dnnl.primitive_kind import MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate

ACROSS_CHANNELS = 2815


def check(lrn: Candidate) -> Refusal | None:
    """Require an odd window, as oneDNN does; it has fast code for the exponent 0.75 alone, as it says itself."""
    size = lrn.attrs["size"]
    if size % 2 == 0:
        return Refusal("attribute", f"lrn with a window of {size}; oneDNN's is symmetric, and its size odd")
    return lrn.check_known("the number of channels", lrn.result.shape[1])


def lower_lrn(node: Node, graph: Lowering) -> Value:
    """Lower an lrn node. oneDNN has fast code for images, so that space is shown as one row of an image."""
    shape = node.shape
    x = graph.reshape(graph.make_channels_last(node.operands["x"]), (*shape[:2], 1, math.prod(shape[2:])))
    layout = x.descriptor.canonical
    size, *factors = Size(node.attrs["size"]), *(float(node.attrs[name]) for name in ("alpha", "beta", "bias"))
    arguments = (enums.FORWARD_INFERENCE, ACROSS_CHANNELS, layout, layout, size, *factors)
    primitive = graph.primitive("lrn_forward", *arguments)
    result = graph.new(layout)
    graph.emit(primitive, {SOURCE: x, DESTINATION: result})
    return graph.reshape(result, shape)


LRN = PrimitiveKind(
    node="lrn",
    summary="across channels, a window of odd size, the exponent 0.75",
    ops=("nn.lrn",),
    operands=("x",),
    attributes=lambda group: dict(group.anchor.attrs),
    check=check,
    order=MemoryOrder.CHANNELS_LAST,
    lower=lower_lrn,
    enumerators={"dnnl_lrn_across_channels": ACROSS_CHANNELS},
)
