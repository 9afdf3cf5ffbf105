"""Canonicalize: each rule, what it must leave alone, and the meaning of random modules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from kernelyard import dims
from kernelyard.ir import Constant, FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.simplify.canonicalize import Canonicalize
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

N = dims.symbol("n")
F32 = np.float32
PASS = Sequential([Canonicalize(), DeadCodeElimination()])


def chain(b, x, *steps):
    for op, *rest in steps:
        attrs = rest.pop() if rest and isinstance(rest[-1], dict) else {}
        x = b.op(op, x, *rest, **attrs)
    return x


# steps on x: (4, 6) float32 -> the operators that remain
CASES = {
    "x + 0": ([("add", 0.0)], []),
    "x - 0": ([("subtract", 0.0)], []),
    "x * 1": ([("multiply", 1.0)], []),
    "x / 1": ([("divide", 1.0)], []),
    "x * ones": ([("multiply", np.ones((4, 6), F32))], []),
    "x ** 1": ([("power", 1.0)], []),
    "x ** 2": ([("power", 2.0)], ["square"]),
    "x ** -1": ([("power", -1.0)], ["reciprocal"]),
    "x ** 3 stays": ([("power", 3.0)], ["power"]),
    "x ** 0.5 stays": ([("abs",), ("power", 0.5)], ["abs", "power"]),
    "x - c": ([("subtract", 0.3)], ["add"]),
    "x / 4": ([("divide", 4.0)], ["multiply"]),
    "x / 3 stays": ([("divide", 3.0)], ["divide"]),
    "x / 2^127 stays": ([("divide", 2.0**127)], ["divide"]),
    "relu": ([("maximum", 0.0)], ["nn.relu"]),
    "relu of relu": ([("nn.relu",), ("nn.relu",)], ["nn.relu"]),
    "clip": ([("maximum", -1.0), ("minimum", 1.0)], ["clip"]),
    "relu6": ([("maximum", 0.0), ("minimum", 6.0)], ["clip"]),
    "clip after relu": ([("nn.relu",), ("clip", {"max": 6.0})], ["clip"]),
    "clip of clip": ([("clip", {"min": -1.0, "max": 1.0}), ("clip", {"min": 0.0, "max": 5.0})], ["clip"]),
    "disjoint clips stay": ([("clip", {"max": -1.0}), ("clip", {"min": 1.0})], ["clip", "clip"]),
    "clip without limits": ([("clip",)], []),
    "clip with infinite limits": ([("clip", {"min": -math.inf, "max": math.inf})], []),
    "clip with one infinite limit": ([("clip", {"min": -math.inf, "max": 2.0})], ["clip"]),
    "clip at zero": ([("clip", {"min": 0.0})], ["nn.relu"]),
    "max with -inf": ([("maximum", -math.inf)], []),
    "min with inf": ([("minimum", math.inf)], []),
    "min with -inf stays": ([("minimum", -math.inf)], None),
    "two signs": ([("negative",), ("negative",)], []),
    "rsqrt": ([("exp",), ("sqrt",), ("reciprocal",)], ["exp", "rsqrt"]),
    "same cast": ([("astype", {"dtype": "float32"})], []),
    "wider and back": ([("astype", {"dtype": "float64"}), ("astype", {"dtype": "float32"})], []),
    "narrower and back stays": ([("astype", {"dtype": "float16"}), ("astype", {"dtype": "float32"})], ["astype"] * 2),
    "reshape to the same": ([("reshape", {"shape": (4, 6)})], []),
    "reshape of reshape": ([("reshape", {"shape": (24,)}), ("reshape", {"shape": (2, 12)})], ["reshape"]),
    "reshape and back": ([("reshape", {"shape": (24,)}), ("reshape", {"shape": (4, 6)})], []),
    "permutation of nothing": ([("permute_dims", {"axes": (0, 1)})], []),
    "permute and back": ([("permute_dims", {"axes": (1, 0)}), ("permute_dims", {"axes": (1, 0)})], []),
    "axes are split before they are permuted": (
        [
            ("reshape", {"shape": (2, 6, 2)}),
            ("permute_dims", {"axes": (1, 2, 0)}),
            ("reshape", {"shape": (2, 3, 2, 1, 2)}),
        ],
        ["reshape", "permute_dims"],
    ),
    "axes that a permutation made neighbours are merged after it": (
        [("reshape", {"shape": (2, 6, 2)}), ("permute_dims", {"axes": (1, 0, 2)}), ("reshape", {"shape": (12, 2)})],
        ["reshape", "permute_dims", "reshape"],
    ),
    "axes are merged before they are permuted": (
        [
            ("reshape", {"shape": (2, 2, 3, 2)}),
            ("permute_dims", {"axes": (1, 2, 3, 0)}),
            ("reshape", {"shape": (12, 2)}),
            ("permute_dims", {"axes": (1, 0)}),
        ],
        ["reshape"],
    ),
    "axes that a permutation made neighbours are merged after the next one": (
        [
            ("reshape", {"shape": (2, 6, 2)}),
            ("permute_dims", {"axes": (1, 0, 2)}),
            ("reshape", {"shape": (6, 4)}),
            ("permute_dims", {"axes": (1, 0)}),
        ],
        ["reshape", "permute_dims", "reshape"],
    ),
    "axes that are merged and split otherwise stay": (
        [
            ("reshape", {"shape": (2, 3, 4)}),
            ("permute_dims", {"axes": (2, 0, 1)}),
            ("reshape", {"shape": (2, 12)}),
            ("permute_dims", {"axes": (1, 0)}),
        ],
        ["reshape", "permute_dims", "reshape", "permute_dims"],
    ),
    "permute ones": ([("reshape", {"shape": (4, 1, 6)}), ("permute_dims", {"axes": (1, 0, 2)})], ["reshape"]),
    "broadcast to the same": ([("broadcast_to", {"shape": (4, 6)})], []),
    "broadcast adds ones": ([("broadcast_to", {"shape": (1, 4, 6)})], ["reshape"]),
    "two broadcasts": (
        [("broadcast_to", {"shape": (2, 4, 6)}), ("broadcast_to", {"shape": (3, 2, 4, 6)})],
        ["broadcast_to"],
    ),
    "one tile": ([("tile", {"repeats": (1, 1)})], []),
    "no padding": ([("pad", {"pads": (0, 0, 0, 0), "mode": "constant"})], []),
    "whole slice": ([("strided_slice", {"axes": (0,), "begin": (0,), "end": (4,), "strides": (1,)})], []),
    "reversed slice stays": (
        [("strided_slice", {"axes": (0,), "begin": (3,), "end": (-1,), "strides": (-1,)})],
        ["strided_slice"],
    ),
    "slice of slice": (
        [
            ("strided_slice", {"axes": (0,), "begin": (1,), "end": (4,), "strides": (1,)}),
            ("strided_slice", {"axes": (0, 1), "begin": (1, 2), "end": (3, 6), "strides": (1, 1)}),
        ],
        ["strided_slice"],
    ),
    "strided slices stay": (
        [
            ("strided_slice", {"axes": (0,), "begin": (0,), "end": (4,), "strides": (2,)}),
            ("strided_slice", {"axes": (0,), "begin": (1,), "end": (2,), "strides": (1,)}),
        ],
        ["strided_slice", "strided_slice"],
    ),
    "concat of one": ([("concat", {"axis": 0})], []),
    "sum over ones": ([("reshape", {"shape": (4, 1, 6)}), ("sum", {"axes": (1,)})], []),
    "sum over all": ([("sum",)], ["sum"]),
    "flip of ones": ([("reshape", {"shape": (1, 24)}), ("flip", {"axes": (0,)})], ["reshape"]),
}


@pytest.mark.parametrize(("steps", "remaining"), CASES.values(), ids=CASES)
def test_rule(check, steps, remaining):
    before = check.of(lambda b, x: chain(b, x, *steps))
    after = check(PASS, before)
    assert check.ops(after) == (check.ops(before) if remaining is None else remaining)


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
def test_constants_of_commutative_operators_are_on_the_right(check, op):
    after = check(PASS, check.of(lambda b, x: b.op(op, Constant(np.arange(6, dtype=F32)), x)))
    assert isinstance(after.bindings[0].value.args[1], Constant)


def test_a_product_with_itself_is_a_square(check):
    assert check.ops(check(PASS, check.of(lambda b, x: b.op("multiply", x, x)))) == ["square"]
    integers = check.of(lambda b, x: b.op("multiply", x, x), dtype="int32")
    assert check.ops(check(PASS, integers)) == ["multiply"]


def test_signs_move_into_the_sum(check):
    assert check.ops(check(PASS, check.of(lambda b, x: b.op("add", x, b.op("negative", b.op("tanh", x)))))) == [
        "tanh",
        "subtract",
    ]
    assert check.ops(check(PASS, check.of(lambda b, x: b.op("subtract", x, b.op("negative", b.op("tanh", x)))))) == [
        "tanh",
        "add",
    ]


def test_one_over_x(check):
    one = Constant(np.ones((1, 1), F32))
    assert check.ops(check(PASS, check.of(lambda b, x: b.op("divide", one, b.op("exp", x))))) == ["exp", "reciprocal"]


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_integers_keep_wrapping(check, dtype):
    after = check(PASS, check.of(lambda b, x: b.op("divide", b.op("subtract", x, 5), 2), dtype=dtype))
    assert check.ops(after) == ["add", "divide"]
    assert check.ops(check(PASS, check.of(lambda b, x: b.op("maximum", x, 0), dtype=dtype))) == ["maximum"]


def test_uniform_constants_become_scalars(check):
    after = check(PASS, check.of(lambda b, x: b.op("add", x, np.full((1, 1, 6), 0.5, F32)), shape=(2, 4, 6)))
    assert after.bindings[0].value.args[1].data.shape == ()


def test_zeros_of_both_signs_are_not_one_number(check):
    zeros = np.zeros((4, 6), F32)
    zeros[1] = -0.0
    after = check(PASS, check.of(lambda b, x: b.op("divide", b.op("exp", x), zeros)))
    assert after.bindings[1].value.args[1].data.shape == (4, 6)


def test_constants_that_give_the_shape_stay(check):
    after = check(PASS, check.of(lambda b, x: b.op("add", x, np.zeros((4, 6), F32)), shape=(1, 6)))
    assert check.ops(after) == ["add"]
    assert after.bindings[0].value.args[1].data.shape == (4, 6)


def test_operators_broadcast_by_themselves(check):
    def build(b, x):
        row = b.op("broadcast_to", b.op("sum", x, axes=(0,)), shape=(N, 6))
        return b.op("multiply", x, row)

    assert check.ops(check(PASS, check.of(build, shape=(N, 6)))) == ["sum", "multiply"]


def test_two_broadcasts_that_give_the_shape_together_stay(check):
    def build(b, x):
        left = b.op("broadcast_to", b.op("sum", x, axes=(0,)), shape=(4, 6))
        return b.op("add", left, b.op("broadcast_to", b.op("sum", x, axes=(0,), keepdims=True), shape=(4, 6)))

    assert check.ops(check(PASS, check.of(build))).count("broadcast_to") == 1


def test_known_choices_are_made(check):
    def build(b, x):
        yes = Constant(np.ones((1, 6), bool))
        return b.op("where", yes, b.op("tanh", x), b.op("sin", x))

    assert check.ops(check(PASS, check.of(build))) == ["tanh"]
    same = check.of(lambda b, x: b.op("where", b.op("greater", x, 0.0), x, x))
    assert check.ops(check(PASS, same)) == []


def test_a_choice_that_gives_the_shape_stays(check):
    yes = Constant(np.ones((4, 6), bool))
    assert check.ops(check(PASS, check.of(lambda b, x: b.op("where", yes, x, x), shape=(1, 6)))) == ["where"]


def test_fields_of_known_tuples_are_read_directly(check):
    b = FunctionBuilder()
    x = b.input("x", (4, 6))
    part = b.get(b.op("split", x, axis=0, sections=(4,)), 0)
    assert not check(PASS, b.function(b.op("add", part, 0.0))).bindings


def test_empty_parts_are_left_out_of_a_concatenation(check):
    empty = Constant(np.zeros((0, 6), F32))
    assert not check(PASS, check.of(lambda b, x: b.op("concat", empty, x, empty, axis=0))).bindings


@pytest.mark.parametrize("target", ["int64", "float32", "float64"])
def test_casts_of_booleans_are_one_cast(check, target):
    def build(b, x):
        return b.op("astype", b.op("astype", b.op("greater", x, 0.0), dtype="int8"), dtype=target)

    assert check.ops(check(PASS, check.of(build))) == ["greater", "astype"]


def test_casts_that_round_are_kept(check):
    def build(b, x):
        return b.op("astype", b.op("astype", x, dtype="float32"), dtype="float64")

    assert check.ops(check(PASS, check.of(build, dtype="int32"))) == ["astype", "astype"]
    assert check.ops(check(PASS, check.of(build, dtype="int16"))) == ["astype"]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_zeros_around_an_image_are_a_convolutions_padding(check, rank):
    spatial = (5, 6, 7)[:rank]

    def build(b, x, pads=(1, 0, 2), value=0.0):
        around = (0, 0, *pads[:rank], 0, 0, *([1] * rank))
        padded = b.op("pad", x, pads=around, mode="constant", value=value)
        weight = np.random.default_rng(0).standard_normal((3, 2, *[3] * rank)).astype(F32)
        return b.op(f"nn.conv{rank}d", padded, weight, padding=(1,) * (2 * rank))

    after = check(PASS, check.of(build, shape=(2, 2, *spatial)))
    assert check.ops(after) == [f"nn.conv{rank}d"]
    assert after.bindings[0].value.attrs["padding"] == (2, 1, 3)[:rank] + (2,) * rank
    for other in ({"value": 1.0}, {"pads": (-1, 1, 1)}):
        kept = check(PASS, check.of(lambda b, x, other=other: build(b, x, **other), shape=(2, 2, *spatial)))
        assert check.ops(kept) == ["pad", f"nn.conv{rank}d"]


def pooled(check, kind, before=None, pads=(0, 0, 1, 1, 0, 0, 1, 0), value=0.0, **attrs):
    def build(b, x):
        y = b.op(before, x) if before else x
        padded = b.op("pad", y, pads=pads, mode="constant", value=value)
        return b.op(f"nn.{kind}_pool2d", padded, **{"pool_size": (3, 3), "strides": (2, 2), **attrs})

    after = check(PASS, check.of(build, shape=(2, 3, 8, 7)))
    return check.ops(after), after.bindings[-1].value.attrs


def test_zeros_around_an_image_are_padding_that_an_average_counts(check):
    ops, attrs = pooled(check, "avg")
    assert ops == ["nn.avg_pool2d"]
    assert attrs["padding"] == (1, 1, 1, 0)
    assert attrs["count_include_pad"]
    ops, attrs = pooled(check, "avg", padding=(1, 0, 0, 1), count_include_pad=True)
    assert (ops, attrs["padding"]) == (["nn.avg_pool2d"], (2, 1, 1, 1))


@pytest.mark.parametrize(
    "other",
    [
        {"value": 1.0},
        {"padding": (1, 1, 1, 1)},
        {"pads": (0, 1, 1, 1, 0, 0, 1, 0)},
        {"pads": (0, 0, 3, 1, 0, 0, 1, 0)},
        {"pads": (0, 0, -1, 1, 0, 0, 1, 0)},
    ],
    ids=["ones", "own padding that is not counted", "channels", "wider than the window", "a crop"],
)
def test_what_an_average_cannot_do_itself_stays(check, other):
    assert pooled(check, "avg", **other)[0] == ["pad", "nn.avg_pool2d"]


def test_what_no_element_is_below_is_padding_of_a_maximum(check):
    assert pooled(check, "max", value=-math.inf)[0] == ["nn.max_pool2d"]
    ops, attrs = pooled(check, "max", before="nn.relu", padding=(0, 1, 0, 1))
    assert (ops, attrs["padding"]) == (["nn.relu", "nn.max_pool2d"], (1, 2, 1, 1))
    assert pooled(check, "max")[0] == ["pad", "nn.max_pool2d"], "the image may have numbers below zero"
    assert pooled(check, "max", before="nn.relu", dilation=(2, 2))[0] == ["nn.relu", "pad", "nn.max_pool2d"]


@pytest.mark.parametrize(
    ("attrs", "op"),
    [
        ({}, "max"),
        ({"padding": (1, 1)}, "nn.max_pool1d"),
        ({"pool_size": (5,)}, "nn.max_pool1d"),
        ({"pool_size": (3,), "dilation": (2,)}, "nn.max_pool1d"),
    ],
    ids=str,
)
def test_the_maximum_of_a_whole_sequence_is_a_reduction(check, attrs, op):
    def build(b, x):
        return b.op("nn.max_pool1d", x, **{"pool_size": (6,), "strides": (1,), **attrs})

    assert check.ops(check(PASS, check.of(build, shape=(2, 3, 6)))) == [op]


def test_windows_over_the_edge_keep_their_number(check):
    for kind in ("avg", "max"):
        pooled(check, kind, before="nn.relu", ceil_mode=True)
        pooled(check, kind, before="nn.relu", ceil_mode=True, pads=(0, 0, 0, 0, 0, 0, 2, 2))


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 2, 0, 3)], ids=str)
@pytest.mark.parametrize("attrs", [{"count_include_pad": True}, {"count_include_pad": False}, {}], ids=str)
def test_a_window_that_reaches_beyond_its_image_ends_with_it(check, attrs, padding):
    kind = "avg" if attrs else "max"
    window = {"pool_size": (640, 9), "strides": (640, 3), "padding": padding, "ceil_mode": True, **attrs}

    def build(b, x):
        return b.op(f"nn.{kind}_pool2d", x, **window)

    after = check(PASS, check.of(build, shape=(2, 3, 7, 8)))
    rows, columns = 7 + padding[0] + padding[2], 8 + padding[1] + padding[3]
    assert after.bindings[-1].value.attrs["pool_size"] == (rows, min(9, columns))


def test_a_window_stays_beyond_an_image_without_elements():
    """Clipped to the padding of an axis of size 0 it would lie in that alone, which is no pool."""
    b = FunctionBuilder()
    window = {"pool_size": (2, 2), "strides": (2, 3), "padding": (0, 1, 1, 1), "ceil_mode": True}
    module = IRModule({"main": b.function(b.op("nn.avg_pool2d", b.input("x", (1, 1, 0, 3)), **window))})
    assert Canonicalize()(module)["main"].result_type == module["main"].result_type


@pytest.mark.parametrize(
    "attrs", [{"pool_size": (8,), "dilation": (2,)}, {"pool_size": (6,), "strides": (2,)}], ids=["dilated", "it fits"]
)
def test_other_windows_stay_as_long_as_they_are(check, attrs):
    def build(b, x):
        return b.op("nn.max_pool1d", x, **{"strides": (20,), "ceil_mode": True, **attrs})

    after = check(PASS, check.of(build, shape=(2, 3, 9)))
    assert after.bindings[-1].value.attrs["pool_size"] == attrs["pool_size"]


@settings(max_examples=80, deadline=None)
@given(modules(symbolic=True, max_ops=12))
def test_random_modules_keep_their_meaning(program):
    after = verify(Canonicalize()(program.module))
    assert_same_meaning(program.module, after, program.inputs)
    again = Canonicalize()(after)
    assert str(DeadCodeElimination()(again)) == str(DeadCodeElimination()(after)), "a second run changes nothing"


def test_long_chains_take_one_visit():
    b = FunctionBuilder()
    x = b.input("x", (2,))
    for _ in range(3000):
        x = b.op("add", b.op("reshape", x, shape=(2,)), 0.0)
    after = DeadCodeElimination()(Canonicalize()(IRModule({"main": b.function(x)})))
    assert not after["main"].bindings
