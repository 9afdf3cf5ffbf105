"""pad: zeros around an image that stays among convolutions.

Node schema: operand x; attribute begin (dims: numbers, or expressions of the symbols): the zeros before each axis, from
which, and the result's shape, those after it follow. No post-ops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard import dtypes
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, dense
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitive_kind import FLOAT, INTEGERS, NARROW, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard.plugins.api import Call
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite


def has_zero_fill(pad: Call) -> bool:
    """Return True for a pad whose new elements are zero."""
    return pad.attrs["mode"] == "constant" and pad.attrs["value"] == 0


def check_surroundings(pad: Candidate) -> Refusal | None:
    """Images that oneDNN has made and reads again, in an order of its own: a generated kernel would take them out of it
    and back, which is two more passes."""
    data = pad.call.args[0].tensor_type
    if not pad.is_between_ours:
        return Refusal("neighbours", "pad without oneDNN primitives on both sides")
    if not 3 <= data.rank <= 5:
        return Refusal("rank", f"padding of rank {data.rank}, which is no image among convolutions")
    if pad.order_of(pad.call.args[0]) == tuple(range(data.rank)):
        return Refusal("neighbours", "padding of row-major data, which a generated kernel does on its way")
    return None


def check(pad: Candidate) -> Refusal | None:
    """Zeros, none or more of them on each side; the amounts may be symbolic."""
    from kernelyard.plugins.api import is_nonnegative  # inside: the runtime half has no compiler

    attrs = pad.attrs
    if not has_zero_fill(pad.call):
        return Refusal("attribute", f"padding with {attrs['mode']} {attrs['value']:g}; only zeros are written around")
    if not all(map(is_nonnegative, attrs["pads"])):
        return Refusal("attribute", f"pads {attrs['pads']}, which may cut")
    return None


def attributes(group: Composite) -> dict[str, Any]:
    """Return the zeros before each axis."""
    return {"begin": list(group.anchor.attrs["pads"][: group.anchor.tensor_type.rank])}


def lower_pad(node: Node, graph: Lowering) -> Value:
    """Lower a pad node, in the operand's layout: zeros and operand are copied into views of the result.

    Copies with strides took 0.2 to 0.6 of the time of a concat with zeros, which copies few channels at a time.
    """
    x, begin = graph.make_viewable(node.operands["x"]), node.sizes("begin")
    if any(not 0 <= first <= last - size for first, size, last in zip(begin, x.shape, node.shape, strict=True)):
        raise ValueError(f"an operand of {x.shape} at {begin} is not inside the result, {node.shape}")
    order = x.descriptor.order
    result = graph.new(dense(node.shape, node.dtype, order))
    for start, shape in _borders(begin, x.shape, node.shape):
        graph.copy_into(_zeros(graph, dense(shape, node.dtype, order)), result.part(start, shape))
    graph.copy_into(x, result.part(begin, x.shape))
    return result


def _borders(begin: Shape, inner: Shape, outer: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Yield start and shape of the boxes that fill what is around the inner one, which starts at `begin`."""
    for axis, (before, size, whole) in enumerate(zip(begin, inner, outer, strict=True)):
        for start, amount in ((0, before), (before + size, whole - before - size)):
            shape = (*inner[:axis], amount, *outer[axis + 1 :])
            if 0 not in shape:
                yield (*begin[:axis], start, *(0 for _ in outer[axis + 1 :])), shape


def _zeros(graph: Lowering, descriptor: MemoryDescriptor) -> Value:
    """Return zeros, which are the same in any layout, so that nothing is packed."""
    count = math.prod(descriptor.shape)
    flat = np.zeros(count, dtypes.to_numpy(descriptor.dtype))
    return graph.constant(flat, f"{count} zeros of {descriptor.dtype}").view_as(descriptor)


PAD = PrimitiveKind(
    node="pad",
    summary="zeros around an image among convolutions, of any axis and of symbolic amounts too",
    ops=("pad",),
    operands=("x",),
    attributes=attributes,
    computes=has_zero_fill,
    check=check,
    check_surroundings=check_surroundings,
    order=MemoryOrder.FIRST_OPERAND,
    lower=lower_pad,
    pattern="pad",
    dtypes=(FLOAT, NARROW, *INTEGERS),
    is_light=True,
)
