"""Scales per channel before and behind linear operators, folded into weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.ops.samples import floats
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform import DeadCodeElimination, FoldScaleAxis, Sequential, get_pipeline

N = dims.symbol("n")
PASS = Sequential([FoldScaleAxis(), DeadCodeElimination()])


def positive(*shape: int, seed: int = 1):
    return floats(*shape, low=0.5, high=2, seed=seed)


def image(rank: int):
    return (N, 4, 7, 6, 5)[: rank + 2]


# name: (shape of x, weight, attributes, op, channels of the result)
LINEARS = {
    "conv1d": (image(1), floats(8, 4, 3), {}, "nn.conv1d", 8),
    "conv2d": (image(2), floats(8, 4, 3, 3), {"padding": (1, 1, 1, 1)}, "nn.conv2d", 8),
    "conv2d grouped": (image(2), floats(6, 2, 3, 3), {"groups": 2}, "nn.conv2d", 6),
    "conv2d depthwise": (image(2), floats(8, 1, 3, 3), {"groups": 4}, "nn.conv2d", 8),
    "conv3d": (image(3), floats(8, 4, 2, 2, 2), {}, "nn.conv3d", 8),
    "conv2d_transpose": (image(2), floats(4, 8, 3, 3), {"strides": (2, 2)}, "nn.conv2d_transpose", 8),
    "conv2d_transpose grouped": (image(2), floats(4, 3, 3, 3), {"groups": 2}, "nn.conv2d_transpose", 6),
    "matmul": ((N, 4), floats(4, 8), {}, "matmul", 8),
    "matmul of batches": ((N, 3, 4), floats(3, 4, 8), {}, "matmul", 8),
    "matmul of a vector": ((4,), floats(4, 8), {}, "matmul", 8),
}


class Chain:
    """A linear operator, and constants shaped for the channels before and behind it."""

    def __init__(self, name: str) -> None:
        self.shape, self.weight, self.attrs, self.op, self.channels = LINEARS[name]
        self.b = FunctionBuilder()
        self.x = self.b.input("x", self.shape)

    def per_channel(self, vector: np.ndarray) -> np.ndarray:
        return vector if self.op == "matmul" else vector.reshape(-1, *[1] * (len(self.shape) - 2))

    def before(self, op: str, x, vector: np.ndarray):
        return self.b.op(op, x, self.per_channel(vector))

    def linear(self, x):
        return self.b.op(self.op, x, self.weight, **self.attrs)


@pytest.fixture(params=LINEARS)
def chain(request) -> Chain:
    return Chain(request.param)


# --- forward ----------------------------------------------------------------------------------------------------------
def test_a_scale_before_goes_into_the_weights(chain, check):
    y = chain.linear(chain.before("multiply", chain.x, floats(4, seed=2)))
    assert check.ops(check(PASS, chain.b.function(y))) == [chain.op]


def test_a_shift_before_stays(chain, check):
    y = chain.before("add", chain.before("multiply", chain.x, floats(4, low=0.5, seed=2)), floats(4, seed=3))
    assert check.ops(check(PASS, chain.b.function(chain.linear(y)))) == ["add", chain.op]


def test_positive_scales_pass_activations(chain, check):
    y = chain.before("subtract", chain.before("divide", chain.x, positive(4)), floats(4, seed=3))
    y = chain.b.op("nn.leaky_relu", chain.b.op("nn.relu", y), alpha=0.2)
    assert check.ops(check(PASS, chain.b.function(chain.linear(y)))) == [
        "add",
        "nn.relu",
        "nn.leaky_relu",
        chain.op,
    ]


def test_a_batch_norm_before_a_convolution(check):
    chain = Chain("conv2d")
    parameters = positive(4), floats(4, seed=2), floats(4, seed=3), positive(4, seed=4)
    y = chain.b.op("nn.batch_norm", chain.x, *parameters, epsilon=1e-3)
    after = check(PASS, chain.b.function(chain.linear(chain.b.op("nn.relu", y))))
    assert check.ops(after) == ["add", "nn.relu", "nn.conv2d"]


def test_channels_that_are_moved_on_the_way(check):
    b = FunctionBuilder()
    y = b.op("multiply", b.input("x", (N, 6, 4, 3)), positive(3))
    y = b.op("nn.max_pool2d", b.op("permute_dims", y, axes=(0, 3, 1, 2)), pool_size=(2, 2), strides=(2, 2))
    y = b.op("reshape", b.op("nn.avg_pool2d", y, pool_size=(1, 2)), shape=(N, 9))
    after = check(PASS, b.function(b.op("matmul", y, floats(9, 5))))
    assert check.ops(after) == ["permute_dims", "nn.max_pool2d", "nn.avg_pool2d", "reshape", "matmul"]


def test_all_scales_of_a_chain(check):
    """Pixels in 0..255 become numbers around 0, as models say it."""
    b = FunctionBuilder()
    y = b.op("divide", b.input("x", (N, 4, 7, 6)), np.float32(255))
    y = b.op("divide", b.op("subtract", y, floats(4, 1, 1)), positive(4, 1, 1))
    after = check(PASS, b.function(b.op("nn.conv2d", y, floats(8, 4, 3, 3))))
    assert check.ops(after) == ["add", "nn.conv2d"]


# --- backward ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_positive_scales_behind_a_relu(chain, check, with_bias):
    y = chain.linear(chain.x)
    if with_bias:
        y = chain.before("add", y, floats(chain.channels, seed=2))
    y = chain.before("multiply", chain.b.op("nn.relu", y), positive(chain.channels))
    expected = [chain.op, "add", "nn.relu"] if with_bias else [chain.op, "nn.relu"]
    assert check.ops(check(PASS, chain.b.function(y))) == expected


def test_a_shift_behind_a_relu_stays(check):
    chain = Chain("conv2d")
    y = chain.b.op("nn.relu", chain.linear(chain.x))
    parameters = positive(8), floats(8, seed=2), floats(8, seed=3), positive(8, seed=4)
    after = check(PASS, chain.b.function(chain.b.op("nn.batch_norm", y, *parameters, epsilon=1e-3)))
    assert check.ops(after) == ["nn.conv2d", "nn.relu", "add"]


def test_one_number_behind_pools_and_permutations(check):
    chain = Chain("conv2d")
    b = chain.b
    y = b.op("nn.avg_pool2d", chain.linear(chain.x), pool_size=(2, 2))
    y = b.op("multiply", b.op("permute_dims", y, axes=(0, 2, 3, 1)), -0.5)
    assert check.ops(check(PASS, b.function(y))) == ["nn.conv2d", "nn.avg_pool2d", "permute_dims"]


def test_a_scale_behind_a_sum_of_two_products(check):
    b = FunctionBuilder()
    x = b.input("x", (N, 6))
    left, right = b.op("matmul", x, floats(6, 8)), b.op("matmul", x, floats(6, 8, seed=1))
    y = b.op("multiply", b.op("nn.relu", b.op("subtract", left, right)), positive(8))
    assert check.ops(check(PASS, b.function(y))) == ["matmul", "matmul", "subtract", "nn.relu"]


def test_the_pipeline_folds_before_and_behind(check):
    chain = Chain("conv2d")
    y = chain.before("multiply", chain.x, positive(4))
    y = chain.before("add", chain.linear(y), floats(8, seed=2))
    y = chain.before("multiply", chain.b.op("nn.relu", y), positive(8))
    assert check.ops(check(get_pipeline("simplify"), chain.b.function(y))) == ["nn.conv2d", "add", "nn.relu"]


# --- what must stay ---------------------------------------------------------------------------------------------------
def forward(b, x, scale, op="nn.relu"):
    return b.op("nn.conv2d", b.op(op, b.op("multiply", x, scale)), floats(8, 4, 3, 3))


def backward(b, x, scale, weight=None):
    weight = floats(8, 4, 3, 3) if weight is None else weight
    return b.op("multiply", b.op("nn.relu", b.op("nn.conv2d", x, weight)), scale)


LEFT_ALONE = {
    "negative before a relu": lambda b, x: forward(b, x, -positive(4, 1, 1)),
    "negative behind a relu": lambda b, x: backward(b, x, -positive(8, 1, 1)),
    "another axis": lambda b, x: forward(b, x, positive(7, 1)),
    "another axis behind": lambda b, x: backward(b, x, positive(5, 1)),
    "whole image": lambda b, x: forward(b, x, positive(4, 7, 6)),
    "operator that is not homogeneous": lambda b, x: forward(b, x, positive(4, 1, 1), op="sigmoid"),
    "not a number": lambda b, x: forward(b, x, np.float32("nan")),
    "infinite": lambda b, x: backward(b, x, np.float32("inf")),
    "weights that overflow": lambda b, x: backward(b, x, 1e12, np.float32(1e30) * positive(8, 4, 3, 3)),
    "bias that overflows": lambda b, x: b.op(
        "multiply", b.op("nn.relu", b.op("add", b.op("nn.conv2d", x, floats(8, 4, 3, 3)), np.float32(1e30))), 1e12
    ),
    "scales that lose digits": lambda b, x: forward(b, x, np.float32(1e-30)),
    "zero with a shift": lambda b, x: b.op(
        "nn.conv2d",
        b.op("add", b.op("multiply", x, np.float32([0, 1, 2, 3]).reshape(4, 1, 1)), 1.0),
        floats(8, 4, 3, 3),
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(check, name):
    function = check.of(LEFT_ALONE[name], shape=(2, 4, 7, 6))
    with np.errstate(all="ignore"):
        assert PASS(IRModule({"main": function}))["main"] is function


def test_values_that_others_read_stay(check):
    b = FunctionBuilder()
    x = b.op("multiply", b.input("x", (N, 4, 7, 6)), positive(4, 1, 1))
    y = b.op("nn.relu", b.op("nn.conv2d", x, floats(8, 4, 3, 3)))
    function = b.function(b.op("multiply", y, positive(8, 1, 1)), x, y)
    assert check(PASS, function) is function


def test_weights_that_others_read_stay(check):
    b = FunctionBuilder()
    x, weight = b.input("x", (N, 4, 7, 6)), floats(8, 4, 3, 3)
    function = b.function(backward(b, x, positive(8, 1, 1), weight), b.op("nn.conv2d", b.op("exp", x), weight))
    assert check(PASS, function) is function


def test_a_value_that_is_added_to_itself(check):
    b = FunctionBuilder()
    y = b.op("matmul", b.input("x", (N, 4)), floats(4, 8))
    function = b.function(b.op("multiply", b.op("nn.relu", b.op("add", y, y)), positive(8)))
    assert check(PASS, function) is function


def test_numbers_of_16_bits_stay(check):
    b = FunctionBuilder()
    y = b.op("matmul", b.input("x", (N, 4), "float16"), floats(4, 8, dtype="float16"))
    function = b.function(b.op("multiply", b.op("nn.relu", y), np.float16(2)))
    assert check(PASS, function) is function


# --- any chain --------------------------------------------------------------------------------------------------------
SCALES = st.lists(st.floats(-4, 4, width=32), min_size=4, max_size=4)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["multiply", "add", "subtract"]), SCALES),
    st.tuples(st.just("divide"), st.lists(st.floats(0.25, 4, width=32), min_size=4, max_size=4)),
    st.tuples(st.sampled_from(["multiply", "divide"]), st.floats(0.25, 4, width=32).map(lambda v: [v])),
    st.sampled_from(["nn.relu", "nn.leaky_relu", "negative", "linear", "pool", "turn", "both"]).map(lambda n: (n, [])),
)


@pytest.mark.parametrize("kind", ["matmul", "conv2d"])
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, min_size=2, max_size=9), data=st.data())
def test_random_chains_keep_their_meaning(kind, steps, data):
    b = FunctionBuilder()  # of float64, whose results are close even where terms of a sum cancel
    y = x = b.input("x", (N, 4) if kind == "matmul" else (N, 4, 4, 4), "float64")
    for seed, (name, numbers) in enumerate([*steps, ("linear", [])]):
        y = _applied(b, kind, name, numbers, y, seed)
    results = [y, x] if data.draw(st.booleans()) else [y]
    before = verify(IRModule({"main": b.function(*results)}))
    after = verify(PASS(before))
    shape = (3, *(int(size) for size in x.tensor_type.shape[1:]))
    assert_same_meaning(before, after, [floats(*shape, seed=7, dtype="float64")])
    assert len(after["main"].bindings) <= len(before["main"].bindings)  # pyright: ignore[reportAttributeAccessIssue]


def _applied(b: FunctionBuilder, kind: str, name: str, numbers: list[float], x, seed: int):
    if name == "linear":
        op, shape = ("matmul", (4, 4)) if kind == "matmul" else ("nn.conv2d", (4, 4, 1, 1))
        return b.op(op, x, floats(*shape, seed=seed, dtype="float64"))
    if name == "both":
        return b.op("add", _applied(b, kind, "linear", [], x, seed), _applied(b, kind, "linear", [], x, seed + 100))
    if name == "pool":
        return x if kind == "matmul" else b.op("nn.max_pool2d", x, pool_size=(3, 3), padding=(1, 1, 1, 1))
    if name == "turn":
        return x if kind == "matmul" else b.op("permute_dims", x, axes=(0, 2, 1, 3))
    if numbers:
        vector = np.asarray(numbers, np.float64)
        return b.op(name, x, vector if kind == "matmul" else vector.reshape(-1, 1, 1))
    return b.op(name, x)
