"""pool and reduce. A mean or maximum over all spatial dims is a pooling, other reductions run over the innermost dims.

Node schema: pool: operand x (N, C, spatial...); attributes algorithm (max, avg_include_padding,
avg_exclude_padding), kernel, strides, padding_begin, padding_end, dilation (1 = dense). reduce: operand x; attributes
algorithm (mean, sum, max, min, prod), axes (empty = all), keepdims. Both take post-ops.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from kernelyard.errors import CodegenError
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, channels_last_order, dense
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import PostOps, Primitive, Vector, speed
from kernelyard_dnnl.primitives.post_ops import Step, apply_steps, execute, steps_of
from kernelyard_dnnl.values import Node, Value

TWO_STEP_POOLING = 1024
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
    pooling = Pooling(graph, attrs["algorithm"], window, node.shape, node.dtype)
    x = graph.gapless(x)
    if x.descriptor.strides is None or not _is_fast(pooling, x.descriptor):
        x = graph.channels_last(x)
    source = x.descriptor
    node, after = _without_faulty_operands(node, source)
    result = execute(graph, node, pooling.result(source), {SOURCE: x}, lambda post: pooling.primitive(source, post))
    return apply_steps(graph, after, result)


def _without_faulty_operands(node: Node, source: MemoryDescriptor) -> tuple[Node, list[Step]]:
    """The node with the post-ops that are to be fused, and the others.

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
        """The layout of the result: that of the source."""
        return dense(self.shape, self.dtype, source.order)

    def primitive(self, source: MemoryDescriptor, post_ops: PostOps = ()) -> Primitive:
        """Raises: StatusError."""
        forward, kind = enums.FORWARD_INFERENCE, enums.POOLING[self.algorithm]
        arguments = (forward, kind, source, self.result(source), *self.window)
        return self.graph.primitive("pooling_forward", *arguments, post_ops=post_ops)


def _is_fast(pooling: Pooling, source: MemoryDescriptor) -> bool:
    try:
        return speed(pooling.primitive(source).implementation) == 2
    except StatusError:
        return False


def lower_reduce(node: Node, graph: Lowering) -> Value:
    """Lowers a reduce node."""
    x, algorithm = graph.strided(node.operands["x"]), node.attrs["algorithm"]
    rank = len(x.shape)
    axes = tuple(node.attrs["axes"]) or tuple(range(rank))
    if all(x.shape[axis] == 1 for axis in axes):
        # Every reduction of one element is that element.
        result = x if not node.post_ops else graph.copied(x, x.descriptor)
    elif _is_global_pooling(x, axes, algorithm):
        result = _pooled(graph, x, _AS_POOLING[algorithm], node.dtype)
    else:
        result = _reduced_rows(graph, x, axes, algorithm, node.dtype)
    return apply_steps(graph, steps_of(node), graph.reshaped(result, node.shape))


def _is_global_pooling(x: Value, axes: Shape, algorithm: str) -> bool:
    """True for a mean or maximum over space with the channels innermost, where rows would need a transposition."""
    rank = len(x.shape)
    spatial = 2 < rank <= 5 and axes == tuple(range(2, rank)) and algorithm in _AS_POOLING
    return spatial and not x.descriptor.is_plain and x.descriptor.order == channels_last_order(rank)


def _pooled(graph: Lowering, x: Value, algorithm: str, dtype: str) -> Value:
    """Pooling over all of space. Large ones take two steps, rows and then their results: more parallel, and sums of
    many floats lose less."""
    spatial = x.shape[2:]
    kernels = [spatial]
    if len(spatial) > 1 and math.prod(spatial) >= TWO_STEP_POOLING:
        ones = (1,) * (len(spatial) - 1)
        kernels = [(*ones, spatial[-1]), (*spatial[:-1], 1)]
    zeros, unit = Vector((0,) * len(spatial)), Vector((1,) * len(spatial))
    for kernel in kernels:
        sizes = zip(x.shape[2:], kernel, strict=True)
        shape = (*x.shape[:2], *(size - k + 1 for size, k in sizes))
        pooling = Pooling(graph, algorithm, (unit, Vector(kernel), zeros, zeros, zeros), shape, dtype)
        result = graph.new(pooling.result(x.descriptor))
        graph.emit(pooling.primitive(x.descriptor), {SOURCE: x, DESTINATION: result})
        x = result
    return x


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
