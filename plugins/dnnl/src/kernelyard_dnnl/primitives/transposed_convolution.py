"""conv_transpose: convolutions that spread their data out, as decoders and generators have them.

Node schema: that of conv, with weights (I, O/groups, spatial...), and output_padding. The padding at the end follows
from the result's shape.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import any_layout
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitive_kind import Follows, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.affine import are_decoded
from kernelyard_dnnl.primitives.convolution import (
    bare_primitive,
    check,
    group_weight,
    lower_in_window,
    lower_integer_convolution,
    window_attributes,
)
from kernelyard_dnnl.primitives.convolution_geometry import TRANSPOSED_DIRECT, Convolution, infer_transposed_geometry
from kernelyard_dnnl.primitives.post_ops import Step, apply_together, steps_of
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite

# The first of these sums many channels in parts, and adds bias and post-ops to each part: wrong results, with 256
# channels and a window of 4 by 4. The second leaves them to a plain loop, of 15 times the time.
UNFIT_FOR_POST_OPS = re.compile(r"\bbrgconv_strided\b|^conv:any\b")


def check_transposed(convolution: Candidate) -> Refusal | None:
    """As `check`; oneDNN refuses, at any size, a result that goes on for a stride or more beyond its last window."""
    attrs = convolution.composite.anchor.attrs
    behind = attrs["padding"][len(attrs["strides"]) :]
    for extra, cropped, stride in zip(attrs["output_padding"], behind, attrs["strides"], strict=True):
        if extra - cropped >= stride:
            return Refusal("attribute", f"an output padding of {extra} in steps of {stride}")
    return check(convolution)


def attributes(group: Composite) -> dict[str, Any]:
    """Return the window, and what the result has beyond it."""
    return window_attributes(group) | {"output_padding": list(group.anchor.attrs["output_padding"])}


def lower(node: Node, graph: Lowering) -> Value:
    """Lower a conv_transpose node."""
    geometry = infer_transposed_geometry(node)
    if are_decoded(node, "data", "weight"):
        return lower_integer_convolution(node, graph, _weight, geometry, lower)
    if len(node.shape) == 3:
        # Inside: few graphs have transposed convolutions of sequences.
        from kernelyard_dnnl.primitives.transposed_sequences import is_convolution_of_phases, lower_phases

        if is_convolution_of_phases(node):
            return lower_phases(node, graph)
    from kernelyard_dnnl.primitives.transposed_images import are_better_as_convolutions, lower_images

    if are_better_as_convolutions(node):
        return lower_images(node, graph)
    weight, data = _weight(node, graph), node.operands["data"]
    if node.post_ops or "bias" in node.operands:
        convolution = Convolution(graph, geometry, any_layout(weight.shape, weight.descriptor.dtype), None)
        bare = bare_primitive(convolution, data.descriptor, node.shape, node.dtype)
        if UNFIT_FOR_POST_OPS.search(bare.implementation):
            return _lower_apart(node, graph, weight, bare)
    return lower_in_window(node, graph, weight, geometry)


def _weight(node: Node, graph: Lowering) -> Value:
    """Return the weights as oneDNN names their dims, the result's channels before the data's."""
    weight = group_weight(node, graph)
    rank, last = len(weight.shape), len(node.shape)
    axes = (1, 0, *range(2, rank)) if rank == last else (0, 2, 1, *range(3, rank))
    return weight.permute(axes)


def _lower_apart(node: Node, graph: Lowering, weight: Value, bare: Primitive) -> Value:
    """Emit the convolution alone, then what is added and applied to its result in one pass over that."""
    data, weights = graph.reorder(node.operands["data"], bare.source), graph.reorder(weight, bare.weights)
    result = graph.new(bare.destination)
    graph.emit(bare, {SOURCE: data, enums.ARG["weights"]: weights, DESTINATION: result})
    steps, bias = steps_of(node), node.operands.get("bias")
    if bias is not None:
        per_channel = (1, node.shape[1], *(1,) * (len(node.shape) - 2))
        steps = [Step("binary", algorithm="add", operand=graph.reshape(graph.make_plain(bias), per_channel)), *steps]
    return apply_together(graph, replace(node, attrs={**node.attrs, "post_ops": ()}), steps, result)


TRANSPOSED_CONVOLUTION = PrimitiveKind(
    node="conv_transpose",
    summary="transposed convolutions, the same",
    ops=("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
    operands=("data", "weight"),
    attributes=attributes,
    check=check_transposed,
    follows=Follows.POST_OPS_AND_CASTS,
    order=MemoryOrder.CHANNELS_LAST,
    bias_axis=1,
    lower=lower,
    on_integers=("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
    enumerators={"dnnl_deconvolution_direct": TRANSPOSED_DIRECT},
)
