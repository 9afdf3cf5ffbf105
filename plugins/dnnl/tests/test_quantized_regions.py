"""Quantized networks: integers from one primitive to the next, in one region and one layout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from byte_products import needs_byte_products

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.runtime.jit.c_compiler import COMPILERS
from kernelyard.testing import evaluate
from kernelyard_dnnl import processor
from kernelyard_dnnl.primitives import lookup

pytestmark = pytest.mark.usefixtures("small_weights_stay")

SCALE = np.float32(0.04)


def stored(*shape, dtype="uint8"):
    return TensorType(shape, dtype)


def decoded(b, x, scale=SCALE, zero=3):
    return b.op("dequantize", x, np.float32(scale), np.array(zero, x.type.dtype))


def encoded(b, x, scale=SCALE, zero=3, dtype="uint8"):
    return b.op("quantize", x, np.float32(scale), np.array(zero, dtype), dtype=dtype)


# --- on their own -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (1, 3, 6, 5)], ids=str)
def test_conversions_of_what_the_program_is_given(shape, dtype, offloading):
    """Between a tensor from outside and a primitive; of one element they are left to who reads them."""

    def to_integers(b, x):
        return encoded(b, x, dtype=dtype)

    def to_floats(b, x):
        return decoded(b, x)

    if not shape:
        offloading.declined("rank", "dnnl.quantize", to_integers, shape)
        offloading.declined("rank", "dnnl.dequantize", to_floats, stored(*shape, dtype=dtype))
        return
    offloading.taken("dnnl.quantize", "quantize", to_integers, shape)
    offloading.taken("dnnl.dequantize", "dequantize", to_floats, stored(*shape, dtype=dtype))


@needs_byte_products
@pytest.mark.parametrize(
    "image", [(2, 17, 8, 16), (1, 18, 8, 8), (1, 33, 16, 16), (1, 20, 8, 8), (1, 19, 4, 4, 8)], ids=str
)
@pytest.mark.parametrize("zero", [0, 136])
def test_images_of_odd_channels_keep_their_zero_point(image, zero):
    """oneDNN's reorder to channels-last forgets the zero point of the channels that 4 leave over."""
    channels, axes = image[1], len(image) - 2
    b = FunctionBuilder()
    x = b.input("x", image)
    weight = np.eye(channels, dtype=np.int8).reshape(channels, channels, *[1] * axes)
    identity = b.op("dequantize", weight, np.float32(1), np.int8(0))
    image_of = decoded(b, encoded(b, x, zero=zero), zero=zero)
    module = IRModule({"main": b.function(encoded(b, b.op(f"nn.conv{axes}d", image_of, identity), zero=zero))})
    exe = ky.compile(module, backends=["dnnl"])
    assert [region.pattern for region in exe.report.regions] == ["dnnl.quantize", f"dnnl.quantized_conv{axes}d"]
    feed = np.random.default_rng(0).uniform(-4, 4, image).astype(np.float32)
    codes, wanted = exe(feed).numpy().astype(np.int32), evaluate(module, [feed])[0].astype(np.int32)
    assert np.abs(codes - wanted).max() <= 1  # where a half is rounded after a product with the reciprocal


def test_halves_are_rounded_before_an_odd_zero_point_is_added(offloading):
    """oneDNN adds the zero point first: where halves are exact it takes even ones alone."""
    halves = np.arange(-20, 20, dtype=np.float32) / 4

    def build(zero):
        return lambda b, x: encoded(b, x, scale=0.5, zero=zero)

    offloading.taken("dnnl.quantize", "quantize", build(4), halves.shape)
    offloading.declined("numbers", "dnnl.quantize", build(3), halves.shape)
    for zero in (3, 4):
        module = offloading.module(build(zero), halves.shape)
        codes = ky.compile(module, backends=["dnnl"])(halves).numpy()
        np.testing.assert_array_equal(codes, evaluate(module, [halves])[0])


@pytest.mark.parametrize("zero", [127, 128])
def test_images_around_zero_are_divided_by_their_scale(offloading, zero):
    """All of them lie halfway between codes of 2 / 255, which a product with the reciprocal moves to either side."""
    image = ((np.arange(256, dtype=np.float32) - 127.5) / 127.5).reshape(1, 1, 16, 16)

    def build(b, x):
        return encoded(b, x, scale=2 / 255, zero=zero)

    offloading.taken("dnnl.quantize", "quantize", lambda b, x: encoded(b, x, scale=0.01, zero=zero), image.shape)
    offloading.declined("numbers", "dnnl.quantize", build, image.shape)
    module = offloading.module(build, image.shape)
    np.testing.assert_array_equal(ky.compile(module)(image).numpy(), evaluate(module, [image])[0])


def test_conversions_beside_generated_kernels_are_theirs(offloading):
    def build(b, x):
        return encoded(b, b.op("floor", x))

    offloading.declined("neighbours", "dnnl.quantize", build, (4, 5))


def test_what_a_generated_kernel_quantizes_is_dequantized_there_in_another_shape(offloading):
    """All steps of a sequence as rows of a product of integers, as in a recurrent layer of dynamic quantization."""
    weight = np.random.default_rng(0).integers(-127, 128, (512, 512)).astype(np.int8)

    def build(b, x):
        scale, zero = b.op("divide", b.op("max", b.op("abs", x)), np.float32(127)), np.uint8(128)
        codes = b.op("reshape", b.op("quantize", x, scale, zero, dtype="uint8"), shape=(30, 512))
        matrix = b.op("dequantize", weight, np.full(512, 0.01, np.float32), np.zeros(512, np.int8), axis=1)
        return b.op("matmul", b.op("dequantize", codes, scale, zero), matrix)

    module = offloading.module(build, (10, 3, 512))
    report = ky.explain(module)
    assert {node.backend for node in report.nodes if node.op in ("dequantize", "matmul")} == {"native-cpu"}
    assert ("dnnl.dequantize", "neighbours") in {(each.pattern, each.code) for each in report.declined}
    offloading.right(module, ky.compile(module))


@pytest.mark.parametrize("backends", ["auto", ["dnnl"]])
@pytest.mark.parametrize("size", [64, 512])
def test_data_is_dequantized_where_it_is_multiplied(size, backends, offloading):
    """A product that decodes large weights is one of integers, unless another kernel has decoded the data; small
    weights are folded, for a library."""
    weight = np.random.default_rng(0).integers(-127, 128, (size, size)).astype(np.int8)

    def build(b, x):
        parameters = np.float32(0.25), np.uint8(3)
        matrix = b.op("dequantize", weight, np.full(size, 0.01, np.float32), np.zeros(size, np.int8), axis=1)
        codes = b.op("quantize", x, *parameters, dtype="uint8")
        return b.op("nn.relu", b.op("matmul", b.op("dequantize", codes, *parameters), matrix))

    module = offloading.module(build, (30, size))
    report = ky.explain(module, backends=backends)
    assert len({node.backend for node in report.nodes if node.op in ("dequantize", "matmul")}) == 1
    offloading.right(module, ky.compile(module, backends=backends))


@pytest.mark.parametrize("zero", [3, None])
def test_what_a_generated_kernel_quantizes_it_dequantizes(zero, offloading):
    """One kernel rounds floats to codes and back; zero: None for a scale that is computed, as in dynamic quantization."""
    weight = np.random.default_rng(0).normal(size=(8, 4, 3, 3)).astype(np.float32)

    def build(b, x):
        if zero is None:
            largest = b.op("max", b.op("abs", x))
            parameters = b.op("divide", largest, np.float32(127)), np.uint8(128)
        else:
            parameters = np.float32(0.25), np.uint8(zero)  # exact halves beside an odd zero point
        codes = b.op("quantize", b.op("floor", x), *parameters, dtype="uint8")
        return b.op("nn.conv2d", b.op("dequantize", codes, *parameters), weight)

    module = offloading.module(build, (1, 4, 10, 10))
    exe = ky.compile(module, backends=["dnnl"])
    declined = {each.pattern: each.code for each in exe.report.declined}
    assert declined["dnnl.dequantize"] == "neighbours"
    assert [region.pattern for region in exe.report.regions if "conv2d" in region.pattern]
    kernels = [step.symbol for step in exe.main.steps if "dequantize" in step.symbol]
    assert len(kernels) == 1
    assert "_quantize_dequantize" in kernels[0]
    offloading.right(module, exe)


@pytest.mark.parametrize("activation", ["sigmoid", "exp", "nn.hard_swish"])
def test_an_activation_in_place_of_what_was_dequantized_is_read_by_the_next(activation, offloading):
    """The product asks for another layout: it must not get that of what the activation was computed from."""
    weight = np.random.default_rng(0).normal(size=(4, 4, 4, 2)).astype(np.float32)
    module = offloading.module(
        lambda b, x: b.op("nn.conv2d", b.op(activation, decoded(b, x)), weight), stored(1, 4, 6, 6)
    )
    exe = ky.compile(module, backends=["dnnl"])
    patterns = [region.pattern for region in exe.report.regions]
    assert patterns == ["dnnl.dequantize", "dnnl.elementwise", "dnnl.conv2d"]
    offloading.right(module, exe)


@needs_byte_products
def test_one_zero_point_may_be_stated_for_each_channel_of_the_weights(offloading):
    random = np.random.default_rng(0)
    zeros = np.full(16, -3, np.int8)

    def build(b, x, w):
        scales = random.uniform(0.01, 0.02, 16).astype(np.float32)
        return b.op("matmul", decoded(b, x), b.op("dequantize", w, scales, zeros, axis=1))

    offloading.taken(
        "dnnl.quantized_matmul", "dequantize dequantize matmul", build, stored(5, 7), stored(7, 16, dtype="int8")
    )


def test_conversions_to_16_bits_are_declined(offloading):
    def build(b, x):
        return b.op("quantize", x, SCALE, np.int16(3), dtype="int16")

    offloading.declined("dtype", "dnnl.quantize", build, (4, 5))


# --- arithmetic -------------------------------------------------------------------------------------------------------
# label -> (operator, both shapes, both scales, both zero points)
PAIRS = {
    "sum": ("add", [(1, 8, 5, 5)] * 2, (0.021, 0.033), (3, 200)),
    "sum of a channel's numbers": ("add", [(1, 8, 5, 5), (8, 1, 1)], (0.021, 0.033), (3, 20)),
    "difference": ("subtract", [(4, 30)] * 2, (0.021, 0.033), (3, 20)),
    "difference, broadcast first": ("subtract", [(8, 1, 1), (1, 8, 5, 5)], (0.013, 0.021), (5, 9)),
    "product": ("multiply", [(1, 8, 5, 5), (1, 8, 1, 1)], (0.0173, 0.0041), (0, 0)),
    "product, shifted": ("multiply", [(1, 8, 5, 5), (1, 8, 1, 1)], (0.0173, 0.0041), (3, 0)),
    "product, broadcast first": ("multiply", [(1, 8, 1, 1), (1, 8, 5, 5)], (0.0041, 0.0173), (0, 3)),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("dtypes", [("uint8", "uint8", "uint8"), ("uint8", "int8", "int8"), ("int8", "int8", "uint8")])
@pytest.mark.parametrize("activation", [None, "nn.relu"])
def test_arithmetic(pair, dtypes, activation, offloading):
    op, shapes, scales, zeros = PAIRS[pair]
    zeros = [min(zero, 100) for zero in zeros]

    def build(b, x, y):
        both = [decoded(b, each, scale, zero) for each, scale, zero in zip((x, y), scales, zeros, strict=True)]
        total = b.op(op, *both)
        return encoded(b, total if activation is None else b.op(activation, total), 0.0512, 6, dtypes[2])

    types = [stored(*shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes[:2], strict=True)]
    ops = f"dequantize dequantize {op}{'' if activation is None else f' {activation}'} quantize"
    offloading.taken("dnnl.quantized_binary", ops, build, *types)


@pytest.mark.parametrize("shape", [(2, 8, 5, 5), (3, 64), (1, 7)], ids=str)
@pytest.mark.parametrize("activation", ["nn.hard_swish", "sigmoid", "nn.relu", "tanh"])
def test_activations_are_tables(activation, shape, offloading):
    def build(b, x):
        return encoded(b, b.op(activation, decoded(b, x, 0.0213, 99)), 0.0117, 5, "int8")

    offloading.taken("dnnl.lookup", "lookup", build, stored(*shape))


@pytest.mark.parametrize("has_vbmi", [False, True])
def test_tables_without_and_with_their_instruction(has_vbmi, offloading, monkeypatch):
    if has_vbmi and not processor.has_byte_permutations():
        pytest.skip("this processor has no AVX-512 VBMI")
    monkeypatch.setattr(lookup, "has_byte_permutations", lambda: has_vbmi)

    def build(b, x):
        return encoded(b, b.op("tanh", decoded(b, x, 0.0213, 99)), 0.0078, 128)

    exe = offloading.taken("dnnl.lookup", "lookup", build, stored(3, 171))
    assert [name for _, name in offloading.implementations(exe)] == ["table:vbmi" if has_vbmi else "table"]


def test_activations_in_c_are_primitives(offloading):
    module = offloading.module(
        lambda b, x: encoded(b, b.op("tanh", decoded(b, x, 0.0213, 99)), 0.0117, 5), stored(4, 8)
    )
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": "c"}})
    assert [region.pattern for region in exe.report.regions] == ["dnnl.quantized_eltwise"]


def test_parts_of_a_split_are_views(offloading):
    def build(b, x):
        whole = convolved(b, encoded(b, x, 0.02, 128), 32, 3, scale=0.02, zero=128)
        parts = b.op("split", decoded(b, whole), axis=1, sections=(16, 16))
        y = convolved(b, encoded(b, b.get(parts, 1)), 16, 3)
        return decoded(b, encoded(b, b.op("add", decoded(b, y), b.get(parts, 0))))

    module = offloading.module(build, (1, 8, 12, 12))
    exe = ky.compile(module, backends=["dnnl"])
    assert "dnnl.slice" in [region.pattern for region in exe.report.regions]
    offloading.right(module, exe)


def test_what_is_shifted_on_both_sides_is_multiplied_in_floats(offloading):
    def build(b, x, y):
        return encoded(b, b.op("multiply", decoded(b, x, zero=3), decoded(b, y, zero=4)))

    offloading.declined("attribute", "dnnl.quantized_binary", build, stored(4, 30), stored(4, 30))


def test_sums_in_floats_are_left_to_floats(offloading):
    def build(b, x, y):
        return b.op("add", decoded(b, x), decoded(b, y))

    offloading.declined("slow", "dnnl.quantized_binary", build, stored(4, 30), stored(4, 30))


# --- pools ------------------------------------------------------------------------------------------------------------
WINDOW = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}


def is_integer_code(offloading, exe, node):
    return any("int" in name for label, name in offloading.implementations(exe) if label.startswith(f"{node} "))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_the_largest_of_what_is_stored(dtype, offloading):
    image = stored(1, 8, 9, 9, dtype=dtype)
    exe = offloading.taken("dnnl.pool", "nn.max_pool2d", lambda b, x: b.op("nn.max_pool2d", x, **WINDOW), image)
    assert is_integer_code(offloading, exe, "pool")


@pytest.mark.parametrize("kind", ["pool", "pool, padding counted", "reduce", "reduce, large"])
@pytest.mark.parametrize(("dtype", "scale", "zero"), [("uint8", 0.0293, 7), ("int8", 0.0411, -5)])
def test_means(kind, dtype, scale, zero, offloading):
    counted = {"count_include_pad": "counted" in kind}

    def build(b, x):
        y = decoded(b, x, 0.0413, 0 if "counted" in kind else 3)
        if "pool" in kind:
            return encoded(b, b.op("nn.avg_pool2d", y, **WINDOW, **counted), scale, zero, dtype)
        return encoded(b, b.op("mean", y, axes=(2, 3), keepdims=True), scale, zero, dtype)

    node, op = ("pool", "nn.avg_pool2d") if "pool" in kind else ("reduce", "mean")
    size = 40 if "large" in kind else 9
    pattern = {"pool": "dnnl.quantized_pool", "reduce": "dnnl.quantized_reduce"}[node]
    exe = offloading.taken(pattern, f"dequantize {op} quantize", build, stored(2, 8, size, size, dtype=dtype))
    assert is_integer_code(offloading, exe, node)


@pytest.mark.parametrize("kind", ["pool", "reduce"])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 6), ("uint8", 7), ("int8", -5)])
@pytest.mark.parametrize("times", [1, 2])
def test_means_between_two_codes_go_to_the_one_that_is_even_without_the_zero_point(
    kind, dtype, zero, times, offloading
):
    """A fourth of the means of four codes lies there: ONNX adds the zero point after it has rounded."""

    def build(b, x):
        y, window = decoded(b, x, 0.04, zero), {"pool_size": (2, 2), "strides": (2, 2)}
        mean = b.op("nn.avg_pool2d", y, **window) if kind == "pool" else b.op("mean", y, axes=(2, 3), keepdims=True)
        return encoded(b, mean, np.float32(0.04) / times, zero, dtype)

    exe = ky.compile(offloading.module(build, stored(2, 64, 2, 2, dtype=dtype)), backends=["dnnl"])
    assert [region.pattern for region in exe.report.regions] == [f"dnnl.quantized_{kind}"]
    x = np.random.default_rng(0).integers(20, 80, (2, 64, 2, 2)).astype(dtype)
    sums = (x.astype(np.int64) - zero).sum((2, 3), keepdims=True) * times
    limits = np.iinfo(dtype)
    np.testing.assert_array_equal(exe(x).numpy(), np.clip(np.rint(sums / 4) + zero, limits.min, limits.max))


def test_padding_that_counts_is_not_the_integer_0(offloading):
    def build(b, x):
        return encoded(b, b.op("nn.avg_pool2d", decoded(b, x), **WINDOW, count_include_pad=True))

    offloading.declined("numbers", "dnnl.quantized_pool", build, stored(1, 8, 9, 9))


def test_means_over_channels_are_taken_in_floats(offloading):
    def build(b, x):
        return encoded(b, b.op("mean", decoded(b, x), axes=(1,), keepdims=True), 0.0293)

    offloading.declined("attribute", "dnnl.quantized_reduce", build, stored(1, 8, 9, 9))


# --- networks ---------------------------------------------------------------------------------------------------------
def convolved(b, x, filters, size, stride=1, groups=1, scale=SCALE, zero=3, activation="nn.relu"):
    channels = x.type.shape[1]
    rng = np.random.default_rng(channels + filters + size)
    w = rng.integers(-127, 128, (filters, channels // groups, size, size)).astype(np.int8)
    scales = rng.uniform(0.2, 0.4, filters) / np.sqrt(w[0].size) / 127
    real = b.op("dequantize", w, scales.astype(np.float32), np.zeros(filters, np.int8), axis=0)
    attrs = {"strides": (stride,) * 2, "padding": (size // 2,) * 4, "groups": groups}
    y = b.op("nn.conv2d", decoded(b, x, scale, zero), real, **attrs)
    y = b.op("add", y, rng.standard_normal((1, filters, 1, 1)).astype(np.float32))
    return encoded(b, y if activation is None else b.op(activation, y))


def classified(b, x, scale, zero):
    x = encoded(b, b.op("mean", decoded(b, x, scale, zero), axes=(2, 3), keepdims=True), 0.01, 0)
    x = b.op("reshape", x, shape=(1, x.type.shape[1]))
    w = np.random.default_rng(0).integers(-127, 128, (10, x.type.shape[1])).astype(np.int8)
    real = b.op("permute_dims", b.op("dequantize", w, np.float32(0.01), np.int8(0)), axes=(1, 0))
    return decoded(b, encoded(b, b.op("matmul", decoded(b, x, 0.01, 0), real), 0.05, 100), 0.05, 100)


def bottlenecks(b, x):
    """As in ResNet: two blocks, whose tensors are read twice."""
    x = convolved(b, encoded(b, x, 0.02, 128), 64, 7, 2, scale=0.02, zero=128)
    x = b.op("nn.max_pool2d", x, **WINDOW)
    scale, zero = SCALE, 3
    for filters, stride in ((64, 1), (128, 2)):
        y = convolved(b, x, 32, 1, scale=scale, zero=zero)
        y = convolved(b, convolved(b, y, 32, 3, stride), filters, 1, activation=None)
        if stride > 1:
            x = convolved(b, x, filters, 1, stride, scale=scale, zero=zero, activation=None)
            scale, zero = SCALE, 3
        total = b.op("add", decoded(b, y), decoded(b, x, scale, zero))
        x, scale, zero = encoded(b, b.op("nn.relu", total), 0.03, 0), 0.03, 0
    return classified(b, x, scale, zero)


def inverted_residuals(b, x):
    """As in MobileNetV3: depthwise convolutions, channels weighed by their means, and a concatenation."""
    x = convolved(b, encoded(b, x, 0.02, 128), 16, 3, 2, scale=0.02, zero=128)
    y = convolved(b, convolved(b, x, 64, 1, activation="nn.hard_swish"), 64, 3, groups=64)
    mean = encoded(b, b.op("mean", decoded(b, y), axes=(2, 3), keepdims=True))
    gate = convolved(b, convolved(b, mean, 16, 1), 64, 1, activation=None)
    gate = encoded(b, b.op("nn.hard_sigmoid", decoded(b, gate), alpha=1 / 6, beta=0.5), 0.004, 0)
    y = encoded(b, b.op("multiply", decoded(b, y), decoded(b, gate, 0.004, 0)))
    y = convolved(b, y, 16, 1, activation=None)
    x = encoded(b, b.op("add", decoded(b, x), decoded(b, y)))
    return classified(b, b.op("concat", x, y, axis=1), SCALE, 3)


NETWORKS = {"bottlenecks": bottlenecks, "inverted residuals": inverted_residuals}


@needs_byte_products
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_are_one_region_in_one_layout(network, offloading):
    """All that is reordered is the image, when it is quantized, and the scores, when they are dequantized; joining copies
    its operands in any case.
    """
    module = offloading.module(NETWORKS[network], (1, 3, 64, 64))
    exe = ky.compile(module, backends=["dnnl"])
    assert {node.backend for node in exe.report.nodes} <= {"dnnl", "view"}, str(exe.report)
    ran = offloading.implementations(exe)
    reorders = [label for label, _ in ran if label.startswith("reorder") and "concat" not in label]
    assert len(reorders) == 2, ran
    assert not [name for label, name in ran if label.startswith("conv") and not ("vnni" in name or "int8" in name)]
    offloading.right(module, exe)


@needs_byte_products
def test_tensors_of_many_readers_are_read_as_they_are_stored(offloading):
    """A dequantize that is shared belongs to each of the groups."""

    def build(b, x):
        real = decoded(b, convolved(b, x, 16, 1))
        w = b.op("dequantize", np.ones((16, 16, 1, 1), np.int8), np.float32(0.02), np.int8(0))
        y = encoded(b, b.op("nn.conv2d", real, w))
        return encoded(b, b.op("add", real, decoded(b, y)))

    module = offloading.module(build, stored(1, 16, 6, 6))
    exe = ky.compile(module, backends=["dnnl"])
    patterns = [region.pattern for region in exe.report.regions]
    assert patterns == ["dnnl.quantized_conv2d", "dnnl.quantized_conv2d", "dnnl.quantized_binary"], patterns
    offloading.right(module, exe)


@needs_byte_products
@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C compiler")
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_in_c(network, offloading):
    module = offloading.module(NETWORKS[network], (1, 3, 64, 64))
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": "c"}}, strict=True)
    assert {each.kind for each in exe.modules} == {"c_source"}
    offloading.right(module, exe)


@needs_byte_products
def test_networks_are_saved_with_their_integers(offloading, tmp_path):
    module = offloading.module(bottlenecks, (1, 3, 64, 64))
    exe = ky.compile(module, backends=["dnnl"])
    exe.save(tmp_path / "m.kyar")
    loaded = ky.load(tmp_path / "m.kyar")
    large = [array for array in loaded.modules[0].constants().values() if array.size > 1000]
    assert {array.dtype for array in large} == {np.dtype(np.int8)}
    offloading.right(module, loaded)


OF_ANOTHER_MACHINE = """
import sys
import numpy as np
import kernelyard as ky

exe = ky.load(sys.argv[1])
np.save(sys.argv[3], exe(np.load(sys.argv[2])).numpy())
(runtime,) = [module for module in exe.modules if module.kind == "dnnl"]
print([name for _, name in runtime.plan(runtime.symbols()[0], {}, 1).implementations])
"""


@pytest.mark.parametrize("isa", ["AVX2", "SSE41"])
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_give_the_same_without_vnni(network, isa, offloading, tmp_path):
    """Products are computed in floats there, where those of 8 bits would be cut off."""
    module = offloading.module(NETWORKS[network], (1, 3, 64, 64))
    ky.compile(module, backends=["dnnl"]).save(tmp_path / "m.kyar")
    (x,) = offloading.feeds(module)
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", OF_ANOTHER_MACHINE, *(tmp_path / name for name in ("m.kyar", "x.npy", "y.npy"))]
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "vnni" not in result.stdout
    (expected,) = evaluate(module, [x])
    quanta = np.abs(np.load(tmp_path / "y.npy") - expected) / 0.05
    assert quanta.max() < 1.01


@needs_byte_products
def test_data_of_int8_is_handed_on_as_uint8(offloading):
    """Behind a relu it has no zero point then, and oneDNN adds 128 to no number."""

    def build(b, x):
        w = b.op("dequantize", np.eye(16, dtype=np.int8).reshape(16, 16, 1, 1), np.float32(0.613), np.int8(0))
        y = decoded(b, encoded(b, x, zero=-3, dtype="int8"), zero=-3)
        y = encoded(b, b.op("nn.relu", b.op("nn.conv2d", y, w)), zero=-128, dtype="int8")
        return b.op("nn.conv2d", decoded(b, y, zero=-128), w)

    module = offloading.module(build, (1, 16, 6, 6))
    exe = ky.compile(module, backends=["dnnl"])
    results = [
        line.rpartition(" ")[2] for line in str(exe.inspect()).splitlines() if "quantize(" in line or "conv(" in line
    ]
    assert results == ["uint8", "uint8", "float32"], exe.inspect()
    offloading.right(module, exe)
