"""The scenarios of the Relay-era test_dnnl.py beside convolutions and products, by name."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from byte_products import needs_byte_products

import kernelyard as ky
from kernelyard.errors import OptionError
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.testing import assert_declined, assert_offloaded, evaluate
from kernelyard.transform import ToMixedPrecision


def weights(*shape, seed=1):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def alone(name, **attrs):
    return lambda b, x: b.op(name, x, **attrs)


def taken_by(exe):
    """The operators by who runs them."""
    nodes = exe.report.nodes
    return {backend: [n.op for n in nodes if n.backend == backend] for backend in {n.backend for n in nodes}}


# --- single operators -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ["abs", "exp", "log", "sqrt", "nn.relu", "tanh", "sigmoid"])
def test_elementwise(op, offloading):
    offloading.taken("dnnl.elementwise", op, alone(op), (1, 8, 3, 3), positive=op in ("log", "sqrt"))


def test_clip(offloading):
    offloading.taken("dnnl.elementwise", "clip", alone("clip", min=-0.2, max=0.4), (1, 8, 3, 3))


def test_leaky_relu(offloading):
    offloading.taken("dnnl.elementwise", "nn.leaky_relu", alone("nn.leaky_relu", alpha=0.1), (1, 8, 3, 3))


def test_softmax(offloading):
    offloading.taken("dnnl.softmax", "nn.softmax", alone("nn.softmax", axis=1), (1, 1000))


def test_softmax_over_an_axis_that_is_not_the_last(offloading):
    offloading.declined("reference-implementation", "dnnl.softmax", alone("nn.softmax", axis=1), (1, 3, 4))


POOLS_2D = [
    (kind, size, stride, padding, is_counted)
    for size, stride, padding in itertools.product([2, 3], [1, 2], [(0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1)])
    for kind, is_counted in (("avg", False), ("avg", True), ("max", False))
]


@pytest.mark.parametrize(("kind", "size", "stride", "padding", "is_counted"), POOLS_2D)
def test_pool2d(kind, size, stride, padding, is_counted, offloading):
    """Also those that TVM leaves out: counted padding with strides or with more behind than before."""
    counted = {"count_include_pad": is_counted} if kind == "avg" else {}
    attrs = {"pool_size": (size, size), "strides": (stride, stride), "padding": padding, **counted}
    name = f"nn.{kind}_pool2d"
    offloading.taken("dnnl.pool", name, alone(name, **attrs), (1, 3, 32, 32))


def test_global_avg_pooling2d(offloading):
    offloading.taken("dnnl.reduce", "mean", alone("mean", axes=(2, 3), keepdims=True), (1, 3, 32, 32))


@pytest.mark.parametrize(
    ("kind", "window"),
    [("avg", {}), ("max", {}), ("max", {"padding": (0, 0, 0, 1, 1, 1)}), ("max", {"strides": (1, 1, 1)})],
    ids=["average", "maximum", "padded behind", "overlapping"],
)
def test_pool3d(kind, window, offloading):
    attrs = {"pool_size": (2, 2, 2), "strides": (2, 2, 2), **window}
    offloading.taken("dnnl.pool", f"nn.{kind}_pool3d", alone(f"nn.{kind}_pool3d", **attrs), (1, 3, 8, 32, 32))


# --- layer norm, as it is and spelled out -----------------------------------------------------------------------------
def test_layer_norm(offloading):
    gamma, beta = weights(64), weights(64, seed=2)
    norm = {"axes": (2,), "epsilon": 1e-5}
    offloading.taken(
        "dnnl.layer_norm", "nn.layer_norm", lambda b, x: b.op("nn.layer_norm", x, gamma, beta, **norm), (1, 49, 64)
    )


def spelled_layer_norm(b, x, centre, divide):
    mean = b.op("mean", x, axes=(2,), keepdims=True)
    difference = b.op("subtract", x, mean)
    squares = b.op("power", difference, 2.0) if centre else b.op("multiply", difference, difference)
    variance = b.op("add", b.op("mean", squares, axes=(2,), keepdims=True), 1e-6)
    if divide:
        y = b.op("divide", difference, b.op("sqrt", variance))
    else:
        y = b.op("multiply", difference, b.op("rsqrt", variance))
    return b.op("add", b.op("multiply", y, weights(64)), weights(64, seed=2))


@pytest.mark.parametrize("centre", [True, False], ids=["power", "product"])
@pytest.mark.parametrize("divide", [True, False], ids=["divide by sqrt", "multiply by rsqrt"])
def test_layer_norm_decomposed(centre, divide, offloading):
    """rewrite_layer_norm, both patterns; epsilon is what the model says."""
    exe = offloading.taken(
        "dnnl.layer_norm", "nn.layer_norm", lambda b, x: spelled_layer_norm(b, x, centre, divide), (1, 49, 64)
    )
    (node,) = [node for module in exe.modules for graph in map(module.graph, module.symbols()) for node in graph.nodes if node.kind == "kernel"]  # fmt: skip
    assert math.isclose(node.attrs["epsilon"], 1e-6, rel_tol=1e-3)


# --- whole programs ---------------------------------------------------------------------------------------------------
def test_dnnl_not_compatible(offloading):
    """Casts in the middle are not oneDNN's: they run elsewhere, and the two sides stay two regions."""

    def build(b, x):
        y = b.op("add", x, b.op("tanh", x))
        return b.op("nn.relu", b.op("astype", b.op("astype", y, dtype="int32"), dtype="float32"))

    module = offloading.module(build, (1, 32, 14, 14))
    exe = ky.compile(module, backends=["dnnl"])
    assert taken_by(exe)["dnnl"] == ["tanh", "add", "nn.relu"]
    assert [node.op for node in exe.report.nodes if node.backend not in ("dnnl", "view")] == ["astype", "astype"]
    assert len({region.function for region in exe.report.regions}) == 2
    offloading.right(module, exe)


def test_multiple_outputs(offloading):
    """A value that is returned and used again leaves one region of two results."""
    b = FunctionBuilder()
    x, y = b.input("x", (1, 3)), b.input("y", (1, 3))
    total = b.op("add", x, y)
    module = IRModule({"main": b.function(total, b.op("add", total, y))})
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", "dnnl.elementwise", count=2)
    assert len({region.function for region in exe.report.regions}) == 1
    feeds = offloading.feeds(module)
    for one, other in zip(exe(*feeds), (feeds[0] + feeds[1], feeds[0] + 2 * feeds[1]), strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-6)


def convolution_and_sum(between):
    """conv, bias, relu, something over all pixels, and the sum with an image."""

    def build(b, x, image):
        y = b.op("nn.conv2d", x, weights(32, 32, 3, 3), padding=(1,) * 4)
        return b.op("add", between(b, b.op("nn.relu", b.op("add", y, weights(32, 1, 1)))), image)

    return build


def test_prune_dnnl_subgraph(offloading):
    """A sum by itself is given back; the convolution stays."""
    build = convolution_and_sum(lambda b, y: b.op("floor", y))
    module = offloading.module(build, (1, 32, 56, 56), (1, 32, 56, 56))
    for prune, expected in ((False, ["nn.conv2d", "add", "nn.relu", "add"]), (True, ["nn.conv2d", "add", "nn.relu"])):
        exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"prune": prune}})
        assert taken_by(exe)["dnnl"] == expected
        offloading.right(module, exe)
    assert_declined(exe, "dnnl", "light", "dnnl.elementwise")
    with pytest.raises(OptionError, match="prune"):
        ky.compile(module, backends=["dnnl"], options={"dnnl": {"prune": "yes"}})


@pytest.mark.parametrize("prune", [False, True])
def test_nothing_is_pruned_from_a_region_with_a_convolution(prune, offloading):
    """TVM's program: oneDNN has the pool over all pixels too, so that all is one region."""
    build = convolution_and_sum(lambda b, y: b.op("mean", y, axes=(2, 3), keepdims=True))
    module = offloading.module(build, (1, 32, 56, 56), (1, 32, 56, 56))
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"prune": prune}})
    assert set(taken_by(exe)) == {"dnnl"}
    assert len({region.function for region in exe.report.regions}) == 1
    offloading.right(module, exe)


def shrinking_resnet_block(b, x):
    """The end of one stage of ResNet v1 and the start of the next, whose pointwise convolutions have the stride."""

    def conv(x, out, kernel, stride=1, seed=1):
        w = weights(out, x.tensor_type.shape[1], kernel, kernel, seed=seed) * 0.2
        y = b.op("nn.conv2d", x, w, padding=(kernel // 2,) * 4, strides=(stride, stride))
        return b.op("add", y, weights(1, out, 1, 1, seed=seed + 1))

    y = b.op("nn.relu", conv(x, 16, 1))
    y = b.op("nn.relu", conv(y, 16, 3))
    y = b.op("nn.relu", b.op("add", conv(y, 64, 1), x))
    left = b.op("nn.relu", conv(y, 32, 1, stride=2))
    left = conv(b.op("nn.relu", conv(left, 32, 3)), 128, 1)
    return b.op("nn.relu", b.op("add", left, conv(y, 128, 1, stride=2, seed=5)))


def test_resnetv1_rewrite(offloading):
    """Strides move up to the 3x3 convolution before the sum; the pixels that nobody read are not computed."""

    def build(b, x):
        return shrinking_resnet_block(b, b.op("nn.relu", b.op("nn.conv2d", x, weights(64, 3, 1, 1))))

    module = offloading.module(build, (1, 3, 14, 14))
    exe = ky.compile(module, backends=["dnnl"])
    assert set(taken_by(exe)) == {"dnnl"}, str(exe.report)
    (dnnl,) = (each for each in exe.modules if each.kind == "dnnl")
    kernels = [node for node in dnnl.graph(dnnl.symbols()[0]).nodes if node.kind == "kernel"]
    strides = [(node.attrs["strides"][0], node.outputs[0].shape[2]) for node in kernels if node.op == "conv"]
    assert strides == [(1, 14), (1, 14), (2, 7), (1, 7), (1, 7), (1, 7), (1, 7), (1, 7)]
    assert [node.op for node in kernels if node.op != "conv"] == ["slice"]
    offloading.right(module, exe)


def test_fuse_pad_avg_pool(offloading):
    def build(b, x):
        padded = b.op("pad", x, pads=(0, 0, 1, 1, 0, 0, 1, 1), mode="constant")
        return b.op("nn.avg_pool2d", padded, pool_size=(3, 3))

    exe = offloading.taken("dnnl.pool", "nn.avg_pool2d", build, (1, 768, 17, 17))
    (node,) = [n for n in exe.modules[0].graph("dnnl_0").nodes if n.kind == "kernel"]
    assert (node.attrs["algorithm"], node.attrs["padding_begin"]) == ("avg_include_padding", [1, 1])


# --- narrow numbers ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_precision(dtype, offloading):
    """bf16 of every scenario: products go to oneDNN where the processor has instructions for bfloat16; float16 is
    computed in float32 there; what is declined runs elsewhere. Each pattern: test_narrow.py."""

    def build(b, x):
        return b.op("nn.softmax", b.op("add", b.op("matmul", x, weights(32, 16)), weights(16)), axis=1)

    module = ToMixedPrecision(dtype)(offloading.module(build, (4, 32)))
    exe = ky.compile(module, backends=["dnnl"])
    if "matmul" in taken_by(exe).get("dnnl", ()):
        assert_offloaded(exe, "dnnl", "dnnl.matmul", count=1)
        assert_offloaded(exe, "dnnl", "dnnl.softmax", count=1)
    else:
        assert dtype == "bfloat16"
        assert_declined(exe, "dnnl", "reference-implementation", "dnnl.matmul")
    feeds = offloading.feeds(module)
    np.testing.assert_allclose(exe(*feeds).numpy(), evaluate(module, feeds)[0], rtol=3e-2, atol=3e-3)


class Quantized:
    """A product or a convolution between quantized numbers, in the vocabulary and in integers of NumPy.

    It multiplies real numbers, weights restored from constants: what frontends make of quantized operators.
    Scales whose quotients hit no halves, so that both round to the same side.
    """

    data, weight, result, residual, total = (0.2, 3), (0.1, 0), (0.3017, 30), (0.3, 15), (0.4013, 5)

    def __init__(self, op, weight, has_bias=True, has_sum=False, **attrs):
        rng = np.random.default_rng(0)
        self.op, self.attrs, self.has_sum = op, attrs, has_sum
        self.w = rng.integers(-20, 20, weight).astype(np.int8)
        channels = weight[0] if op == "nn.conv2d" else weight[1]
        spread = (1, channels, 1, 1) if op == "nn.conv2d" else (channels,)
        self.bias = rng.integers(-50, 50, spread).astype(np.int32) if has_bias else None

    def build(self, b, x, y=None):
        def restored(stored, parameters):
            scale, zero = parameters
            return b.op("dequantize", stored, np.float32(scale), np.int32(zero))

        def stored(real, parameters):
            scale, zero = parameters
            return b.op("quantize", real, np.float32(scale), np.int32(zero), dtype="uint8")

        result = b.op(self.op, restored(x, self.data), restored(self.w, self.weight), **self.attrs)
        if self.bias is not None:
            result = b.op("add", result, self.bias.astype(np.float32) * np.float32(self.data[0] * self.weight[0]))
        result = stored(result, self.result)
        if y is None:
            return result
        return stored(b.op("add", restored(result, self.result), restored(y, self.residual)), self.total)

    def integers(self, product, y):
        """The result in integers: the sum of integer products, and its scale at the end."""
        total = product.astype(np.int64) + (0 if self.bias is None else self.bias)
        real = total * (self.data[0] * self.weight[0])
        stored = np.clip(np.rint(real / self.result[0]) + self.result[1], 0, 255)
        if y is None:
            return stored
        real = (stored - self.result[1]) * self.result[0] + (y.astype(np.int64) - self.residual[1]) * self.residual[0]
        return np.clip(np.rint(real / self.total[0]) + self.total[1], 0, 255)


def check_quantized(offloading, quantized, shape, product, op):
    """All is oneDNN's, on integers; these differ by one at most."""
    stored = TensorType(shape, "uint8")
    inputs = [stored]
    if quantized.has_sum:
        probe = offloading.module(lambda b, x: quantized.build(b, x), stored)
        inputs.append(probe["main"].result_type)
    module = offloading.module(quantized.build, *inputs)
    exe = ky.compile(module, backends=["dnnl"])
    assert taken_by(exe).keys() == {"dnnl"}, str(exe.report)
    patterns = [region.pattern for region in exe.report.regions]
    sums = ["dnnl.quantized_binary"] if quantized.has_sum else []
    assert patterns == [f"dnnl.quantized_{op.removeprefix('nn.')}", *sums], patterns
    rng = np.random.default_rng(1)
    feeds = [rng.integers(0, 20, each.shape).astype(np.uint8) for each in inputs]
    centred = feeds[0].astype(np.int64) - quantized.data[1]
    expected = quantized.integers(product(centred, quantized.w.astype(np.int64)), feeds[1] if len(feeds) > 1 else None)
    found = exe(*feeds).numpy()
    assert found.dtype == np.uint8
    assert np.abs(found.astype(np.int64) - expected).max() <= 1
    assert np.unique(found).size > 10, "numbers that are all cut off would prove nothing"


@needs_byte_products
@pytest.mark.parametrize(
    ("data", "weight", "groups", "padding", "has_bias", "has_sum"),
    [
        ((1, 8, 5, 5), (16, 8, 3, 3), 1, 1, True, False),
        ((1, 8, 5, 5), (16, 4, 3, 3), 2, 0, True, False),
        ((1, 16, 5, 5), (16, 1, 3, 3), 16, 0, True, False),
        ((1, 8, 5, 5), (16, 8, 3, 3), 1, 1, False, False),
        ((1, 8, 5, 5), (16, 8, 3, 3), 1, 0, True, True),
        ((1, 8, 5, 5), (16, 8, 3, 3), 1, 0, False, True),
    ],
    ids=["Base", "Group", "DW", "NoBias", "WithSum", "WithSum_NoBias"],
)
@pytest.mark.usefixtures("small_weights_stay")
def test_qnn_conv2d(data, weight, groups, padding, has_bias, has_sum, offloading):
    quantized = Quantized("nn.conv2d", weight, has_bias, has_sum, groups=groups, padding=(padding,) * 4)

    def convolved(x, w):
        x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
        parts = zip(np.split(windows, groups, axis=1), np.split(w, groups), strict=True)
        return np.concatenate([np.einsum("nchwij,ocij->nohw", x, w) for x, w in parts], axis=1)

    check_quantized(offloading, quantized, data, convolved, "nn.conv2d")


@needs_byte_products
@pytest.mark.parametrize("has_sum", [False, True], ids=["AsymmetricInput", "AsymmetricInput_Sum"])
@pytest.mark.usefixtures("small_weights_stay")
def test_qnn_dense(has_sum, offloading):
    quantized = Quantized("matmul", (10, 16), has_sum=has_sum)
    check_quantized(offloading, quantized, (2, 10), np.matmul, "matmul")


SCENARIOS = {
    "test_dnnl: elementwise": test_elementwise,
    "test_dnnl: clip": test_clip,
    "test_dnnl: leaky_relu": test_leaky_relu,
    "test_dnnl: softmax": test_softmax,
    "test_dnnl: softmax, other axes": test_softmax_over_an_axis_that_is_not_the_last,
    "test_dnnl: pool2d": test_pool2d,
    "test_dnnl: global_avg_pooling2d": test_global_avg_pooling2d,
    "test_dnnl: pool3d": test_pool3d,
    "test_dnnl: layer_norm": test_layer_norm,
    "test_dnnl: layer_norm, decomposed": test_layer_norm_decomposed,
    "test_dnnl: dnnl_not_compatible": test_dnnl_not_compatible,
    "test_dnnl: multiple_outputs": test_multiple_outputs,
    "test_dnnl: prune_dnnl_subgraph": test_prune_dnnl_subgraph,
    "test_dnnl: prune_dnnl_subgraph, TVM's program": test_nothing_is_pruned_from_a_region_with_a_convolution,
    "test_dnnl: resnetv1_rewrite": test_resnetv1_rewrite,
    "test_dnnl: fuse_pad_avg_pool": test_fuse_pad_avg_pool,
    "test_dnnl: bf16 of each": test_mixed_precision,
    "test_dnnl: qnn_conv2d": test_qnn_conv2d,
    "test_dnnl: qnn_dense": test_qnn_dense,
}
