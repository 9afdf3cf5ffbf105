"""conv: channels-last activations, weights in whatever layout the primitive prefers.

Node schema: operands data (N, C, spatial...), weight (O, I/groups, spatial...), optional bias, and those of the
post-ops. Attributes strides, padding_begin and padding_end (numbers, or dims as text), dilation (1 = dense), groups;
winograd is described in `primitives.winograd`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, any_layout, channels_last, dense
from kernelyard_dnnl.lowering import NOTHING, SOURCE, Given, Lower, Lowering
from kernelyard_dnnl.primitive import Primitive, speed
from kernelyard_dnnl.primitive_attributes import PostOps
from kernelyard_dnnl.primitive_kind import Follows, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.affine import are_decoded, is_parameter, lower_in_floats
from kernelyard_dnnl.primitives.convolution_geometry import DIRECT, Convolution, Geometry, geometry_of
from kernelyard_dnnl.primitives.post_ops import activations_of, execute
from kernelyard_dnnl.primitives.strided_rows import is_better_as_products, lower_as_products
from kernelyard_dnnl.primitives.winograd_choice import winograd_tile
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard.dims import Dim
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite
    from kernelyard_dnnl.primitives.integer_product import IntegerProduct

WEIGHTS, BIAS = enums.ARG["weights"], enums.ARG["bias"]
# Dims of the weights (groups, filters of a group, ...) along which scales vary, as bits.
UNGROUPED, GROUPED = 0b1, 0b11


def check(convolution: Candidate) -> Refusal | None:
    """Channels and the kernel must be known; batch and space may be symbolic. Padding of the data before it is zeros
    in space; the amounts may be symbolic."""
    for pad in convolution.composite.readers.values():
        pads, rank = pad.attrs["pads"], pad.args[0].tensor_type.rank
        if pad.attrs["mode"] != "constant" or pad.attrs["value"] != 0:
            how = f"{pad.attrs['mode']} {pad.attrs['value']:g}"
            return Refusal("attribute", f"padding with {how}; a convolution pads with zeros")
        if any(amount != 0 for amount in (*pads[:2], *pads[rank : rank + 2])):
            return Refusal("attribute", "padding of the batch or the channels")
        if any(isinstance(amount, int) and amount < 0 for amount in pads):
            return Refusal("attribute", "negative padding")
    data, weight = (operand.tensor_type for operand in convolution.operands)
    return convolution.check_known("the channels and the kernel", data.shape[1], *weight.shape)


def attributes(group: Composite) -> dict[str, Any]:
    """Return the window; a `pad` before the convolution is part of it."""
    attrs = window_attributes(group)
    return attrs | _with_padding(attrs, group.readers[0].attrs["pads"]) if 0 in group.readers else attrs


def window_attributes(group: Composite) -> dict[str, Any]:
    """Return the window of the operator itself."""
    from kernelyard_dnnl.primitives.window import padding_attributes  # inside: the runtime half has it in the node

    attrs = group.anchor.attrs
    return {
        "rank": len(attrs["strides"]),
        "strides": list(attrs["strides"]),
        **padding_attributes(attrs["padding"]),
        "dilation": list(attrs["dilation"]),
        "groups": attrs["groups"],
    }


def _with_padding(attrs: Mapping[str, Any], pads: Sequence[Dim]) -> dict[str, list[Dim]]:
    """Return the padding of a convolution together with that of the `pad` before it."""
    rank = len(pads) // 2
    before, after = pads[2:rank], pads[rank + 2 :]
    return {
        "padding_begin": [own + more for own, more in zip(attrs["padding_begin"], before, strict=True)],
        "padding_end": [own + more for own, more in zip(attrs["padding_end"], after, strict=True)],
    }


PER_AXIS = ("strides", "padding_begin", "padding_end", "dilation")


def lower_convolution(node: Node, graph: Lowering) -> Value:
    """Lower a conv node."""
    trivial = _trivial_axes(node)
    if trivial:
        return graph.reshape(lower_convolution(_without_axes(node, trivial, graph), graph), node.shape)
    if are_decoded(node, "data", "weight"):
        return lower_integer_convolution(node, graph, group_weight, geometry_of(node), lower_convolution)
    tile = winograd_tile(node, graph)
    if tile is not None:
        # Imported here: neither patterns nor most graphs need the generator of Winograd's kernels.
        from kernelyard_dnnl.primitives.winograd import lower_winograd

        return lower_winograd(node, graph, tile)
    if is_better_as_products(node):
        return lower_as_products(node, graph)
    weight, geometry = group_weight(node, graph), geometry_of(node)
    if len(node.shape) == 3:
        # Inside: few graphs have sequences.
        from kernelyard_dnnl.primitives.padded_sequences import has_wide_padding, lower_in_parts

        in_parts = lower_in_parts(node, graph, weight) if has_wide_padding(node) else None
        if in_parts is not None:
            return in_parts
    if node.attrs["groups"] == node.shape[1]:
        from kernelyard_dnnl.primitives.depthwise import lower_with_pointwise  # inside: few graphs have such a pair

        fused = lower_with_pointwise(node, graph, weight)
        if fused is not None:
            return fused
    scales = NOTHING
    maker = graph.last_maker(node.operands["data"]) if node.attrs["groups"] == 1 else None
    if maker is not None and maker.op == "binary":
        from kernelyard_dnnl.primitives.channel_scales import take_back_channel_scales  # inside: few scale channels

        node, scales = take_back_channel_scales(node, graph) or (node, NOTHING)
    return lower_in_window(node, graph, weight, geometry, scales)


def _trivial_axes(node: Node) -> frozenset[int]:
    """Return the spatial dims of size 1 that nothing happens in, one left at least: oneDNN blocks over the last dim, so
    that an image one pixel wide, as models of sequences have it, would be computed a pixel at a time."""
    shapes = (node.operands["data"].shape, node.operands["weight"].shape, node.shape)
    rank = len(node.shape)
    trivial = [axis for axis in range(2, rank) if all(shape[axis] == 1 for shape in shapes)]
    padding = zip(node.sizes("padding_begin"), node.sizes("padding_end"), strict=True) if trivial else ()
    padded = {axis for axis, amounts in enumerate(padding, 2) if sum(amounts)}
    return frozenset([axis for axis in trivial if axis not in padded][: rank - 3])


def _without_axes(node: Node, axes: frozenset[int], graph: Lowering) -> Node:
    """Return the same convolution with fewer spatial dims."""
    kept = [axis for axis in range(len(node.shape)) if axis not in axes]

    def squeeze(value: Value) -> Value:
        shape = (1,) * (len(node.shape) - len(value.shape)) + value.shape
        return graph.reshape(value, tuple(shape[axis] for axis in kept))

    def is_number(role: str, value: Value) -> bool:
        return is_parameter(role) and math.prod(value.shape) == 1

    operands = {
        role: value if role == "bias" or is_number(role, value) else squeeze(value)
        for role, value in node.operands.items()
    }
    per_axis = {name: tuple(node.attrs[name][axis - 2] for axis in kept[2:]) for name in PER_AXIS}
    shape = tuple(node.shape[axis] for axis in kept)
    sequence = tuple(operands[role] for role in node.operands)
    return replace(node, attrs={**node.attrs, **per_axis}, operands=operands, sequence=sequence, shape=shape)


def lower_integer_convolution(
    node: Node, graph: Lowering, weight_of: Callable[[Node, Lowering], Value], geometry: Geometry, in_floats: Lower
) -> Value:
    """Lower a convolution of 8-bit data and weights, transposed or not; in floats, where oneDNN has no code for it.

    weight_of: gives the weights as the primitive takes them.
    """
    from kernelyard_dnnl.primitives.integer_product import can_multiply_integers, integer_product  # inside: few have it

    groups, result = node.attrs["groups"], None
    if can_multiply_integers():
        product = integer_product(node, graph, ("data", "weight"), GROUPED if groups > 1 else UNGROUPED, node.shape[1])
        if groups == node.shape[1] and in_floats is lower_convolution:
            from kernelyard_dnnl.primitives.integer_depthwise import lower_integer_depthwise  # inside: few have it

            result = lower_integer_depthwise(node, graph, product)
        if result is None:
            result = _integer_convolution(node, graph, product, weight_of(node, graph), geometry)
    return lower_in_floats(node, graph, in_floats) if result is None else result


def _integer_convolution(
    node: Node, graph: Lowering, product: IntegerProduct, weight: Value, geometry: Geometry
) -> Value | None:
    from kernelyard_dnnl.primitives.requantization import execute_fused

    data = node.operands["data"]
    source, destination = channels_last(data.shape, data.descriptor.dtype), channels_last(node.shape, node.dtype)
    weights = any_layout(weight.shape, weight.descriptor.dtype)
    bias = None if product.bias is None else product.bias.descriptor
    convolution = Convolution(graph, geometry, weights, bias, tuple(product.given))
    arguments = {SOURCE: graph.reorder(data, source)}
    if product.bias is not None:
        arguments[BIAS] = product.bias

    def create(post_ops: PostOps) -> Primitive:
        return convolution.primitive(source, destination, post_ops)

    return execute_fused(graph, product.steps, product.given, destination, arguments, create, weight)


def group_weight(node: Node, graph: Lowering) -> Value:
    """Split the first dim of the weights into (groups, first / groups) where there are groups."""
    weight, groups = node.operands["weight"], node.attrs["groups"]
    if groups == 1:
        return weight
    first, *rest = weight.shape
    return graph.reshape(weight, (groups, first // groups, *rest))


def lower_in_window(
    node: Node, graph: Lowering, weight: Value, geometry: Geometry, weight_scales: Given = NOTHING
) -> Value:
    """Lower a convolution of floats with its bias and post-ops to one primitive, or few.

    weight_scales: what the weights are multiplied by while it runs.
    """
    data, bias = node.operands["data"], node.operands.get("bias")
    if bias is not None:
        bias = graph.reshape(graph.make_plain(bias), (node.shape[1],))
    weights = any_layout(weight.shape, weight.descriptor.dtype)
    convolution = Convolution(graph, geometry, weights, None if bias is None else bias.descriptor)
    fused = activations_of(node)
    chosen = convolution.quickest(_choose_primitive(convolution, data.descriptor, node, fused))
    source, destination = chosen.source, chosen.destination
    arguments = {
        SOURCE: graph.reorder(data, source),
        WEIGHTS: _pack_weight(weight, chosen.weights, weight_scales, node, graph),
    }
    if bias is not None:
        arguments[BIAS] = bias
    same_weights = convolution._replace(weights=chosen.weights)

    def create(post_ops: PostOps) -> Primitive:
        if post_ops == chosen.recipe.post_ops:
            return chosen
        return same_weights.lasting(same_weights.faster(same_weights.primitive(source, destination, post_ops)))

    return execute(graph, node, destination, arguments, create, width=node.shape[1], is_convolution=True)


def _pack_weight(weight: Value, layout: MemoryDescriptor, scales: Given, node: Node, graph: Lowering) -> Value:
    """Pack the weights as the primitive takes them; constants beforehand, unless there are scales."""
    if not scales:
        return graph.reorder(weight, layout)
    packed = graph.new(layout)
    graph.copy_into(weight, packed, f"the weights of {node.label}", scales)
    return packed


def _choose_primitive(convolution: Convolution, data: MemoryDescriptor, node: Node, fused: PostOps | None) -> Primitive:
    """Return the primitive with those post-ops, where there is fast code for it with channels last; else one without,
    which decides about the layouts.
    """
    if fused:
        try:
            source, destination = next(_layout_choices(data, node.shape, node.dtype))
            primitive = convolution.primitive(source, destination, fused)
        except StatusError:
            pass
        else:
            if speed(primitive.implementation) == 2:
                return primitive
    return bare_primitive(convolution, data, node.shape, node.dtype)


def bare_primitive(convolution: Convolution, data: MemoryDescriptor, result: Shape, dtype: str) -> Primitive:
    """Return the primitive without post-ops: channels last, unless only another layout has fast code."""
    best: tuple[int, Primitive] | None = None
    for source, destination in _layout_choices(data, result, dtype):
        try:
            primitive = convolution.primitive(source, destination)
        except StatusError:
            continue
        rank = speed(primitive.implementation)
        if best is None or rank > best[0]:
            best = (rank, primitive)
        if rank == 2:
            break
    if best is None:
        # Every layout was refused: let the library's own message reach the user.
        return convolution.primitive(any_layout(data.shape, data.dtype), any_layout(result, dtype))
    return best[1]


def _layout_choices(
    data: MemoryDescriptor, result: Shape, dtype: str
) -> Iterator[tuple[MemoryDescriptor, MemoryDescriptor]]:
    yield channels_last(data.shape, data.dtype), channels_last(result, dtype)
    yield any_layout(data.shape, data.dtype), any_layout(result, dtype)
    yield dense(data.shape, data.dtype), dense(result, dtype)


CONVOLUTION = PrimitiveKind(
    node="conv",
    summary=(
        "convolutions: strided, dilated, grouped, depthwise, any padding; weights constant or not; a preceding "
        "`pad` with zeros folded in, of symbolic amounts too"
    ),
    ops=("nn.conv1d", "nn.conv2d", "nn.conv3d"),
    operands=("data", "weight"),
    attributes=attributes,
    check=check,
    follows=Follows.POST_OPS_AND_CASTS,
    order=MemoryOrder.CHANNELS_LAST,
    reader="pad",
    bias_axis=1,
    lower=lower_convolution,
    on_integers=("nn.conv1d", "nn.conv2d", "nn.conv3d"),
    enumerators={"dnnl_convolution_direct": DIRECT},
)
