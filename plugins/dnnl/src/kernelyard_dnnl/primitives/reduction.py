"""reduce: a mean or sum over all spatial dims is a pooling, other reductions run over the innermost dims.

Node schema: operand x; attributes algorithm (mean, sum, max, min, prod), axes (empty = all), keepdims; post-ops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kernelyard_dnnl.layout import Shape, channels_last_order, dense
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import Vector
from kernelyard_dnnl.primitive_attributes import Eltwise
from kernelyard_dnnl.primitive_kind import PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.affine import are_decoded, lower_in_floats
from kernelyard_dnnl.primitives.pooling import Pooling, pool_integers
from kernelyard_dnnl.primitives.post_ops import Step, apply_steps, steps_of
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite

ALGORITHMS = {"mean": 196598, "sum": 196596, "max": 196594, "min": 196595, "prod": 196597}
TWO_STEP_POOLING = 1024
_AS_POOLING = {"mean": "avg_include_padding", "sum": "avg_include_padding"}


def check(reduction: Candidate) -> Refusal | None:
    """Sum, mean and product over the axes that are innermost in memory; global pooling."""
    rank, name = reduction.operands[0].tensor_type.rank, reduction.op_name
    if rank == 0:
        return Refusal("rank", "a reduction of a scalar")
    reduced = reduction.attrs["axes"] or tuple(range(rank))
    if rank > 2 and name in _AS_POOLING and tuple(reduced) == tuple(range(2, rank)):
        return None
    from kernelyard_dnnl.primitives.rows import check_rows  # inside: of the compile half

    refusal = check_rows(reduction, reduced)
    if refusal is None and name in ("max", "min"):  # masks of attention have rows of -inf alone
        return Refusal("numbers", f"oneDNN's {name} ignores NaN, and is finite for infinities alone")
    return refusal


def attributes(group: Composite) -> dict[str, Any]:
    """Return the algorithm, and the axes, counted from the front."""
    call = group.anchor
    rank = call.args[0].tensor_type.rank
    axes = [axis % rank for axis in call.attrs["axes"]] or list(range(rank))
    return {"algorithm": call.op_name, "axes": axes, "keepdims": call.attrs["keepdims"]}


def lower_reduce(node: Node, graph: Lowering) -> Value:
    """Lower a reduce node."""
    if are_decoded(node, "x"):
        result = _mean_of_integers(node, graph)
        return lower_in_floats(node, graph, lower_reduce) if result is None else result
    x, algorithm = graph.make_strided(node.operands["x"]), node.attrs["algorithm"]
    rank, steps = len(x.shape), steps_of(node)
    axes = tuple(node.attrs["axes"]) or tuple(range(rank))
    if all(x.shape[axis] == 1 for axis in axes):
        # Every reduction of one element is that element.
        result = x if not node.post_ops else graph.copy(x, x.descriptor)
    elif _is_global_pooling(x, axes, algorithm):
        result = pool_space(graph, x, _AS_POOLING[algorithm], node.dtype)
        if algorithm == "sum":
            steps = [Step("eltwise", Eltwise("linear", float(math.prod(x.shape[2:])))), *steps]
    else:
        result = _reduce_rows(graph, x, axes, algorithm, node.dtype)
    return apply_steps(graph, steps, graph.reshape(result, node.shape))


def _is_global_pooling(x: Value, axes: Shape, algorithm: str) -> bool:
    """Return True for a mean or sum over space with the channels innermost, where rows would need a
    transposition."""
    rank = len(x.shape)
    spatial = 2 < rank <= 5 and axes == tuple(range(2, rank)) and algorithm in _AS_POOLING
    return spatial and not x.descriptor.is_plain and x.descriptor.order == channels_last_order(rank)


def _mean_of_integers(node: Node, graph: Lowering) -> Value | None:
    """Return the mean over all of space, quantized again; None where oneDNN has no fast code for it."""
    x = node.operands["x"].shape
    spatial = len(x) - 2
    zeros, unit = Vector((0,) * spatial), Vector((1,) * spatial)
    shape = (*x[:2], *(1,) * spatial)
    pooling = Pooling(graph, _AS_POOLING["mean"], (unit, Vector(x[2:]), zeros, zeros, zeros), shape, node.dtype)
    result = pool_integers(node, graph, pooling)
    return None if result is None else graph.reshape(result, node.shape)


def pool_space(graph: Lowering, x: Value, algorithm: str, dtype: str) -> Value:
    """Pool over all of space. Large ones take two steps, rows and then their results: more parallel, and sums of many
    floats lose less."""
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


def _reduce_rows(graph: Lowering, x: Value, axes: Shape, algorithm: str, dtype: str) -> Value:
    """Return the reduction as one over the rows of a matrix; the result has the rank of the operand."""
    order = x.descriptor.order
    kept = tuple(axis for axis in order if axis not in axes)
    rows = graph.make_plain(x.permute((*kept, *(axis for axis in order if axis in axes))))
    count = math.prod(x.shape[axis] for axis in kept)
    matrix = graph.reshape(rows, (count, math.prod(x.shape[axis] for axis in axes)))
    result = graph.new(dense((count, 1), dtype))
    kind = ALGORITHMS[algorithm]
    primitive = graph.primitive("reduction", kind, matrix.descriptor, result.descriptor, 0.0, 0.0)
    graph.emit(primitive, {SOURCE: matrix, DESTINATION: result})
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    return result.view_as(dense(shape, dtype, (*kept, *axes)))


REDUCE = PrimitiveKind(
    node="reduce",
    summary="`mean`, `sum`, `prod` over the axes that are innermost in memory; global pooling",
    ops=tuple(ALGORITHMS),
    operands=("x",),
    attributes=attributes,
    check=check,
    lower=lower_reduce,
    on_integers=("mean",),
    pattern="reduce",
    enumerators={f"dnnl_reduction_{'mul' if name == 'prod' else name}": n for name, n in ALGORITHMS.items()},
)
