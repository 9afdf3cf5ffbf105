"""Each operator of Kernelyard in those of OpenVINO: a function of nodes and attributes, by name in `KERNELS`."""

import math
from functools import partial

import numpy as np
import openvino.opset15 as ops

KERNELS = {}
SAME_NAME = (
    "abs acos acosh add asin asinh atan atanh cos cosh divide equal erf exp floor greater greater_equal less "
    "less_equal log logical_and logical_not logical_or logical_xor maximum minimum multiply negative not_equal power "
    "sigmoid sign sin sinh sqrt subtract tan tanh"
)
KERNELS |= {name: getattr(ops, name) for name in SAME_NAME.split()}
KERNELS |= {
    "ceil": ops.ceiling,
    "fmod": ops.mod,
    "matmul": partial(ops.matmul, transpose_a=False, transpose_b=False),
    "mod": ops.floor_mod,
    "nn.elu": ops.elu,
    "nn.gelu": partial(ops.gelu, approximation_mode="erf"),
    "nn.gelu_tanh": partial(ops.gelu, approximation_mode="tanh"),
    "nn.group_norm": ops.group_normalization,
    "nn.log_softmax": ops.log_softmax,
    "nn.mish": ops.mish,
    "nn.relu": ops.relu,
    "nn.silu": ops.swish,
    "nn.softmax": ops.softmax,
    "nn.softplus": lambda x: ops.relu(ops.softplus(x)),  # far below 0, it is -1.9e-6 here and there
    "nn.softsign": ops.softsign,
    "round": partial(ops.round, mode="half_to_even"),
    "where": ops.select,
}


def kernel(*names):
    def register(function):
        KERNELS.update(dict.fromkeys(names, function))
        return function

    return register


def integers(values):
    return np.array(values, np.int64)


# --- elementwise ------------------------------------------------------------------------------------------------------
@kernel("astype")
def astype(x, dtype):
    return ops.convert(x, {"float32": "f32"}[dtype])


@kernel("clip")
def clip(x, **limits):
    least, most = limits["min"], limits["max"]
    return ops.clamp(x, -math.inf if least is None else least, math.inf if most is None else most)


@kernel("nn.celu")
def celu(x, alpha):
    return ops.multiply(ops.elu(ops.divide(x, np.float32(alpha)), 1.0), np.float32(alpha))


@kernel("nn.hard_sigmoid")
def hard_sigmoid(x, alpha, beta):
    # A hard_sigmoid takes its defaults in place of 0.
    return ops.clamp(ops.add(ops.multiply(x, np.float32(alpha)), np.float32(beta)), 0.0, 1.0)


@kernel("nn.hard_swish")
def hard_swish(x, alpha, beta):
    return ops.multiply(x, hard_sigmoid(x, alpha, beta))


@kernel("nn.leaky_relu")
def leaky_relu(x, alpha):
    return ops.prelu(x, np.array([alpha], np.float32))


@kernel("nn.prelu")
def prelu(x, slope):  # OpenVINO's own has one slope for each channel
    return ops.add(ops.relu(x), ops.multiply(slope, ops.minimum(x, np.float32(0))))


@kernel("nn.selu")
def selu(x, alpha, gamma):
    return ops.multiply(ops.elu(x, alpha), np.float32(gamma))  # a selu takes its defaults in place of 0


@kernel("nn.thresholded_relu")
def thresholded_relu(x, alpha):
    return ops.select(ops.greater(x, np.float32(alpha)), x, np.float32(0))


@kernel("reciprocal")
def reciprocal(x):
    return ops.divide(np.float32(1), x)


@kernel("rsqrt")
def rsqrt(x):
    return reciprocal(ops.sqrt(x))


@kernel("square")
def square(x):
    return ops.multiply(x, x)


# --- attention, convolutions, pooling ---------------------------------------------------------------------------------
@kernel("nn.attention", "nn.attention_bias")
def attention(queries, keys, values, bias=None, *, scale, causal):
    heads, size = queries.shape[2:]
    shared = np.arange(heads) * keys.shape[2] // heads  # the head of the keys for each head of the queries
    keys, values = (ops.gather(x, shared, np.int64(2)) if x.shape[2] < heads else x for x in (keys, values))
    if bias is not None:
        bias = ops.reshape(bias, [1] * (4 - len(bias.shape)) + list(bias.shape), special_zero=False)
    heads_first = [ops.transpose(x, [0, 2, 1, 3]) for x in (queries, keys, values)]
    scale = np.float32(1 / math.sqrt(size) if scale is None else scale)
    result = ops.scaled_dot_product_attention(*heads_first, bias, scale, causal == "top_left")
    return ops.transpose(result, [0, 2, 1, 3])


@kernel("nn.conv1d", "nn.conv2d", "nn.conv3d")
def convolution(x, weight, strides, padding, dilation, groups):
    function = ops.convolution if groups == 1 else ops.group_convolution
    return function(x, group_weight(weight, groups), strides, *halves(padding), dilation)


@kernel("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def transposed_convolution(x, weight, strides, padding, dilation, groups, output_padding):
    function = ops.convolution_backprop_data if groups == 1 else ops.group_convolution_backprop_data
    padded = partial(function, output_padding=output_padding)
    return padded(x, group_weight(weight, groups), strides, None, *halves(padding), dilation)


@kernel("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
def avg_pool(x, pool_size, strides, padding, dilation, ceil_mode, count_include_pad):
    return ops.avg_pool(x, strides, *halves(padding), pool_size, not count_include_pad, rounding(ceil_mode))


@kernel("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
def max_pool(x, pool_size, strides, padding, dilation, ceil_mode):
    return ops.max_pool(x, strides, dilation, *halves(padding), pool_size, rounding(ceil_mode))


def rounding(ceil_mode):
    return "ceil_torch" if ceil_mode else "floor"


def group_weight(weight, groups):
    first, *rest = weight.shape
    return weight if groups == 1 else ops.reshape(weight, [groups, first // groups, *rest], special_zero=False)


def halves(padding):
    return padding[: len(padding) // 2], padding[len(padding) // 2 :]


# --- norms and reductions ---------------------------------------------------------------------------------------------
@kernel("nn.batch_norm")
def batch_norm(x, gamma, beta, mean, variance, epsilon, axis):
    scale = ops.divide(gamma, ops.sqrt(ops.add(variance, np.float32(epsilon))))
    return scale_and_shift(ops.subtract(x, along(x, [axis], mean)), [axis], scale, beta)


@kernel("nn.instance_norm")
def instance_norm(x, gamma, beta, epsilon):
    return scale_and_shift(normalize(x, range(2, len(x.shape)), epsilon), [1], gamma, beta)


@kernel("nn.layer_norm")
def layer_norm(x, gamma, beta, axes, epsilon):
    return scale_and_shift(normalize(x, axes, epsilon), axes, gamma, beta)


@kernel("nn.lrn")
def lrn(x, size, alpha, beta, bias):
    return ops.lrn(x, integers([1]), alpha, beta, bias, size)


@kernel("nn.rms_norm")
def rms_norm(x, gamma, axes, epsilon):
    mean = ops.reduce_mean(square(x), integers(axes), True)
    return ops.multiply(ops.multiply(x, rsqrt(ops.add(mean, np.float32(epsilon)))), along(x, axes, gamma))


def normalize(x, axes, epsilon):
    return ops.mvn(x, ops.constant(integers(axes)), True, epsilon, "inside_sqrt")


def scale_and_shift(x, axes, gamma, beta):
    return ops.add(ops.multiply(x, along(x, axes, gamma)), along(x, axes, beta))


def along(x, axes, parameter):
    """Return a parameter of some axes of x with the rank of x, so that it broadcasts."""
    axes = [axis % len(x.shape) for axis in axes]
    return ops.reshape(parameter, [n if i in axes else 1 for i, n in enumerate(x.shape)], special_zero=False)


def reduction(function):
    return lambda x, axes, keepdims: function(x, integers(axes or range(len(x.shape))), keepdims)


KERNELS |= {name: reduction(getattr(ops, f"reduce_{name}")) for name in ("max", "mean", "min", "prod", "sum")}


# --- shapes -----------------------------------------------------------------------------------------------------------
@kernel("broadcast_to")
def broadcast_to(x, shape):
    return ops.broadcast(x, integers(shape))


@kernel("concat")
def concat(*xs, axis):
    return ops.concat(xs, axis)


@kernel("cumsum")
def cumsum(x, axis, exclusive, reverse):
    return ops.cum_sum(x, np.int64(axis), exclusive, reverse)


@kernel("image.resize")
def resize(x, sizes, scales, method, coordinate_transformation_mode, nearest_mode, cubic_coeff_a):
    return ops.interpolate(
        x,
        np.array(scales, np.float32) if scales else integers(sizes),
        {"nearest": "nearest", "linear": "linear_onnx", "cubic": "cubic"}[method],
        "scales" if scales else "sizes",
        coordinate_transformation_mode=coordinate_transformation_mode,
        nearest_mode=nearest_mode,
        cube_coeff=cubic_coeff_a,
        axes=integers(range(2, len(x.shape))),
    )


@kernel("pad")
def pad(x, pads, mode, value):
    begins, ends = halves(pads)
    added = [[max(amount, 0) for amount in side] for side in (begins, ends)]
    wide = ops.pad(x, *map(integers, added), mode, np.float32(value))
    if min(pads, default=0) >= 0:
        return wide
    # OpenVINO refuses to crop more than there is; what the other side adds is cropped then
    start = [max(-amount, 0) for amount in begins]
    stop = [max(size + min(amount, 0), 0) for size, amount in zip(wide.shape, ends, strict=True)]
    return ops.slice(wide, *map(integers, (start, stop, [1] * len(start))))


@kernel("permute_dims")
def permute_dims(x, axes):
    return ops.transpose(x, integers(axes))


@kernel("reshape")
def reshape(x, shape):
    return ops.reshape(x, integers(shape), special_zero=False)


@kernel("split")
def split(x, axis, sections):
    return ops.variadic_split(x, axis, integers(sections))


@kernel("strided_slice")
def strided_slice(x, axes, begin, end, strides):
    # A walk back may end at -1, or begin there and be empty, which is the last element for OpenVINO.
    before_first = -1 - max(x.shape)
    bounds = [
        (0, 0) if first < 0 else (first, before_first if stop < 0 else stop)
        for first, stop in zip(begin, end, strict=True)
    ]
    return ops.slice(x, *map(integers, (*zip(*bounds, strict=True), strides, axes)))


@kernel("take")
def take(data, indices, axis):
    return ops.gather(data, indices, np.int64(axis))


@kernel("tile")
def tile(x, repeats):
    return ops.tile(x, integers(repeats))
