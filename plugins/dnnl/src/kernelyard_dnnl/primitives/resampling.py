"""resample: nearest and linear resizing.

Node schema: operand x (N, C, spatial...); attribute algorithm (nearest, linear); the sizes are those of the result,
output pixel o reads the input around (o + 0.5) * in / out - 0.5; post-ops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernelyard import dims
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.lowering import SOURCE, Lowering
from kernelyard_dnnl.primitive import Factors, Primitive
from kernelyard_dnnl.primitive_attributes import PostOps
from kernelyard_dnnl.primitive_kind import FLOAT, INTEGERS, NARROW, Follows, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.post_ops import execute
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard.plugins.api import Call
    from kernelyard_dnnl.candidate import Candidate

ALGORITHMS = {"nearest": 196592, "linear": 196593}
ROUNDING = ("round_prefer_floor", "round_prefer_ceil")


def check(resize: Candidate) -> Refusal | None:
    """Require nearest or linear resizing on the half-pixel grid, which is oneDNN's only one."""
    attrs, data = resize.attrs, resize.call.args[0].tensor_type
    if not 3 <= data.rank <= 5:
        return Refusal("rank", f"resizing a tensor of rank {data.rank}")
    if not _has_scales_of_sizes(resize.call):
        return Refusal("attribute", f"scales {attrs['scales']} that are not the ratios of the sizes")
    if attrs["method"] == "nearest" and _is_whole_upsampling(resize.call):
        return None
    if data.dtype in INTEGERS:
        return Refusal("dtype", f"resizing {data!r} by {attrs['method']}")
    if attrs["method"] == "linear" and attrs["coordinate_transformation_mode"] == "half_pixel":
        return None
    how = f"{attrs['method']}, {attrs['coordinate_transformation_mode']}, {attrs['nearest_mode']}"
    return Refusal("attribute", f"resizing by {how}; oneDNN has half-pixel linear, and nearest by integer factors")


def _has_scales_of_sizes(call: Call) -> bool:
    """Return True when every given scale is the ratio of the sizes, which is the only scale that oneDNN knows."""
    data, out = call.args[0].tensor_type.shape, call.tensor_type.shape
    for scale, before, after in zip(call.attrs["scales"], data[2:], out[2:], strict=False):
        if isinstance(before, int) and isinstance(after, int):
            if not math.isclose(scale * before, after, rel_tol=1e-6):
                return False
        elif not scale.is_integer() or int(scale) * before != after:
            return False
    return True


def _is_whole_upsampling(call: Call) -> bool:
    """Return True when each pixel is repeated a whole number of times and the rounding picks that pixel."""
    attrs, data, out = call.attrs, call.args[0].tensor_type.shape, call.tensor_type.shape
    whole = all(
        isinstance(dims.floordiv(o, d), int) and dims.floordiv(o, d) * d == o
        for o, d in zip(out[2:], data[2:], strict=True)
    )
    asymmetric = attrs["coordinate_transformation_mode"] == "asymmetric" and attrs["nearest_mode"] == "floor"
    centred = (
        attrs["coordinate_transformation_mode"] in ("half_pixel", "pytorch_half_pixel")
        and attrs["nearest_mode"] in ROUNDING
    )
    return whole and (asymmetric or centred)


def lower_resample(node: Node, graph: Lowering) -> Value:
    """Lower a resample node, in the operand's layout."""
    x = graph.make_strided(node.operands["x"])
    source, result = x.descriptor, dense(node.shape, node.dtype, x.descriptor.order)
    factors = Factors(tuple(after / before for after, before in zip(node.shape[2:], x.shape[2:], strict=True)))
    algorithm = ALGORITHMS[node.attrs["algorithm"]]

    def create(post_ops: PostOps) -> Primitive:
        arguments = (enums.FORWARD_INFERENCE, algorithm, factors, source, result)
        return graph.primitive("resampling_forward", *arguments, post_ops=post_ops)

    return execute(graph, node, result, {SOURCE: x}, create)


RESAMPLE = PrimitiveKind(
    node="resample",
    summary="`image.resize`: linear on the half-pixel grid, nearest by integer factors",
    ops=("image.resize",),
    operands=("x",),
    attributes=lambda group: {"algorithm": group.anchor.attrs["method"]},
    check=check,
    follows=Follows.POST_OPS,
    order=MemoryOrder.FIRST_OPERAND,
    lower=lower_resample,
    pattern="resample",
    dtypes=(FLOAT, NARROW, *INTEGERS),
    enumerators={f"dnnl_resampling_{name}": value for name, value in ALGORITHMS.items()},
)
