"""Who runs what where the user leaves it to us: regions of products are ours, those with convolutions a library's."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard import dtypes
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.placement.borders import regions_of
from kernelyard.placement.partition import partition_for
from kernelyard.testing.assertions import assert_offloaded
from kernelyard_native_cpu.costs import cost_of
from kernelyard_native_cpu.machine import host_machine, resolve_machine

pytestmark = pytest.mark.skipif(host_machine().vector_bits < 256, reason="measured with AVX2 and AVX-512 alone")
AVX2, AVX512 = (ky.Target("cpu", mcpu=level) for level in ("x86-64-v3", "x86-64-v4"))
RANDOM = np.random.default_rng(0)


def weight(*shape):
    return RANDOM.standard_normal(shape, dtype=np.float32) / 8


def mlp(dtype="float32"):
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 64), dtype)
    cast = weight(64, 32).astype(dtypes.to_numpy(dtype))
    return IRModule({"main": b.function(b.op("nn.relu", b.op("matmul", x, cast)))})


def cnn():
    b = FunctionBuilder()
    y = b.op("nn.conv2d", b.input("x", (1, 16, 8, 8)), weight(16, 16, 3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    return IRModule({"main": b.function(b.op("nn.relu", y))})


def runners(module, **how):
    return {node.backend for node in ky.explain(module, **how).nodes}


def test_products_are_generated_where_the_choice_is_ours():
    assert runners(mlp()) == {"native-cpu"}
    reasons = {each.code for each in ky.explain(mlp()).declined if each.backend == "dnnl"}
    assert reasons == {"generated"}


def test_a_library_that_is_named_or_required_gets_them():
    assert runners(mlp(), backends=["dnnl"]) == {"dnnl"}
    assert runners(mlp(), require={"dnnl": 1.0}) == {"dnnl"}


def test_convolutions_and_other_dtypes_stay_with_the_library():
    assert runners(cnn()) == runners(mlp("bfloat16")) == {"dnnl"}
    assert_offloaded(ky.compile(cnn()), "dnnl", pattern="dnnl.conv2d")


def classifier(rows):
    """A convolution, the mean of its places, and a layer of 1000 classes."""
    b = FunctionBuilder()
    y = b.op("nn.conv2d", b.input("x", (rows, 16, 8, 8)), weight(512, 16, 3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    y = b.op("mean", b.op("nn.relu", y), axes=(2, 3), keepdims=False)
    return IRModule({"main": b.function(b.op("add", b.op("matmul", y, weight(512, 1000)), weight(1000)))})


def test_few_rows_of_a_large_matrix_are_ours_even_behind_convolutions():
    for rows, expected in ((1, {"dnnl", "native-cpu"}), (64, {"dnnl"})):
        report = ky.explain(classifier(rows))
        assert {node.backend for node in report.nodes} == expected
    module, x = classifier(2), weight(2, 16, 8, 8)
    exe = ky.compile(module)
    assert_offloaded(exe, "dnnl", pattern="dnnl.conv2d")
    np.testing.assert_allclose(exe(x), ky.compile(module, backends=["dnnl"])(x), rtol=1e-4, atol=1e-4)


def test_sequences_are_ours_behind_the_convolution_that_makes_them():
    b = FunctionBuilder()
    y = b.op("nn.conv2d", b.input("x", (1, 32, 10, 10)), weight(48, 32, 3, 3))
    y = b.op("permute_dims", b.op("reshape", y, shape=(1, 48, 64)), axes=(0, 2, 1))
    q, k = (b.op("matmul", y, weight(48, 48)) for _ in range(2))
    weights = b.op("nn.softmax", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 2, 1))), axis=2)
    module = IRModule({"main": b.function(b.op("matmul", weights, y))})
    report = ky.explain(module)
    assert {node.backend for node in report.nodes if node.op == "nn.conv2d"} == {"dnnl"}
    assert {node.backend for node in report.nodes if node.op in ("matmul", "nn.softmax")} == {"native-cpu"}
    x = weight(1, 32, 10, 10)
    expected = ky.compile(module, backends=["dnnl"])(x)
    np.testing.assert_allclose(ky.compile(module)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("weights", "window", "runner"),
    [
        ((64, 64, 2, 2), {"strides": (2, 2)}, "dnnl"),
        ((64, 16, 3, 3), {"strides": (2, 2)}, "dnnl"),
        ((64, 8, 4, 4), {"strides": (2, 2)}, "native-cpu"),
        ((64, 1, 4, 4), {"strides": (2, 2), "groups": 64}, "native-cpu"),
    ],
)
def test_transposed_convolutions_of_few_filters_or_in_groups_are_ours(weights, window, runner):
    b = FunctionBuilder()
    y = b.op("nn.conv2d_transpose", b.input("x", (1, 64, 9, 9)), weight(*weights), **window)
    module = IRModule({"main": b.function(y)})
    assert runners(module) == {runner}
    assert runners(module, backends=["dnnl"]) == {"dnnl"}


@pytest.mark.parametrize(("channels", "places", "runner"), [(64, 1000, "native-cpu"), (256, 20, "dnnl")])
def test_transposed_convolutions_along_one_axis_are_ours_unless_reorders_are_little(channels, places, runner):
    b = FunctionBuilder()
    weights = weight(channels, channels // 2, 16)
    y = b.op("nn.conv1d_transpose", b.input("x", (1, channels, places)), weights, strides=(8,), padding=(4, 4))
    module, x = IRModule({"main": b.function(b.op("nn.relu", y))}), weight(1, channels, places)
    assert runners(module, target=AVX512) == {runner}
    assert runners(module, target=AVX2) == {"dnnl"}
    np.testing.assert_allclose(ky.compile(module)(x), ky.compile(module, backends=["dnnl"])(x), rtol=1e-4, atol=1e-5)


def convolution(channels, sizes, filters=None, groups=1, window=3, stride=1):
    rank = len(sizes)
    windows = window if isinstance(window, tuple) else (window,) * rank
    b = FunctionBuilder()
    weights = weight(filters or channels, channels // groups, *windows)
    y = b.op(
        f"nn.conv{rank}d",
        b.input("x", (1, channels, *sizes)),
        weights,
        padding=tuple(size // 2 for size in windows) * 2,
        strides=(stride,) * rank,
        groups=groups,
    )
    return IRModule({"main": b.function(b.op("nn.relu", y))})


OURS = {
    "along one axis": convolution(32, (20,)),
    "many filters": convolution(192, (20,)),
    "strides": convolution(64, (20,), stride=2),
    "strides over large filters": convolution(320, (20,), stride=2),
    "strides over large filters, hundreds of places": convolution(512, (900,), window=2, stride=2),
    "strides over a single channel": convolution(1, (500,), filters=64, window=60, stride=4),
    "an axis of open length": convolution(128, (symbol("n"),)),
    "an axis of open length, strides": convolution(64, (symbol("n"),), window=11, stride=2),
    "long sums in groups, strides": convolution(768, (20,), groups=2, stride=2),
    "long sums in groups of 24 channels": convolution(96, (20,), groups=4, window=63),
    "depthwise along one axis": convolution(32, (20,), groups=32),
    "depthwise along an axis of open length": convolution(32, (symbol("n"),), groups=32),
    "depthwise over an image one element wide": convolution(32, (20, 1), groups=32, window=(5, 1)),
    "depthwise over an image one element high": convolution(32, (1, symbol("n")), groups=32, window=(1, 5)),
    "depthwise along three axes": convolution(8, (4, 6, 5), groups=8),
    "an image in groups of 4 channels": convolution(32, (9, 8), groups=8),
    "an image, 2 filters": convolution(32, (9, 8), filters=2),
    "an image, 6 filters": convolution(32, (9, 8), filters=6),
    "an image, 8 filters, a large window over few channels": convolution(8, (9, 80), window=(3, 39)),
    "an image of 8 channels": convolution(8, (64, 64), filters=16),
    "an image, depthwise, 2 filters for each channel": convolution(32, (9, 8), filters=64, groups=32),
    "an image, depthwise, reordered at both borders": convolution(32, (9, 8), groups=32),
    "2 filters of one element, reordered": convolution(32, (9, 8), filters=2, window=1),
    "electrodes: a wide window over one channel": convolution(1, (9, 80), filters=8, window=(1, 32)),
}
THEIRS = {
    "strides over large filters, a thousand places": convolution(256, (4000,), window=8, stride=4),
    "an axis of open length, strides over large filters": convolution(320, (symbol("n"),), stride=2),
    "long sums in groups": convolution(768, (20,), groups=2),
    "an image": convolution(32, (9, 8)),
    "an image of one channel": convolution(1, (9, 80), filters=16, window=9),
    "an image, 8 filters, a large window over many channels": convolution(32, (9, 80), filters=8, window=7),
    "a large window over few channels": convolution(16, (9, 80), window=5),
    "an image in groups of 64 channels": convolution(128, (9, 8), groups=2),
    "three axes": convolution(16, (4, 6, 5)),
}


@pytest.mark.parametrize("name", OURS)
def test_convolutions_of_ours(name):
    assert runners(OURS[name], target=AVX512) == {"native-cpu"}
    assert runners(OURS[name], backends=["dnnl"]) == {"dnnl"}


@pytest.mark.parametrize("name", THEIRS)
def test_convolutions_of_libraries(name):
    assert runners(THEIRS[name], target=AVX512) == {"dnnl"}


# What differs with AVX2: the library's there.
THEIRS_WITH_AVX2 = {
    "strides over three channels": convolution(3, (112, 112), filters=32, stride=2),
    "an image in groups of 16 channels": convolution(64, (28, 28), groups=4),
    "many channels along one axis": convolution(128, (400,)),
}


@pytest.mark.parametrize("name", THEIRS_WITH_AVX2)
def test_convolutions_of_libraries_with_avx2(name):
    assert runners(THEIRS_WITH_AVX2[name], target=AVX2) == {"dnnl"}
    assert runners(THEIRS_WITH_AVX2[name], target=AVX512) == {"native-cpu"}


SAME_WITH_AVX2 = (
    *("depthwise along one axis", "depthwise along three axes", "strides over a single channel", "an image, 2 filters"),
    *("an image in groups of 4 channels", "electrodes: a wide window over one channel"),
)


@pytest.mark.parametrize("name", SAME_WITH_AVX2)
def test_convolutions_of_ours_with_avx2(name):
    assert runners(OURS[name], target=AVX2) == {"native-cpu"}


def test_products_of_sequences_are_ours_with_avx2():
    assert runners(mlp(), target=AVX2) == {"native-cpu"}


def test_few_filters_of_a_volume_are_ours_behind_convolutions_of_a_library():
    b, pads = FunctionBuilder(), (1,) * 6
    y = b.op("nn.relu", b.op("nn.conv3d", b.input("x", (1, 16, 12, 12, 12)), weight(32, 16, 3, 3, 3), padding=pads))
    module = IRModule({"main": b.function(b.op("nn.conv3d", y, weight(3, 32, 3, 3, 3), padding=pads))})
    assert [node.backend for node in ky.explain(module).nodes] == ["dnnl", "dnnl", "native-cpu"]
    x = weight(1, 16, 12, 12, 12)
    np.testing.assert_allclose(ky.compile(module)(x), ky.compile(module, backends=[])(x), rtol=1e-3, atol=1e-3)


def network(build):
    """Return a module that builds on an image of 32 channels, between two convolutions of a library."""
    b = FunctionBuilder()
    x = b.input("x", (1, 32, 24, 24))
    window = {"padding": (1, 1, 1, 1)}
    y = build(b, b.op("nn.relu", b.op("nn.conv2d", x, weight(32, 32, 3, 3), **window)))
    return IRModule({"main": b.function(b.op("nn.conv2d", y, weight(32, y.tensor_type.shape[1], 3, 3), **window))})


BETWEEN = {
    "depthwise": lambda b, x: b.op("nn.conv2d", x, weight(32, 1, 3, 3), padding=(1, 1, 1, 1), groups=32),
    "2 filters of one element": lambda b, x: b.op("nn.conv2d", x, weight(2, 32, 1, 1)),
    "8 filters": lambda b, x: b.op("nn.conv2d", x, weight(8, 32, 3, 3), padding=(1, 1, 1, 1)),
    "pooling": lambda b, x: b.op("nn.max_pool2d", x, pool_size=(2, 2), strides=(2, 2)),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_stands_between_convolutions_of_a_library_stays_in_their_layout(name):
    module, x = network(BETWEEN[name]), weight(1, 32, 24, 24)
    assert runners(module) == {"dnnl"}
    np.testing.assert_allclose(ky.compile(module)(x), ky.compile(module, backends=[])(x), rtol=1e-3, atol=1e-3)


def test_a_pooling_between_generated_kernels_is_generated():
    b = FunctionBuilder()
    y = b.op("nn.conv1d", b.input("x", (1, 32, 40)), weight(32, 32, 3))
    y = b.op("nn.max_pool1d", b.op("nn.relu", y), pool_size=(2,), strides=(2,))
    module = IRModule({"main": b.function(b.op("nn.conv1d", y, weight(32, 32, 3)))})
    assert runners(module, target=AVX512) == {"native-cpu"}
    x = weight(1, 32, 40)
    np.testing.assert_allclose(ky.compile(module)(x), ky.compile(module, backends=["dnnl"])(x), rtol=1e-4, atol=1e-5)


def pointwise(channels, activation):
    """Two 1 x 1 convolutions with a depthwise one between, each with the activation: a mobile network."""
    b = FunctionBuilder()
    y = b.input("x", (1, channels, 40, 40))
    for groups, window in ((1, 1), (channels, 3), (1, 1)):
        weights = weight(channels, channels // groups, window, window)
        y = b.op("nn.conv2d", y, weights, padding=(window // 2,) * 4, groups=groups)
        y = b.op(activation, y)
    return IRModule({"main": b.function(y)})


def test_activations_count_that_take_long_as_post_ops():
    assert runners(pointwise(24, "nn.silu")) == {"native-cpu"}
    assert runners(pointwise(192, "nn.relu")) == {"dnnl"}


def test_convolutions_between_group_norms_are_generated():
    b = FunctionBuilder()
    y = b.input("x", (1, 1, 16 * 24 * 24))
    for _ in range(2):
        y = b.op("nn.instance_norm", y, weight(1), weight(1))
        y = b.op("nn.conv2d", b.op("reshape", y, shape=(1, 16, 24, 24)), weight(16, 16, 1, 1))
        y = b.op("reshape", b.op("nn.relu", y), shape=(1, 1, 16 * 24 * 24))
    assert runners(IRModule({"main": b.function(y)})) == {"native-cpu", "view"}


def test_a_convolution_whose_channels_are_put_last_is_theirs():
    b = FunctionBuilder()
    y = b.op("nn.conv2d", b.input("x", (1, 3, 256, 256)), weight(32, 3, 4, 4), strides=(4, 4))
    y = b.op("permute_dims", y, axes=(0, 2, 3, 1))
    module = IRModule({"main": b.function(b.op("nn.layer_norm", y, weight(32), weight(32), axes=(3,)))})
    report = ky.explain(module)
    assert {node.backend for node in report.nodes if node.op != "nn.layer_norm"} == {"dnnl"}


@pytest.mark.parametrize(
    ("name", "with_avx512", "with_avx2"),
    [
        ("strides over three channels", 83.369, 158.451),
        ("an image in groups of 16 channels", 164.212, 229.376),
        ("many channels along one axis", 446.836, 624.152),
    ],
)
def test_each_length_of_vectors_has_its_costs(name, with_avx512, with_avx2):
    """Microseconds on one core, as they were measured."""
    placed = partition_for("dnnl", THEIRS_WITH_AVX2[name])
    (region,) = regions_of(placed["main"], placed, "dnnl").values()
    for level, expected in (("x86-64-v4", with_avx512), ("x86-64-v3", with_avx2)):
        cost = cost_of(region, resolve_machine(level))
        assert cost.is_sure
        assert cost.seconds == pytest.approx(expected * 1e-6, rel=1e-3)
    assert not cost_of(region, resolve_machine("x86-64-v2")).is_sure


def test_convolutions_agree():
    module, x = convolution(32, (20,)), weight(1, 32, 20)
    np.testing.assert_allclose(ky.compile(module)(x), ky.compile(module, backends=["dnnl"])(x), rtol=1e-4, atol=1e-5)


def test_both_ways_agree():
    module, feeds = mlp(), {"x": weight(5, 64)}
    ours, theirs = (ky.compile(module, backends=how).run(feeds) for how in ("auto", ["dnnl"]))
    for name, tensor in ours.items():
        np.testing.assert_allclose(tensor.numpy(), theirs[name].numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [(0,), (1,), (3,), (0, 1, 2, 3)])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_reductions_are_ours(op, axes):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op(op, b.input("x", (2, 3, 4, 5)), axes=axes))})
    assert runners(module) == {"native-cpu"}


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_sums_and_means_over_an_image_are_poolings(op):
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("nn.conv2d", b.input("x", (1, 32, 6, 6)), weight(16, 32, 3, 3)))
    module = IRModule({"main": b.function(b.op(op, y, axes=(2, 3)))})
    assert runners(module) == {"dnnl"}


def test_what_is_made_of_one_number_for_each_channel_stays_with_the_image():
    b = FunctionBuilder()
    y = b.op("nn.conv2d", b.input("x", (1, 64, 16, 16)), weight(64, 64, 3, 3))
    norm = b.op("sqrt", b.op("sum", b.op("square", y), axes=(2, 3), keepdims=True))
    mean = b.op("mean", norm, axes=(1,), keepdims=True)
    module = IRModule({"main": b.function(b.op("multiply", y, b.op("divide", norm, mean)))})
    assert runners(module) == {"dnnl"}
    x = weight(1, 64, 16, 16)
    np.testing.assert_allclose(ky.compile(module)(x), ky.compile(module, backends=[])(x), rtol=1e-4, atol=1e-5)


def quantized_layer(shape):
    """A product of quantized values, and its activation."""
    b = FunctionBuilder()
    data = b.op("dequantize", b.input("x", shape, "uint8"), np.float32(0.05), np.uint8(120))
    matrix = RANDOM.integers(-128, 128, (64, 48)).astype(np.int8)
    y = b.op("matmul", data, b.op("dequantize", matrix, np.float32(0.01), np.int8(0)))
    y = b.op("quantize", b.op("nn.gelu", y), np.float32(0.1), np.uint8(7), dtype="uint8")
    return IRModule({"main": b.function(y)})


# Where an instruction sums products of bytes, and with AVX2 where the library has no such products; else it was not
# measured.
INTEGERS_ARE_OURS = (512, "vpdpbusd"), (256, "pmaddwd")
IS_OURS = (host_machine().vector_bits, host_machine().dot_instruction) in INTEGERS_ARE_OURS
INTEGERS = {"native-cpu"} if IS_OURS else {"dnnl"}


def test_quantized_sequences_are_ours():
    module = quantized_layer((2, 5, 64))
    assert runners(module) == INTEGERS
    x = RANDOM.integers(0, 256, (2, 5, 64)).astype(np.uint8)
    ours, theirs = ky.compile(module)(x).numpy(), ky.compile(module, backends=["dnnl"])(x).numpy()
    assert np.abs(ours.astype(int) - theirs).max() <= 1
    assert (ours == theirs).mean() > 0.9


def test_other_quantized_products_stay_with_the_library():
    assert runners(quantized_layer((10, 64))) == {"dnnl"}
    assert runners(quantized_layer((2, 5, 64)), backends=["dnnl"]) == {"dnnl"}
