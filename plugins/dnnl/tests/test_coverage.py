"""Every kind of primitive, in every form that the operators have: taken as one composite, and right."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.driver.session.precision import cpu_flags
from kernelyard.placement.partition import partition
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.testing import assert_allclose, evaluate
from kernelyard_dnnl.patterns import fusion_patterns
from kernelyard_dnnl.post_ops import BINARY, UNARY


def weights(*shape, scale=0.3, seed=1):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def check_rows(offloading, pattern, op, build, shape, axes, **how):
    """Taken over the innermost axes; over others oneDNN has only its reference, and a generated kernel is faster."""
    if tuple(axes) == tuple(range(len(shape) - len(axes), len(shape))):
        offloading.taken(pattern, op, build, shape, **how)
    else:
        offloading.declined("reference-implementation", pattern, build, shape, **how)


def subsets(items):
    return [s for size in range(1, len(items) + 1) for s in itertools.combinations(items, size)]


# --- normalisations ---------------------------------------------------------------------------------------------------
AXES = [
    (shape, axis) for shape in [(11,), (5, 7), (2, 3, 4), (2, 3, 4, 5), (2, 2, 3, 2, 4)] for axis in range(len(shape))
]


@pytest.mark.parametrize(("shape", "axis"), AXES, ids=str)
@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax"])
def test_softmax(op, shape, axis, offloading):
    check_rows(offloading, "dnnl.softmax", op, lambda b, x: b.op(op, x, axis=axis), shape, (axis,))


@pytest.mark.parametrize("shape", [(1, 64, 5, 6), (2, 16, 7, 7), (3, 20, 4, 5), (2, 48, 9), (2, 32, 3, 4, 5)], ids=str)
@pytest.mark.parametrize(
    "attrs", [{"size": 5}, {"size": 3, "alpha": 0.3, "bias": 2.0}, {"size": 9, "alpha": 1.0}], ids=str
)
def test_lrn(shape, attrs, offloading):
    """oneDNN's code for AVX2 takes windows of five over whole blocks of eight channels, two of these or more."""

    def build(b, x):
        return b.op("nn.lrn", x, **attrs)

    if "avx512f" in cpu_flags(ky.Target("cpu")) or (attrs["size"] == 5 and shape[1] % 8 == 0 and shape[1] > 8):
        exe = offloading.taken("dnnl.lrn", "nn.lrn", build, shape)
        assert any("jit" in name for label, name in offloading.implementations(exe) if label.startswith("lrn"))
    else:
        offloading.declined("reference-implementation", "dnnl.lrn", build, shape)


@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax", "nn.layer_norm", "mean", "sum"])
@pytest.mark.parametrize("maker", ["convolution", "transposition", "convolution, transposed"])
def test_rows_are_where_the_innermost_axis_is_in_memory(op, maker, offloading):
    """Channels of what a convolution makes lie side by side, and so does what a transposition puts elsewhere."""
    w, shape = weights(24, 24, 1, 1), (2, 24, 5, 6)
    axis = {"convolution": 1, "transposition": 0, "convolution, transposed": 2}[maker]
    window = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
    attrs = {"axis": axis} if "softmax" in op else {"axes": (axis,)}
    attrs |= {"keepdims": True} if op in ("mean", "sum") else {}

    def build(b, x):
        y = b.op("nn.conv2d", x, w, **window) if maker.startswith("convolution") else x
        y = b.op("abs", y)
        if maker != "convolution":
            y = b.op("permute_dims", y, axes=(0, 2, 1, 3) if maker != "transposition" else (3, 0, 1, 2))
        size = y.type.shape[axis]
        parameters = [weights(size), weights(size)] if op == "nn.layer_norm" else []
        return b.op(op, y, *parameters, **attrs, **({"epsilon": 1e-5} if parameters else {}))

    module = offloading.module(build, shape)
    exe = ky.compile(module, backends=["dnnl"])
    assert {row.backend for row in exe.report.placed} == {"dnnl"}, str(exe.report)
    offloading.right(module, exe)


@pytest.mark.parametrize("axes", [(3,), (2,), (1,), (0,), (2, 3), (1, 3), (1, 2, 3), (0, 1, 2, 3)], ids=str)
def test_layer_norm(axes, offloading):
    shape = (2, 3, 4, 17)
    gamma, beta = (weights(*(shape[axis] for axis in axes), seed=seed) for seed in (1, 2))

    def build(b, x):
        return b.op("nn.layer_norm", x, gamma, beta, axes=axes, epsilon=1e-5)

    check_rows(offloading, "dnnl.layer_norm", "nn.layer_norm", build, shape, axes)


@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 48)], ids=str)
def test_layer_norm_with_parameters_that_are_inputs(shape, offloading):
    def build(b, x, gamma, beta):
        return b.op("nn.layer_norm", x, gamma, beta, axes=(len(shape) - 1,), epsilon=1e-5)

    offloading.taken("dnnl.layer_norm", "nn.layer_norm", build, shape, shape[-1:], shape[-1:])


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), (2, 6, 5, 4), (2, 6, 3, 3, 3)], ids=str)
def test_batch_norm_whose_statistics_are_inputs(shape, offloading):
    def build(b, x, *statistics):
        return b.op("nn.relu", b.op("nn.batch_norm", x, *statistics, epsilon=1e-3))

    module = offloading.module(build, shape, *[(6,)] * 4)
    offloading.right(module, ky.compile(module, backends=["dnnl"]), positive=True)  # the simplifier spells it out
    placed = partition(module, [get_manager().get("dnnl", "backend")])
    assert [f.attrs["Composite"] for f in placed.graph_functions().values() if "Composite" in f.attrs] == [
        "dnnl.batch_norm"
    ]
    feeds = offloading.feeds(module, positive=True)
    assert_allclose(ky.compile(placed, backends=["dnnl"])(*feeds), evaluate(module, feeds)[0])


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), (2, 6, 5, 4), (2, 6, 3, 3, 3)], ids=str)
def test_batch_norm_with_constants_is_a_scale_and_a_shift(shape, offloading):
    gamma, beta, mean = (weights(6, seed=seed) for seed in range(3))
    variance = np.abs(weights(6, seed=3)) + 0.5

    def build(b, x):
        return b.op("nn.relu", b.op("nn.batch_norm", x, gamma, beta, mean, variance, epsilon=1e-3))

    offloading.taken("dnnl.elementwise", "multiply add nn.relu", build, shape)


def test_batch_norm_after_a_convolution_is_in_its_weights(offloading):
    w, gamma, beta, mean = weights(8, 4, 3, 3), weights(8), weights(8), weights(8)

    def build(b, x):
        y = b.op("nn.conv2d", x, w, strides=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1), groups=1)
        return b.op("nn.relu", b.op("nn.batch_norm", y, gamma, beta, mean, np.ones(8, np.float32), epsilon=1e-3))

    offloading.taken("dnnl.conv2d", "nn.conv2d add nn.relu", build, (1, 4, 6, 6))


# --- pooling and reductions -------------------------------------------------------------------------------------------
# (data, pool_size, strides, padding, dilation)
POOLS = {
    "1d": ((2, 8, 17), (3,), (2,), (1, 1), (1,)),
    "2d": ((1, 16, 8, 8), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1)),
    "2d asymmetric": ((1, 12, 9, 9), (2, 3), (1, 2), (0, 1, 1, 0), (1, 1)),
    "2d odd channels": ((2, 3, 17, 13), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    "2d whole": ((2, 24, 7, 5), (7, 5), (1, 1), (0, 0, 0, 0), (1, 1)),
    "3d": ((1, 4, 6, 6, 6), (2, 2, 2), (2, 2, 2), (0, 0, 0, 1, 1, 1), (1, 1, 1)),
}


@pytest.mark.parametrize("case", POOLS)
@pytest.mark.parametrize("kind", ["max", "avg, padding counted", "avg, padding not counted"])
def test_pool(case, kind, offloading):
    data, size, strides, padding, dilation = POOLS[case]
    op = f"nn.{kind[:3]}_pool{len(size)}d"
    attrs = {"pool_size": size, "strides": strides, "padding": padding, "dilation": dilation, "ceil_mode": False}
    if kind != "max":
        attrs["count_include_pad"] = kind == "avg, padding counted"
    offloading.taken("dnnl.pool", op, lambda b, x: b.op(op, x, **attrs), data)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("size", [6, 7, 8])
def test_pool_whose_windows_reach_past_the_end(kind, size, offloading):
    attrs = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 0, 0, 0), "dilation": (1, 1), "ceil_mode": True}
    attrs |= {"count_include_pad": False} if kind == "avg" else {}
    op = f"nn.{kind}_pool2d"
    offloading.taken("dnnl.pool", op, lambda b, x: b.op(op, x, **attrs), (1, 8, size, size))


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pool_and_what_follows(kind, offloading):
    attrs = {"pool_size": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0), "dilation": (1, 1), "ceil_mode": True}
    if kind == "avg":
        attrs["count_include_pad"] = False

    def build(b, x, r):
        return b.op("add", b.op("nn.relu", b.op(f"nn.{kind}_pool2d", x, **attrs)), r)

    ops = f"nn.{kind}_pool2d nn.relu add"
    offloading.taken("dnnl.pool", ops, build, (1, 16, 8, 8), (1, 16, 4, 4))


@pytest.mark.parametrize("shape", [(2, 8, 5), (2, 8, 5, 6), (1, 8, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("op", ["mean", "sum"])
def test_global_pool(shape, op, offloading):
    axes = tuple(range(2, len(shape)))
    offloading.taken("dnnl.reduce", op, lambda b, x: b.op(op, x, axes=axes, keepdims=True), shape)


@pytest.mark.parametrize("axes", subsets(range(4)), ids=str)
@pytest.mark.parametrize("op", ["mean", "sum", "prod"])
def test_reduction(op, axes, offloading):
    keepdims = sum(axes) % 2 == 0
    build = lambda b, x: b.op(op, x, axes=axes, keepdims=keepdims)  # noqa: E731
    check_rows(offloading, "dnnl.reduce", op, build, (2, 3, 4, 5), axes, positive=True)


def test_reduction_of_everything(offloading):
    offloading.taken("dnnl.reduce", "sum", lambda b, x: b.op("sum", x, axes=(), keepdims=False), (3, 4))


# --- arithmetic -------------------------------------------------------------------------------------------------------
PAIRS = [
    ((4, 5), (4, 5)), ((4, 5), (5,)), ((5,), (4, 5)), ((4, 1), (1, 5)), ((4, 5), ()), ((), (4, 5)),
    ((2, 3, 4, 5), (3, 1, 1)), ((2, 3, 4, 5), (2, 1, 1, 1)), ((2, 3, 4, 5), (1, 3, 1, 5)), ((2, 1, 4, 5), (2, 3, 4, 5)),
    ((8, 1, 6), (7, 1)), ((2, 3, 4, 5), (4, 5)), ((2, 3, 1, 5, 6), (2, 3, 4, 5, 6)),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("op", BINARY)
def test_binary(op, pair, offloading):
    offloading.taken("dnnl.elementwise", op, lambda b, x, y: b.op(op, x, y), *pair, positive=True)


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("side", ["left", "right"])
def test_arithmetic_with_constants(op, side, offloading):
    c = np.random.default_rng(3).uniform(0.5, 2.0, (3, 1)).astype(np.float32)
    order = 1 if side == "right" else -1
    name = "add" if (op, side) == ("subtract", "right") else op  # as the simplifier has it
    offloading.taken("dnnl.elementwise", name, lambda b, x: b.op(op, *(x, c)[::order]), (2, 3, 4), positive=True)


@pytest.mark.parametrize("op", ["add", "multiply", "subtract", "divide"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_arithmetic_with_a_scalar_and_what_follows_is_one_primitive(op, side, offloading):
    order = 1 if side == "right" else -1

    def build(b, x):
        return b.op("exp", b.op(op, *(x, 3.0)[::order]))

    name = "add" if (op, side) == ("subtract", "right") else op  # as the simplifier has it
    exe = offloading.taken("dnnl.elementwise", f"{name} exp", build, (3, 5), positive=True)
    assert [label for label, _ in offloading.implementations(exe)] == ["binary (node 2)"]


ATTRIBUTES = {"clip": {"min": -0.3, "max": 0.4}}


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("shape", [(7,), (3, 37), (1, 5, 4, 3)], ids=str)
def test_eltwise(op, shape, offloading):
    build = lambda b, x: b.op(op, x, **ATTRIBUTES.get(op, {}))  # noqa: E731
    offloading.taken("dnnl.elementwise", op, build, shape, positive=op in ("log", "sqrt", "rsqrt", "reciprocal"))


@pytest.mark.parametrize(("exponent", "op"), [(0.5, "power"), (-0.5, "power"), (2.0, "square"), (-1.0, "reciprocal")])
def test_power_with_a_constant_exponent(exponent, op, offloading):
    offloading.taken("dnnl.elementwise", op, lambda b, x: b.op("power", x, exponent), (3, 5), positive=True)


@pytest.mark.parametrize("limits", [{"min": -1.0}, {"max": 1.0}], ids=str)
@pytest.mark.parametrize("after_a_product", [True, False])
def test_a_limit_on_one_side_leaves_infinity_on_the_other(limits, after_a_product, offloading):
    def build(b, x):
        return b.op("clip", b.op("matmul", x, np.ones((1, 1), np.float32)) if after_a_product else x, **limits)

    exe = ky.compile(offloading.module(build, (5, 1)), backends=["dnnl"])
    x = np.array([[-np.inf], [-2.0], [0.0], [2.0], [np.inf]], np.float32)
    np.testing.assert_array_equal(np.asarray(exe(x)), np.clip(x, limits.get("min"), limits.get("max")))


CHAINS = {
    "abs rsqrt subtract": lambda b, x, y: b.op("subtract", y, b.op("rsqrt", b.op("abs", x))),
    "sigmoid multiply": lambda b, x, y: b.op("multiply", x, b.op("sigmoid", y)),
    "multiply add nn.relu": lambda b, x, y: b.op("nn.relu", b.op("add", b.op("multiply", x, y), x)),
    "add exp tanh": lambda b, x, y: b.op("tanh", b.op("exp", b.op("add", x, y))),
}


@pytest.mark.parametrize("ops", CHAINS)
def test_a_chain_is_one_pass(ops, offloading):
    exe = offloading.taken("dnnl.elementwise", ops, CHAINS[ops], (3, 50), (3, 50))
    assert len(offloading.implementations(exe)) == 1


# --- resizing and movement --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((1, 8, 5), (10,)), ((2, 24, 4, 5), (8, 15)), ((1, 4, 3, 3, 3), (6, 6, 6))],
    ids=str,
)
@pytest.mark.parametrize("mode", ["nearest, asymmetric", "nearest, half_pixel", "linear, half_pixel"])
def test_resample(shape, sizes, mode, offloading):
    method, coordinates = mode.split(", ")
    nearest = "floor" if coordinates == "asymmetric" else "round_prefer_floor"

    def build(b, x, r):
        y = b.op(
            "image.resize", x, sizes=sizes, scales=(), method=method, coordinate_transformation_mode=coordinates,
            nearest_mode=nearest,
        )  # fmt: skip
        return b.op("nn.relu", b.op("add", y, r))

    offloading.taken("dnnl.resample", "image.resize add nn.relu", build, shape, (*shape[:2], *sizes))


@pytest.mark.parametrize("sizes", [(3, 5), (12, 9), (7, 16)], ids=str)
def test_linear_resampling_to_any_size(sizes, offloading):
    attrs = {"method": "linear", "coordinate_transformation_mode": "half_pixel"}
    build = lambda b, x: b.op("image.resize", x, sizes=sizes, scales=(), **attrs)  # noqa: E731
    offloading.taken("dnnl.resample", "image.resize", build, (1, 3, 8, 6))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_concat(axis, count, offloading):
    shapes = [[2, 3, 4, 20] for _ in range(count)]
    for size, shape in enumerate(shapes):
        shape[axis] += size
    offloading.taken("dnnl.concat", "concat", lambda b, *xs: b.op("concat", *xs, axis=axis), *shapes)


@pytest.mark.parametrize("axes", [p for p in itertools.permutations(range(3)) if p != (0, 1, 2)], ids=str)
def test_reorder(axes, offloading):
    offloading.taken("dnnl.reorder", "permute_dims", lambda b, x: b.op("permute_dims", x, axes=axes), (3, 4, 5))


def test_a_permutation_of_four_and_of_five_axes(offloading):
    for axes in ((0, 2, 3, 1), (3, 1, 0, 2), (0, 4, 1, 2, 3)):
        shape = (2, 3, 4, 5, 6)[: len(axes)]
        offloading.taken(
            "dnnl.reorder", "permute_dims", lambda b, x, axes=axes: b.op("permute_dims", x, axes=axes), shape
        )


# --- one program for each pattern -------------------------------------------------------------------------------------
NAMED_BY_RANK = {"dnnl.padded_conv1d", "dnnl.padded_conv3d"}  # in test_dynamic.py


def test_every_pattern_has_its_tests():
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = {pattern.name for pattern in fusion_patterns() if f'"{pattern.name}"' in sources}
    assert {pattern.name for pattern in fusion_patterns()} == named | NAMED_BY_RANK


@pytest.mark.parametrize("view", ["reshape", "slice"])
def test_views_between_primitives_stay_in_their_region(view, offloading):
    w = weights(12, 9)

    def build(b, x):
        if view == "reshape":
            y = b.op("reshape", b.op("matmul", x, w), shape=(2, 3, 9))
        else:  # of windows, whose slices stay behind them
            y = b.op("nn.max_pool2d", x, pool_size=(2, 2))
            y = b.op("strided_slice", y, axes=(2,), begin=(2,), end=(5,), strides=(1,))
        return b.op("nn.softmax", y, axis=y.type.rank - 1)

    module = offloading.module(build, (6, 12) if view == "reshape" else (1, 2, 7, 12))
    exe = ky.compile(module, backends=["dnnl"])
    first = "dnnl.matmul" if view == "reshape" else "dnnl.pool"
    assert [region.pattern for region in exe.report.regions] == [first, f"dnnl.{view}", "dnnl.softmax"]
    assert len({region.function for region in exe.report.regions}) == 1
    offloading.right(module, exe)
