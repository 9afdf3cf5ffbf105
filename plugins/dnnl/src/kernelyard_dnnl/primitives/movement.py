"""cast, reorder (a transposition), reshape and slice.

Node schema: cast: operand x, to the dtype of the result. reorder: operand x; attributes axes, as in `numpy.transpose`,
and is_border, true where the compiler and not the model renames the dims of what comes into the graph or leaves it.
reshape: operand x. slice: operand x; attributes axes, begin (dims: numbers, or expressions of the symbols), strides
(positive). No post-ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitive_kind import FLOAT, INTEGERS, NARROW, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite


def check_cast(cast: Candidate) -> Refusal | None:
    """Between float32 and bfloat16, where a tensor enters or leaves what oneDNN computes; kernels cast on their way."""
    source, target = cast.call.args[0].tensor_type, cast.call.tensor_type
    if {source.dtype, target.dtype} != {FLOAT, NARROW}:
        return Refusal("dtype", f"a cast from {source.dtype} to {target.dtype}; oneDNN casts {FLOAT} and {NARROW}")
    if not all(cast.is_unmade(maker) or cast.may_be_ours(maker) for maker in cast.makers):
        return Refusal("neighbours", "a generated kernel computes the operand, and fuses the cast")
    if not all(map(cast.may_be_ours, cast.users)):
        return Refusal("neighbours", "a generated kernel reads the result, and fuses the cast")
    return None


def check_reorder(reorder: Candidate) -> Refusal | None:
    """Require rank 2 at least."""
    return Refusal("rank", "a transposition of rank below 2") if reorder.result.rank < 2 else None


def check_view(view: Candidate) -> Refusal | None:
    """Refuse a view of the same bytes unless oneDNN has tensors on both sides: their region then stays one."""
    if not all(any(map(view.may_be_ours, side)) for side in (view.makers, view.users)):
        return Refusal("neighbours", f"{view.op_name} without oneDNN primitives on both sides")
    return None


def check_slice(view: Candidate) -> Refusal | None:
    """Require slices that go forwards, as views between tensors of oneDNN."""
    if any(step < 1 for step in view.attrs["strides"]):
        return Refusal("attribute", f"a slice with strides {view.attrs['strides']}")
    return check_view(view)


def slice_attributes(group: Composite) -> dict[str, Any]:
    """Return the begin and the strides of a slice; its end follows from the result's shape."""
    return {name: list(group.anchor.attrs[name]) for name in ("axes", "begin", "strides")}


def lower_permutation(node: Node, graph: Lowering) -> Value:
    """Lower a reorder node to a view with permuted dims; readers that need another layout copy it."""
    return graph.make_viewable(node.operands["x"]).permute(tuple(node.attrs["axes"]))


def lower_cast(node: Node, graph: Lowering) -> Value:
    """Lower a cast node: a copy in another dtype."""
    return graph.cast(node.operands["x"], node.dtype)


def lower_slice(node: Node, graph: Lowering) -> Value:
    """Lower a slice node to a view; readers that need dense memory copy it."""
    x = graph.make_viewable(node.operands["x"])
    assert x.descriptor.strides is not None
    strides, offset = list(x.descriptor.strides), x.offset
    for axis, begin, step in zip(node.attrs["axes"], node.sizes("begin"), node.attrs["strides"], strict=True):
        offset += begin * strides[axis]
        strides[axis] *= step
    return Value(x.buffer, MemoryDescriptor(node.shape, node.dtype, tuple(strides)), offset)


def lower_reshape(node: Node, graph: Lowering) -> Value:
    """Lower a reshape node to a view where the layout allows, else to a row-major copy."""
    return graph.reshape(node.operands["x"], node.shape)


CAST = PrimitiveKind(
    node="cast",
    summary=(
        "`astype` between float32 and bfloat16 where a tensor enters or leaves oneDNN primitives; one reorder "
        "with a change of layout"
    ),
    ops=("astype",),
    operands=("x",),
    check_surroundings=check_cast,
    order=MemoryOrder.FIRST_OPERAND,
    lower=lower_cast,
    pattern="cast",
    is_light=True,
)
REORDER = PrimitiveKind(
    node="reorder",
    summary="`permute_dims`: a view where the reader can follow strides",
    ops=("permute_dims",),
    operands=("x",),
    attributes=lambda group: {"axes": list(group.anchor.attrs["axes"])},
    check=check_reorder,
    order=MemoryOrder.RENAMED,
    lower=lower_permutation,
    pattern="reorder",
    dtypes=(FLOAT, NARROW, *INTEGERS),
    is_light=True,
)
RESHAPE = PrimitiveKind(
    node="reshape",
    summary="a view between oneDNN primitives, so that layouts propagate",
    ops=("reshape",),
    operands=("x",),
    check_surroundings=check_view,
    lower=lower_reshape,
    dtypes=(FLOAT, NARROW, *INTEGERS),
    is_light=True,
)
SLICE = PrimitiveKind(
    node="slice",
    summary="`strided_slice`: the same",
    ops=("strided_slice",),
    operands=("x",),
    attributes=slice_attributes,
    check_surroundings=check_slice,
    order=MemoryOrder.FIRST_OPERAND,
    lower=lower_slice,
    pattern="slice",
    dtypes=(FLOAT, NARROW, *INTEGERS),
    is_light=True,
)
