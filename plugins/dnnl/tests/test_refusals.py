"""What is declined: each refusal has its code, and the program still gives the right numbers on generated kernels."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.testing import assert_allclose, assert_declined, assert_offloaded, evaluate

N, M = dims.symbol("n"), dims.symbol("m")
WINDOW = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
POOL = {**WINDOW, "pool_size": (3, 3), "ceil_mode": False}
HALF_PIXEL = {"scales": (), "coordinate_transformation_mode": "half_pixel"}


def ones(*shape):
    return np.ones(shape, np.float32)


def conv(b, x, w, **attrs):
    return b.op("nn.conv2d", x, w, groups=1, **(WINDOW | attrs))


def padded(pads, mode="constant", value=0.0, channels=3):
    return lambda b, x: conv(b, b.op("pad", x, pads=pads, mode=mode, value=value), ones(4, channels, 3, 3))


def resized(sizes=(8, 8), **attrs):
    return lambda b, x: b.op("image.resize", x, sizes=sizes, **(HALF_PIXEL | attrs))


def of_type(dtype, *shapes):
    return [TensorType(shape, dtype) for shape in shapes]


# label -> (code, pattern, program, inputs)
REFUSALS = {
    "dtype: product of doubles": (
        "dtype", "dnnl.matmul", lambda b, x, y: b.op("matmul", x, y), of_type("float64", (3, 4), (4, 5)),
    ),
    "dtype: half precision": ("dtype", "dnnl.cast", lambda b, x: b.op("tanh", x), of_type("float16", (3, 4))),
    "dtype: integers": ("dtype", "dnnl.elementwise", lambda b, x, y: b.op("add", x, y), of_type("int32", (3,), (3,))),
    "dtype: reduction": (
        "dtype", "dnnl.reduce", lambda b, x: b.op("sum", x, axes=(1,), keepdims=False), of_type("float64", (3, 4)),
    ),
    "dtype: concat": (
        "dtype", "dnnl.concat", lambda b, x, y: b.op("concat", x, y, axis=0), of_type("int64", (3, 40), (2, 40)),
    ),
    "rank: seven axes": ("rank", "dnnl.elementwise", lambda b, x: b.op("tanh", x), [(1, 2, 1, 2, 1, 2, 3)]),
    "rank: transposition of seven axes": (
        "rank", "dnnl.reorder", lambda b, x: b.op("permute_dims", x, axes=(6, 0, 1, 2, 3, 4, 5)), [(2,) * 7],
    ),
    "rank: two vectors": ("rank", "dnnl.matmul", lambda b, x, y: b.op("matmul", x, y), [(5,), (5,)]),
    "rank: scalar": ("rank", "dnnl.elementwise", lambda b, x: b.op("tanh", x), [()]),
    "rank: resizing four axes": ("rank", "dnnl.resample", resized((4, 4, 4, 4), method="linear"), [(1, 2, 2, 2, 2, 2)]),
    "attribute: beyond the last window of a transposed convolution": (
        "attribute", "dnnl.conv2d_transpose",
        lambda b, x, w: b.op("nn.conv2d_transpose", x, w, strides=(1, 2), padding=(0, 0, 0, 1), output_padding=(1, 2)),
        [(1, 2, 5, 4), (2, 2, 2, 2)],
    ),
    "attribute: layer norm over a middle axis": (
        "attribute", "dnnl.layer_norm",
        # The convolution's result may lie in any order, and so may that under another shape.
        lambda b, x: b.op(
            "nn.layer_norm", b.op("reshape", conv(b, x, ones(4, 3, 3, 3)), shape=(1, 4, 16)), ones(4), ones(4),
            axes=(1,), epsilon=1e-5,
        ), [(1, 3, 6, 6)],
    ),
    "attribute: average pool with dilation": (
        "attribute", "dnnl.pool",
        lambda b, x: b.op("nn.avg_pool2d", x, count_include_pad=True, **{**POOL, "dilation": (2, 2)}), [(1, 4, 7, 7)],
    ),
    "attribute: average past the padding": (
        "attribute", "dnnl.pool",
        lambda b, x: b.op("nn.avg_pool2d", x, count_include_pad=True, **{**POOL, "strides": (2, 2), "ceil_mode": True}),
        [(1, 4, 6, 6)],
    ),
    "attribute: cubic": ("attribute", "dnnl.resample", resized(method="cubic"), [(1, 2, 5, 5)]),
    "attribute: other corners": (
        "attribute", "dnnl.resample", resized(method="linear", coordinate_transformation_mode="align_corners"), [(1, 2, 5, 5)],
    ),
    "attribute: nearest by halves": (
        "attribute", "dnnl.resample", resized(method="nearest", nearest_mode="round_prefer_floor"), [(1, 2, 5, 5)],
    ),
    "attribute: backward slice": (
        "attribute", "dnnl.slice",
        lambda b, x: b.op("abs", b.op("strided_slice", b.op("tanh", x), axes=(0,), begin=(3,), end=(-1,), strides=(-1,))),
        [(4, 5)],
    ),
    "attribute: padding by reflection": ("attribute", "dnnl.padded_conv2d", padded((0, 0, 1, 1) * 2, "reflect"), [(1, 3, 5, 5)]),
    "attribute: padding with ones": ("attribute", "dnnl.padded_conv2d", padded((0, 0, 1, 1) * 2, value=1.0), [(1, 3, 5, 5)]),
    "attribute: padding that cuts": ("attribute", "dnnl.padded_conv2d", padded((0, 0, -1, 1) * 2), [(1, 3, 7, 5)]),
    "attribute: padding of channels": (
        "attribute", "dnnl.padded_conv2d", padded((0, 1, 0, 1, 0, 0, 0, 1), channels=4), [(1, 3, 5, 5)],
    ),
    "operand: a sum that grows": (
        "operand", "dnnl.matmul", lambda b, x, r: b.op("add", b.op("matmul", x, ones(4, 5)), r), [(1, 4), (3, 5)],
    ),
    "operand: a value of the group": (
        "operand", "dnnl.matmul",
        lambda b, x: b.op("multiply", (y := b.op("matmul", x, ones(4, 5))), b.op("tanh", y)), [(3, 4)],
    ),
    "neighbours: reshape": ("neighbours", "dnnl.reshape", lambda b, x: b.op("reshape", b.op("erf", x), shape=(12,)), [(3, 4)]),
    "neighbours: slice": (
        "neighbours", "dnnl.slice",
        lambda b, x: b.op("erf", b.op("strided_slice", x, axes=(0,), begin=(1,), end=(3,), strides=(1,))), [(4, 5)],
    ),
    "attribute: an even number of channels": ("attribute", "dnnl.lrn", lambda b, x: b.op("nn.lrn", x, size=4), [(1, 16, 5, 6)]),
    "reference-implementation: lrn with another exponent": (
        "reference-implementation", "dnnl.lrn", lambda b, x: b.op("nn.lrn", x, size=5, beta=0.5), [(1, 16, 5, 6)],
    ),
    "numbers: largest of a row": (
        "numbers", "dnnl.reduce", lambda b, x: b.op("max", x, axes=(1,), keepdims=False), [(4, 5)],
    ),
    "numbers: largest over space": (
        "numbers", "dnnl.reduce", lambda b, x: b.op("max", x, axes=(2, 3), keepdims=True), [(1, 4, 5, 6)],
    ),
    "numbers: least of all": ("numbers", "dnnl.reduce", lambda b, x: b.op("min", x, axes=(), keepdims=True), [(4, 5)]),
    "empty: concat": ("empty", "dnnl.concat", lambda b, x, y: b.op("concat", x, y, axis=0), [(1, 0), (1, 0)]),
    "slow: interleaving": ("slow", "dnnl.concat", lambda b, x, y: b.op("concat", x, y, axis=1), [(50, 3), (50, 5)]),
    "slow: interleaving single elements": ("slow", "dnnl.concat", lambda b, x, y: b.op("concat", x, y, axis=1), [(50, 1), (50, 1)]),
    "slow: any power": ("slow", "dnnl.elementwise", lambda b, x: b.op("power", b.op("exp", x), 1.7), [(3, 4)]),
    "reference-implementation: softmax of columns": (
        "reference-implementation", "dnnl.softmax", lambda b, x: b.op("nn.softmax", x, axis=0), [(4, 5)],
    ),
    "reference-implementation: reduction of the batch": (
        "reference-implementation", "dnnl.reduce", lambda b, x: b.op("mean", x, axes=(0,), keepdims=False), [(4, 5)],
    ),
    "reference-implementation: dilated pool": (
        "reference-implementation", "dnnl.pool",
        lambda b, x: b.op("nn.max_pool2d", x, **{**POOL, "dilation": (2, 2)}), [(1, 4, 7, 7)],
    ),
    "leaking-intermediate": (
        "leaking-intermediate", "dnnl.matmul",
        lambda b, x: b.op("concat", b.op("exp", (y := b.op("matmul", x, ones(4, 40)))), y, axis=0), [(3, 4)],
    ),
    "cycle": (
        "cycle", "dnnl.matmul",
        lambda b, x: b.op(
            "add", b.op("nn.relu", (y := b.op("matmul", x, ones(4, 5)))),
            b.op("cumsum", y, axis=0, exclusive=False, reverse=False),
        ), [(3, 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_declined_and_right(case, offloading):
    code, pattern, build, inputs = REFUSALS[case]
    exe = offloading.declined(code, pattern, build, *inputs)
    assert not any(row.backend == "reference" for row in exe.report.placed), "generated kernels take the rest"


# label -> (pattern, program, inputs, several sizes)
DYNAMIC = {
    "channels": (
        "dnnl.conv2d", lambda b, x, w: conv(b, x, w), [(1, N, 5, 6), (4, N, 3, 3)], [{"n": 3}, {"n": 8}],
    ),
    "kernel": ("dnnl.conv2d", lambda b, x, w: conv(b, x, w), [(1, 3, 9, 9), (4, 3, N, 3)], [{"n": 3}, {"n": 5}]),
    "channels of a transposed convolution": (
        "dnnl.conv2d_transpose",
        lambda b, x, w: b.op("nn.conv2d_transpose", x, w, groups=1, output_padding=(0, 0), **WINDOW),
        [(1, 3, 5, 5), (3, N, 2, 2)], [{"n": 4}],
    ),
    "channels of a pool": ("dnnl.pool", lambda b, x: b.op("nn.max_pool2d", x, **POOL), [(1, N, 7, 7)], [{"n": 1}, {"n": 5}]),
    "normalised size": (
        "dnnl.layer_norm",
        lambda b, x, g, c: b.op("nn.layer_norm", x, g, c, axes=(1,), epsilon=1e-5), [(2, N), (N,), (N,)], [{"n": 7}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DYNAMIC)
def test_sizes_that_must_be_known(case, offloading):
    pattern, build, inputs, several = DYNAMIC[case]
    module = offloading.module(build, *inputs)
    exe = ky.compile(module, backends=["dnnl"])
    assert_declined(exe, "dnnl", "dynamic-shape", pattern)
    for sizes in several:
        offloading.right(module, exe, **sizes)


def test_sizes_that_may_broadcast_are_no_post_op(offloading):
    """n and m may turn out equal, or either may be one: the sum is a primitive of its own."""
    build = lambda b, x, r: b.op("add", b.op("matmul", x, ones(4, 5)), r)  # noqa: E731
    module = offloading.module(build, (N, 4), (M, 5))
    exe = ky.compile(module, backends=["dnnl"])
    assert_declined(exe, "dnnl", "operand", "dnnl.matmul")
    assert [(r.pattern, r.ops) for r in exe.report.regions] == [
        ("dnnl.matmul", ("matmul",)),
        ("dnnl.elementwise", ("add",)),
    ]
    for sizes in ({"n": 3, "m": 3}, {"n": 1, "m": 3}, {"n": 3, "m": 1}):
        offloading.right(module, exe, **sizes)


@pytest.mark.parametrize("rows", [3, N], ids=str)
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_clip_to_nothing_is_declined(rows, is_fused, offloading):
    """Where sizes are symbols, oneDNN is not asked."""

    def build(b, x):
        return b.op("clip", b.op("matmul", x, ones(4, 5)) if is_fused else x, min=1.0, max=-1.0)

    module = offloading.module(build, (rows, 4))
    exe = ky.compile(module, backends=["dnnl"])
    assert_declined(exe, "dnnl", "attribute")
    offloading.right(module, exe, **({} if isinstance(rows, int) else {"n": 3}))


def test_a_refusal_of_one_part_leaves_the_rest(offloading):
    """conv, then a power that is declined, then relu: the convolution is still taken."""

    def build(b, x):
        return b.op("nn.relu", b.op("power", b.op("exp", conv(b, x, ones(4, 3, 3, 3) / 30)), 1.3))

    exe = offloading.declined("slow", "dnnl.conv2d", build, (1, 3, 6, 6))
    assert_offloaded(exe, "dnnl", "dnnl.conv2d", count=1)
    assert [region.ops for region in exe.report.regions] == [("nn.conv2d", "exp"), ("nn.relu",)]


def test_weights_of_few_bits_are_left_to_generated_kernels(offloading):
    """A product with them, and what decodes them: neither would read what is stored."""

    def build(b, x):
        scaled = b.op("multiply", b.op("astype", np.ones((2, 32, 700), np.int8), dtype="float32"), ones(2, 1, 700))
        return b.op("matmul", x, b.op("reshape", scaled, shape=(64, 700)))

    exe = offloading.declined("slow", "dnnl.matmul", build, (1, 64))
    assert not exe.report.regions
    assert [kernel.ops for kernel in exe.report.kernels] == [("dequantize", "matmul")]


def test_a_refusal_says_what_was_found_and_is_in_the_summary(offloading):
    module = offloading.module(lambda b, x, y: b.op("matmul", x, y), *of_type("float64", (3, 4), (4, 5)))
    report = ky.explain(module, backends=["dnnl"])
    (entry,) = report.declined
    assert (entry.backend, entry.pattern, entry.op, entry.code) == ("dnnl", "dnnl.matmul", "matmul", "dtype")
    assert entry.message == "matmul of Tensor[(3, 4), float64]; supported are float32 or bfloat16"
    assert report.summary.endswith("declined 1: dtype×1")


def test_stacks_between_primitives_are_taken(offloading):
    """Whole tensors one after the other: what would be interleaved is left to who reads it."""

    def build(b, x, y):
        pair = b.op("concat", b.op("tanh", x), b.op("tanh", y), axis=2)
        return b.op("sum", pair, axes=(0,), keepdims=False)

    module = offloading.module(build, (6, 20, 1), (6, 20, 1))
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", "dnnl.concat")
    offloading.right(module, exe)


@pytest.mark.parametrize("channels", [(1, 32), (16, 16), (48, 24, 8)], ids=str)
def test_channels_are_joined_where_they_lie_side_by_side(channels, offloading):
    def build(b, *xs):
        return b.op("concat", *(conv(b, x, ones(c, 3, 1, 1)) for c, x in zip(channels, xs, strict=True)), axis=1)

    module = offloading.module(build, *[(1, 3, 6, 5)] * len(channels))
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", "dnnl.concat")
    offloading.right(module, exe)


@pytest.mark.parametrize("op", ["nn.softmax", "max"])
def test_rows_of_a_part_or_of_another_shape_are_looked_at_as_any_others(op, offloading):
    """A slice lies as what it is a part of; row-major memory under another shape is row-major."""
    attrs = {"axis": 1} if op == "nn.softmax" else {"axes": (1,), "keepdims": False}
    pattern = "dnnl.softmax" if op == "nn.softmax" else "dnnl.reduce"

    def of_a_part(b, x):
        return b.op(op, b.op("strided_slice", x, axes=(0,), begin=(1,), end=(3,), strides=(1,)), **attrs)

    def of_another_shape(b, x):
        return b.op(op, b.op("reshape", x, shape=(4, 5, 6)), **attrs)

    offloading.declined("reference-implementation", pattern, of_a_part, (4, 5, 6))
    offloading.declined("reference-implementation", pattern, of_another_shape, (20, 6))


def test_the_largest_of_infinities_alone_is_infinite() -> None:
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("max", b.input("x", (3, 4)), axes=(1,), keepdims=False))})
    x = np.array([[-np.inf] * 4, [np.nan, 1, 2, 3], [-np.inf, 1, 2, 3]], np.float32)
    np.testing.assert_array_equal(ky.compile(module, backends=["dnnl"])(x).numpy(), np.float32([-np.inf, np.nan, 3]))


def test_a_product_added_to_itself(offloading):
    """It has the shape of a bias where it is one row; but no operand of a group may be made inside it."""

    def build(b, x):
        y = b.op("matmul", x, np.ones((4, 3), np.float32))
        return b.op("add", y, y)

    offloading.declined("operand", "dnnl.matmul", build, (1, 4))


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize("place", [0, 1])
def test_the_larger_and_the_smaller_of_two_propagate_nan(op, place):
    """oneDNN gives the second operand where one is NaN: neither by itself nor behind a product is it asked."""
    b = FunctionBuilder()
    x, y = b.input("x", (3, 17)), b.input("y", (3, 17))
    module = IRModule({"main": b.function(b.op(op, b.op("matmul", x, ones(17, 17)), y))})
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", "dnnl.matmul", count=1)
    assert [op in region.ops for region in exe.report.regions] == [False]
    feeds = [ones(3, 17), ones(3, 17)]
    feeds[place][1] = np.nan
    assert np.isnan(np.asarray(exe(*feeds))).tolist() == [[row == 1] * 17 for row in range(3)]


@pytest.mark.parametrize("op", ["add", "multiply"])
def test_a_constant_on_the_left_of_integers_is_declined(op):
    """Patterns match either order; what is folded after the last canonicalize may be the first operand."""
    b = FunctionBuilder()
    x = b.op("dequantize", b.input("x", (3, 8), "int8"), np.float32(0.0625), np.int8(0))
    folded = b.op("dequantize", np.ones((3, 8), np.int8), np.float32(0.5), np.int8(0))
    y = b.op("quantize", b.op(op, folded, x), np.float32(0.25), np.uint8(128), dtype="uint8")
    y = b.op("dequantize", y, np.float32(0.25), np.uint8(128))
    module = IRModule({"main": b.function(b.op("matmul", y, ones(8, 4)))})
    pipeline = ky.get_default_pipeline("cpu").without("simplify.fold_constants")
    exe = ky.compile(module, backends=["dnnl"], pipeline=pipeline)
    assert_declined(exe, "dnnl", "operand", "dnnl.quantized_binary")
    feed = np.arange(-12, 12, dtype=np.int8).reshape(3, 8)
    assert_allclose(exe(feed), evaluate(module, [feed])[0])
