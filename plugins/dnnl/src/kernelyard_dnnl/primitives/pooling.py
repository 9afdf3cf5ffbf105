"""pool: the largest element or the mean of each window.

Node schema: operand x (N, C, spatial...); attributes algorithm (max, avg_include_padding, avg_exclude_padding),
kernel, strides, padding_begin, padding_end, dilation (1 = dense); post-ops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelyard.errors import CodegenError
from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, channels_last_order, dense
from kernelyard_dnnl.lowering import SOURCE, Lowering
from kernelyard_dnnl.primitive import Primitive, Vector, speed
from kernelyard_dnnl.primitive_attributes import PostOps
from kernelyard_dnnl.primitive_kind import FLOAT, INTEGERS, NARROW, Follows, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.affine import RESULT, affine_of, are_decoded, lower_in_floats
from kernelyard_dnnl.primitives.post_ops import Step, apply_steps, execute, steps_of
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard.plugins.api import Call
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite

MAX_POOLS = ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
AVG_POOLS = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
ALGORITHMS = {"max": 511, "avg_include_padding": 767, "avg_exclude_padding": 1023}


def check(pool: Candidate) -> Refusal | None:
    """Check max, and average with and without the padding counted."""
    attrs, data = pool.attrs, pool.call.args[0].tensor_type
    if pool.op_name in AVG_POOLS and any(step != 1 for step in attrs["dilation"]):
        return Refusal("attribute", f"an average pool with dilation {attrs['dilation']}")
    if attrs["ceil_mode"] and attrs.get("count_include_pad") and not _has_exact_end(pool.call):
        return Refusal("attribute", "ceil_mode with count_include_pad, and windows that reach past the padding")
    return pool.check_known("the number of channels", data.shape[1])


def _has_exact_end(call: Call) -> bool:
    """Return True when the windows end exactly at the padded end, so that rounding does not matter."""
    attrs, data, out = call.attrs, call.args[0].tensor_type.shape, call.tensor_type.shape
    rank = len(attrs["pool_size"])
    for i, (size, stride, step) in enumerate(zip(attrs["pool_size"], attrs["strides"], attrs["dilation"], strict=True)):
        reach = (out[2 + i] - 1) * stride + (size - 1) * step + 1
        if reach != data[2 + i] + attrs["padding"][i] + attrs["padding"][rank + i]:
            return False
    return True


def attributes(group: Composite) -> dict[str, Any]:
    """Return the algorithm and the window."""
    from kernelyard_dnnl.primitives.window import padding_attributes  # inside: the runtime half has it in the node

    attrs = group.anchor.attrs
    counted = "avg_include_padding" if attrs.get("count_include_pad") else "avg_exclude_padding"
    return {
        "algorithm": "max" if group.anchor.op_name in MAX_POOLS else counted,
        "kernel": list(attrs["pool_size"]),
        "strides": list(attrs["strides"]),
        **padding_attributes(attrs["padding"]),
        "dilation": list(attrs["dilation"]),
    }


def lower_pool(node: Node, graph: Lowering) -> Value:
    """Lower a pool node.

    Raises: CodegenError where the result reaches past the padding (ceil mode) and padding would count.
    """
    attrs, x = node.attrs, node.operands["x"]
    kernel, strides, begin = (tuple(attrs[name]) for name in ("kernel", "strides", "padding_begin"))
    dilation = tuple(attrs.get("dilation", (1,) * len(kernel)))
    sizes = zip(x.shape[2:], node.shape[2:], kernel, strides, dilation, begin, strict=True)
    end = tuple((o - 1) * s + (k - 1) * d + 1 - i - before for i, o, k, s, d, before in sizes)
    overhang = any(found > given for found, given in zip(end, attrs["padding_end"], strict=True))
    if overhang and attrs["algorithm"] == "avg_include_padding":
        raise CodegenError(
            "oneDNN would count the part of the window past the padding", where=node.label, found=f"padding end {end}",
            expected=f"{tuple(attrs['padding_end'])}",
        )  # fmt: skip
    window = tuple(Vector(v) for v in (strides, kernel, tuple(d - 1 for d in dilation), begin, end))
    pooling = Pooling(graph, attrs["algorithm"], window, node.shape, node.dtype)
    if are_decoded(node, "x"):
        result = pool_integers(node, graph, pooling)
        return lower_in_floats(node, graph, lower_pool) if result is None else result
    x = graph.make_gapless(x)
    if x.descriptor.strides is None or not _is_fast(pooling, x.descriptor):
        x = graph.make_channels_last(x)
    source = x.descriptor
    node, after = _without_faulty_operands(node, source)
    result = execute(graph, node, pooling.result(source), {SOURCE: x}, lambda post: pooling.primitive(source, post))
    return apply_steps(graph, after, result)


def pool_integers(node: Node, graph: Lowering, pooling: Pooling) -> Value | None:
    """Return the pool of a quantized tensor, quantized again; None where oneDNN has no fast code for it."""
    from kernelyard_dnnl.primitives.requantization import Line, chain_of, execute_fused

    x, stored = graph.make_channels_last(node.operands["x"]), affine_of(node, "x")
    assert stored is not None
    scale, zero = stored.numbers
    chain = chain_of(steps_of(node), affine_of(node, RESULT), node.dtype, Line(scale, -scale * zero))
    layout = x.descriptor

    def create(post_ops: PostOps) -> Primitive:
        return pooling.primitive(layout, post_ops)

    return execute_fused(graph, chain.all_steps, {}, pooling.result(layout), {SOURCE: x}, create)


def _without_faulty_operands(node: Node, source: MemoryDescriptor) -> tuple[Node, list[Step]]:
    """Return the node with the post-ops that are to be fused, and the others.

    In row-major layout oneDNN 3.2 reads the operands of post-ops from wrong places.
    """
    steps = steps_of(node)
    if source.strides is None or source.order == channels_last_order(source.rank):
        return node, []
    count = next((i for i, step in enumerate(steps) if step.operand is not None), len(steps))
    return replace(node, attrs={**node.attrs, "post_ops": node.post_ops[:count]}), steps[count:]


class Pooling(NamedTuple):
    """A pooling whose layout is open. window: strides, kernel, dilation, padding at the begin and at the end."""

    graph: Lowering
    algorithm: str
    window: tuple[Vector, ...]
    shape: Shape
    dtype: str

    def result(self, source: MemoryDescriptor) -> MemoryDescriptor:
        """Return the layout of the result: that of the source."""
        return dense(self.shape, self.dtype, source.order)

    def primitive(self, source: MemoryDescriptor, post_ops: PostOps = ()) -> Primitive:
        """Raises: StatusError."""
        forward, kind = enums.FORWARD_INFERENCE, ALGORITHMS[self.algorithm]
        arguments = (forward, kind, source, self.result(source), *self.window)
        return self.graph.primitive("pooling_forward", *arguments, post_ops=post_ops)


def _is_fast(pooling: Pooling, source: MemoryDescriptor) -> bool:
    try:
        return speed(pooling.primitive(source).implementation) == 2
    except StatusError:
        return False


POOL = PrimitiveKind(
    node="pool",
    summary="max pooling, average pooling with and without the padding counted, sizes rounded up",
    ops=(*MAX_POOLS, *AVG_POOLS),
    operands=("x",),
    attributes=attributes,
    check=check,
    follows=Follows.POST_OPS,
    order=MemoryOrder.FIRST_OPERAND,
    lower=lower_pool,
    pattern="pool",
    dtypes=(FLOAT, NARROW, *INTEGERS),
    on_integers=AVG_POOLS,
    enumerators={f"dnnl_pooling_{name}": value for name, value in ALGORITHMS.items()},
)
