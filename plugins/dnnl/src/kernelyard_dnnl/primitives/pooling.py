"""pool and reduce. A mean or maximum over all spatial dims is a pooling, other reductions run over the innermost dims.

Node schema: pool: operand x (N, C, spatial...); attributes algorithm (max, avg_include_padding,
avg_exclude_padding), kernel, strides, padding_begin, padding_end, dilation (1 = dense). reduce: operand x; attributes
algorithm (mean, sum, max, min, mul), axes (empty = all), keepdims. Both take post-ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kernelyard.errors import CodegenError
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, dense
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import PostOps, Primitive, Vector, speed
from kernelyard_dnnl.primitives.post_ops import apply_steps, execute, steps_of
from kernelyard_dnnl.values import Node, Value

_AS_POOLING = {"mean": "avg_include_padding", "max": "max"}


def lower_pool(node: Node, graph: Lowering) -> Value:
    """Lowers a pool node.

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
    return _pool(node, graph, x, attrs["algorithm"], window, node.shape)


def _pool(node: Node, graph: Lowering, x: Value, algorithm: str, window: Sequence[Vector], shape: Shape) -> Value:
    x = graph.gapless(x)

    def primitive(source: MemoryDescriptor, post_ops: PostOps = ()) -> Primitive:
        result = dense(shape, node.dtype, source.order)
        forward, kind = enums.FORWARD_INFERENCE, enums.POOLING[algorithm]
        return graph.primitive("pooling_forward", forward, kind, source, result, *window, post_ops=post_ops)

    if x.descriptor.strides is None or not _is_fast(primitive, x.descriptor):
        x = graph.channels_last(x)
    source = x.descriptor
    result = dense(shape, node.dtype, source.order)
    return execute(graph, node, result, {SOURCE: x}, lambda post_ops: primitive(source, post_ops))


def _is_fast(primitive: Callable[[MemoryDescriptor], Primitive], source: MemoryDescriptor) -> bool:
    try:
        return speed(primitive(source).implementation) == 2
    except StatusError:
        return False


def lower_reduce(node: Node, graph: Lowering) -> Value:
    """Lowers a reduce node."""
    x, algorithm = node.operands["x"], node.attrs["algorithm"]
    rank = len(x.shape)
    axes = tuple(node.attrs["axes"]) or tuple(range(rank))
    if rank > 2 and axes == tuple(range(2, rank)) and algorithm in _AS_POOLING:
        zeros, ones = Vector((0,) * (rank - 2)), Vector((1,) * (rank - 2))
        window = (ones, Vector(x.shape[2:]), zeros, zeros, zeros)
        if not node.post_ops or len(node.shape) == rank:
            pooled = (*x.shape[:2], *(1,) * (rank - 2))
            return graph.reshaped(_pool(node, graph, x, _AS_POOLING[algorithm], window, pooled), node.shape)
    if all(x.shape[axis] == 1 for axis in axes):
        # Every reduction of one element is that element.
        result = graph.gapless(x) if not node.post_ops else graph.copied(x, dense(x.shape, node.dtype))
    else:
        result = _reduced_rows(graph, graph.strided(x), axes, algorithm, node.dtype)
    return apply_steps(graph, steps_of(node), graph.reshaped(result, node.shape))


def _reduced_rows(graph: Lowering, x: Value, axes: Shape, algorithm: str, dtype: str) -> Value:
    """The reduction as one over the rows of a matrix; the result has the rank of the operand."""
    order = x.descriptor.order
    kept = tuple(axis for axis in order if axis not in axes)
    rows = graph.plain(x.permuted((*kept, *(axis for axis in order if axis in axes))))
    count = math.prod(x.shape[axis] for axis in kept)
    matrix = graph.reshaped(rows, (count, math.prod(x.shape[axis] for axis in axes)))
    result = graph.new(dense((count, 1), dtype))
    kind = enums.REDUCTION[algorithm]
    primitive = graph.primitive("reduction", kind, matrix.descriptor, result.descriptor, 0.0, 0.0)
    graph.emit(primitive, {SOURCE: matrix, DESTINATION: result})
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    return result.seen_as(dense(shape, dtype, (*kept, *axes)))
