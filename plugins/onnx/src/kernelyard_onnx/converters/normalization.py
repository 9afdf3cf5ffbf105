"""Normalization, softmax and hardmax."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard import dims
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter

HALF = ("float16", "bfloat16")


@converter("BatchNormalization")
def batch_normalization_by_attribute(node: Node) -> Expr:
    return _normalize_for_inference(node) if node.attr("is_test", 0) else node.reject("it is in training mode")


@converter("BatchNormalization", since=14)
def batch_normalization_with_statistics(node: Node) -> Sequence[Expr]:
    """Normalize by the statistics of the batch (training mode), and return the updated running statistics."""
    if not node.attr("training_mode", 0):
        return [_normalize_for_inference(node)]
    x, momentum = node.input(0), float(node.attr("momentum", 0.9))
    axes = (0, *range(2, node.rank(x)))
    wide = node.cast(x, "float32") if node.dtype(x) in HALF else x
    mean, centred, variance = node.moments(wide, axes)
    scale, shift = (node.cast(node.along(node.input(i), 1, node.rank(x)), node.dtype(wide)) for i in (1, 2))
    unit = node.op("divide", centred, node.op("sqrt", node.op("add", variance, float(node.attr("epsilon", 1e-5)))))
    results = [node.cast(node.op("add", node.op("multiply", unit, scale), shift), node.dtype(x))]
    for index, found in ((3, mean), (4, variance)):
        before = node.input(index)
        now = node.cast(node.reshape(found, node.shape(before)), node.dtype(before))
        kept = node.op("multiply", before, momentum)
        results.append(node.op("add", kept, node.op("multiply", now, 1 - momentum)))
    return results


@converter("BatchNormalization", since=7)
def batch_normalization(node: Node) -> Expr:
    return _normalize_for_inference(node)


def _normalize_for_inference(node: Node) -> Expr:
    if node.attr("training_mode", 0) or any(node.has_output(index) for index in range(1, len(node.proto.output))):
        node.reject("it is in training mode")
    if node.attr("spatial", 1) != 1:
        node.reject("it has statistics per element (spatial = 0)")
    x = node.input(0)
    parameters = [node.cast(node.input(index), node.dtype(x)) for index in range(1, 5)]
    images = node.reshape(x, (*node.shape(x), 1)) if node.rank(x) == 1 else x  # a vector has one channel
    normal = node.op("nn.batch_norm", images, *parameters, epsilon=float(node.attr("epsilon", 1e-5)), axis=1)
    return node.reshape(normal, node.shape(x)) if node.rank(x) == 1 else normal


@converter("LayerNormalization")  # of opset 17; onnxruntime's optimizers wrote it before the standard had it
def layer_normalization(node: Node) -> Sequence[Expr]:
    x, dtype = node.input(0), node.dtype(node.input(0))
    epsilon = float(node.attr("epsilon", 1e-5))
    axes = tuple(range(node.axis(node.attr("axis", -1), node.rank(x)), node.rank(x)))
    wide = node.cast(x, "float32") if dtype in HALF else x
    scale, shift = (_over(node, wide, axes, index, default) for index, default in ((1, 1), (2, 0)))
    y = node.cast(node.op("nn.layer_norm", wide, scale, shift, axes=axes, epsilon=epsilon), dtype)
    if not (node.has_output(1) or node.has_output(2)):
        return [y]
    mean, _, variance = node.moments(wide, axes)
    return [y, mean, node.op("rsqrt", node.op("add", variance, epsilon))]


@converter("RMSNormalization", since=23)
def rms_normalization(node: Node) -> Expr:
    x, dtype = node.input(0), node.dtype(node.input(0))
    axes = tuple(range(node.axis(node.attr("axis", -1), node.rank(x)), node.rank(x)))
    wide = node.cast(x, "float32") if dtype in HALF else x
    epsilon = float(node.attr("epsilon", 1e-5))
    return node.cast(node.op("nn.rms_norm", wide, _over(node, wide, axes, 1, 1), axes=axes, epsilon=epsilon), dtype)


def _over(node: Node, x: Expr, axes: tuple[int, ...], index: int, default: int) -> Expr:
    """Return a scale or shift over the normalized axes; what the model leaves out or lets broadcast is filled in."""
    shape = tuple(node.shape(x)[axis] for axis in axes)
    given = node.optional(index)
    if given is None:
        return node.full(default, shape, node.dtype(x))
    value = node.cast(given, node.dtype(x))
    if node.rank(value) > len(shape):
        extra = node.rank(value) - len(shape)
        if any(size != 1 for size in node.shape(value)[:extra]):
            node.reject("its scale differs along axes that are not normalized")
        value = node.reshape(value, node.shape(value)[extra:])
    return node.broadcast_to(value, shape)


@converter("InstanceNormalization")
def instance_normalization(node: Node) -> Expr:
    x, scale, shift = node.require_inputs()
    return node.op("nn.instance_norm", x, scale, shift, epsilon=float(node.attr("epsilon", 1e-5)))


@converter("GroupNormalization", since=18)
def group_normalization_per_group(node: Node) -> Expr:
    """Opset 18 has one scale per group."""
    x, *parameters = node.require_inputs()
    groups, channels = node.require_attr("num_groups"), node.shape(node.input(0))[1]
    each = dims.floordiv(channels, groups)
    spread = [
        node.reshape(node.broadcast_to(node.reshape(value, (groups, 1)), (groups, each)), (channels,))
        for value in parameters
    ]
    return _group_norm(node, x, spread)


@converter("GroupNormalization", since=21)
def group_normalization(node: Node) -> Expr:
    x, *parameters = node.require_inputs()
    return _group_norm(node, x, parameters)


def _group_norm(node: Node, x: Expr, parameters: Sequence[Expr]) -> Expr:
    dtype = node.dtype(x)
    stash_half = dtype in HALF and node.attr("stash_type", 1) == 1
    wide = "float32" if stash_half else dtype
    operands = [node.cast(value, wide) for value in (x, *parameters)]
    epsilon, groups = float(node.attr("epsilon", 1e-5)), int(node.require_attr("num_groups"))
    return node.cast(node.op("nn.group_norm", *operands, num_groups=groups, epsilon=epsilon), dtype)


@converter("LRN")
def local_response_normalization(node: Node) -> Expr:
    return node.op(
        "nn.lrn",
        node.input(0),
        size=int(node.require_attr("size")),
        alpha=float(node.attr("alpha", 1e-4)),
        beta=float(node.attr("beta", 0.75)),
        bias=float(node.attr("bias", 1.0)),
    )


@converter("LpNormalization")
def lp_normalization(node: Node) -> Expr:
    x, p = node.input(0), node.attr("p", 2)
    axes = (node.axis(node.attr("axis", -1), node.rank(x)),)
    if p == 1:
        norm = node.op("sum", node.op("abs", x), axes=axes, keepdims=True)
    elif p == 2:
        norm = node.op("sqrt", node.op("sum", node.op("multiply", x, x), axes=axes, keepdims=True))
    else:
        node.reject(f"its p is {p}; 1 and 2 are supported")
    # A vector of zeros stays one.
    safe = node.op("where", node.op("equal", norm, 0), node.full(1, (), node.dtype(x)), norm)
    return node.op("divide", x, safe)


@converter("MeanVarianceNormalization")
def mean_variance_normalization(node: Node) -> Expr:
    x = node.input(0)
    _, centred, variance = node.moments(x, sorted(node.axes(node.attr("axes", (0, 2, 3)), node.rank(x))))
    return node.op("divide", centred, node.op("add", node.op("sqrt", variance), 1e-9))


# --- softmax, hardmax -------------------------------------------------------------------------------------------------
@converter("Softmax", "LogSoftmax", since=13)
def softmax(node: Node) -> Expr:
    x = node.input(0)
    return node.op(_softmax_name(node), x, axis=node.axis(node.attr("axis", -1), node.rank(x)))


@converter("Softmax", "LogSoftmax")
def softmax_of_matrix(node: Node) -> Expr:
    """Before opset 13 the tensor is seen as a matrix, split at `axis`, and softmax is taken over its rows."""
    x = node.input(0)
    axis = node.axis(node.attr("axis", 1), node.rank(x))
    if axis == node.rank(x) - 1:
        return node.op(_softmax_name(node), x, axis=axis)
    rows = node.op(_softmax_name(node), as_matrix(node, x, axis), axis=1)
    return node.reshape(rows, node.shape(x))


def _softmax_name(node: Node) -> str:
    return "nn.log_softmax" if node.proto.op_type == "LogSoftmax" else "nn.softmax"


def as_matrix(node: Node, x: Expr, axis: int) -> Expr:
    """Return a tensor as a matrix: sizes before `axis` are its rows, the rest its columns."""
    shape = node.shape(x)
    return node.reshape(x, (dims.product(shape[:axis]), dims.product(shape[axis:])))


@converter("Hardmax", since=13)
def hardmax(node: Node) -> Expr:
    x = node.input(0)
    return _hardmax(node, x, node.axis(node.attr("axis", -1), node.rank(x)))


@converter("Hardmax")
def hardmax_of_matrix(node: Node) -> Expr:
    x = node.input(0)
    matrix = as_matrix(node, x, node.axis(node.attr("axis", 1), node.rank(x)))
    return node.reshape(_hardmax(node, matrix, 1), node.shape(x))


def _hardmax(node: Node, x: Expr, axis: int) -> Expr:
    depth = node.shape(x)[axis]
    if depth == 0:  # nothing is largest of nothing
        return x
    winners = node.op("argmax", x, axis=axis, keepdims=True, select_last_index=False)
    places = node.op("arange", count=depth, dtype="int64")
    along = node.reshape(places, [depth if at == axis else 1 for at in range(node.rank(x))])
    return node.cast(node.op("equal", along, winners), node.dtype(x))
