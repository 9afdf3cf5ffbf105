"""Strides of pointwise convolutions that move to what computes their images."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.algebraic.hoist_strides import HoistStrides
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

PASS = Sequential([HoistStrides(), DeadCodeElimination()])


class Image:
    """A function of one image in the making."""

    def __init__(self, *shape):
        self.b = FunctionBuilder()
        self.x = self.b.input("x", shape)
        self._rng = np.random.default_rng(0)

    def conv(self, x, channels, kernel, stride=1, padding=None, **attrs):
        data, spatial = x.tensor_type.shape, x.tensor_type.rank - 2
        weight = self._rng.standard_normal((channels, data[1], *[kernel] * spatial), dtype=np.float32)
        padding = kernel // 2 if padding is None else padding
        window = {"strides": (stride,) * spatial, "padding": (padding,) * (2 * spatial)}
        return self.b.op(f"nn.conv{spatial}d", x, weight, **{**window, **attrs})

    def relu(self, x):
        return self.b.op("nn.relu", x)

    def check(self, *results, **sizes):
        """The module after the pass, which means the same."""
        module = verify(IRModule({"main": self.b.function(*results)}))
        after = verify(PASS(module))
        shape = [dims.evaluate(dim, sizes) for dim in self.x.tensor_type.shape]
        assert_same_meaning(module, after, [self._rng.standard_normal(shape, dtype=np.float32)])
        return after, [_described(binding.value) for binding in after["main"].bindings]


def _described(call):
    return (call.op_name, *call.attrs["strides"]) if "strides" in call.attrs else call.op_name


@pytest.mark.parametrize("size", [8, 7, 6])
@pytest.mark.parametrize("padding", [0, 1])
def test_a_chain(size, padding):
    image = Image(2, 3, size, size)
    y = image.relu(image.conv(image.x, 4, 3, padding=padding))
    _, ops = image.check(image.conv(y, 5, 1, stride=2))
    assert ops == [("nn.conv2d", 2, 2), "nn.relu", ("nn.conv2d", 1, 1)]


def test_a_chain_of_pointwise_convolutions_ends_at_the_first_that_is_not():
    image = Image(1, 3, 9, 8)
    y = image.conv(image.conv(image.conv(image.x, 4, 3, stride=2), 4, 1), 4, 1, stride=2)
    _, ops = image.check(image.conv(y, 5, 1, stride=2))
    assert ops == [("nn.conv2d", 8, 8), ("nn.conv2d", 1, 1), ("nn.conv2d", 1, 1), ("nn.conv2d", 1, 1)]


@pytest.mark.parametrize("spatial", [(9,), (5, 6, 7)])
def test_other_ranks(spatial):
    image = Image(1, 2, *spatial)
    _, ops = image.check(image.conv(image.relu(image.conv(image.x, 3, 3)), 2, 1, stride=2))
    twos, ones = (2,) * len(spatial), (1,) * len(spatial)
    assert ops == [(f"nn.conv{len(spatial)}d", *twos), "nn.relu", (f"nn.conv{len(spatial)}d", *ones)]


def test_a_shrinking_block_of_resnet_v1():
    """Both branches shrink by two at their pointwise convolutions: what is before them does, and the residual too."""
    image = Image(1, 8, 10, 10)
    x = image.relu(image.x)
    y = image.relu(image.conv(x, 4, 1))
    y = image.relu(image.conv(y, 4, 3))
    y = image.relu(image.b.op("add", image.conv(y, 8, 1), x))
    left = image.conv(image.relu(image.conv(y, 4, 1, stride=2)), 16, 3)
    _, ops = image.check(image.relu(image.b.op("add", left, image.conv(y, 16, 1, stride=2))))
    convolutions = [op[1] for op in ops if isinstance(op, tuple) and op[0] == "nn.conv2d"]
    assert convolutions == [1, 2, 1, 1, 1, 1]
    assert ops.count(("strided_slice", 2, 2)) == 1


def test_a_pool_takes_a_stride_over():
    image = Image(1, 3, 12, 11)
    pooled = image.b.op("nn.max_pool2d", image.x, pool_size=(3, 3), padding=(1, 1, 1, 1))
    _, ops = image.check(image.conv(pooled, 4, 1, stride=3))
    assert ops == [("nn.max_pool2d", 3, 3), ("nn.conv2d", 1, 1)]


def test_readers_with_other_strides_get_the_common_part():
    image = Image(1, 3, 13, 13)
    y = image.conv(image.x, 4, 3)
    _, ops = image.check(image.conv(y, 4, 1, stride=2), image.conv(y, 5, 1, stride=4))
    assert ops == [("nn.conv2d", 2, 2), ("nn.conv2d", 1, 1), ("nn.conv2d", 2, 2)]


def test_operands_that_broadcast_are_sliced_where_they_have_pixels():
    image = Image(2, 3, 6, 8)
    y = image.conv(image.x, 4, 3)
    rng = np.random.default_rng(1)
    for shape in ((4, 1, 1), (4, 6, 1), (6, 8), (8,), ()):
        y = image.b.op("multiply", y, rng.standard_normal(shape).astype(np.float32))
    _, ops = image.check(image.conv(y, 2, 1, stride=2))
    assert ops.count(("nn.conv2d", 2, 2)) == 1
    assert [op for op in ops if op[0] == "strided_slice"] == [
        ("strided_slice", 2),
        ("strided_slice", 2, 2),
        ("strided_slice", 2),
    ]


@pytest.mark.parametrize(
    "other",
    [
        lambda image, y: y,
        lambda image, y: image.conv(y, 2, 3, stride=2),
        lambda image, y: image.b.op("mean", y, axes=(2, 3)),
    ],
    ids=["result", "convolution", "mean"],
)
def test_nothing_moves_where_all_pixels_are_read(other):
    image = Image(1, 3, 8, 8)
    y = image.relu(image.conv(image.x, 4, 3))
    _, ops = image.check(image.conv(y, 4, 1, stride=2), other(image, y))
    assert ops[:3] == [("nn.conv2d", 1, 1), "nn.relu", ("nn.conv2d", 2, 2)]


def test_nothing_moves_where_nothing_would_be_saved():
    """An activation of a parameter would be computed on fewer pixels, at the price of a copy."""
    image = Image(1, 3, 8, 8)
    _, ops = image.check(image.conv(image.relu(image.x), 4, 1, stride=2))
    assert ops == ["nn.relu", ("nn.conv2d", 2, 2)]


def test_padding_and_unknown_sizes_stay():
    image = Image(1, 3, 8, 8)
    _, ops = image.check(image.conv(image.conv(image.x, 4, 3), 4, 1, stride=2, padding=1))
    assert ops == [("nn.conv2d", 1, 1), ("nn.conv2d", 2, 2)]
    image = Image(1, 3, dims.symbol("h"), 8)
    _, ops = image.check(image.conv(image.conv(image.x, 4, 3), 4, 1, stride=2), h=7)
    assert ops == [("nn.conv2d", 1, 1), ("nn.conv2d", 2, 2)]


def test_the_batch_may_be_unknown():
    image = Image(dims.symbol("n"), 3, 8, 8)
    _, ops = image.check(image.conv(image.conv(image.x, 4, 3), 4, 1, stride=2), n=2)
    assert ops == [("nn.conv2d", 2, 2), ("nn.conv2d", 1, 1)]


def random_network(seed):
    """Images of a few sizes, made of each other by whatever fits; some of them are results."""
    rng = np.random.default_rng(seed)
    image = Image(int(rng.integers(1, 3)), 2, *map(int, rng.integers(9, 14, 2)))
    values = [image.x]
    for _ in range(rng.integers(4, 14)):
        x = values[rng.integers(max(0, len(values) - 4), len(values))]
        shape = x.tensor_type.shape
        kind = rng.choice(["pointwise", "conv", "relu", "add", "scale", "pool"], p=[0.35, 0.15, 0.15, 0.2, 0.1, 0.05])
        if kind == "pointwise":
            values.append(image.conv(x, 2, 1, stride=int(rng.integers(1, 4))))
        elif kind == "conv":
            values.append(image.conv(x, 2, 3, stride=int(rng.integers(1, 3))))
        elif kind == "add":
            fitting = [value for value in values if value.tensor_type.shape == shape]
            values.append(image.b.op("add", x, fitting[rng.integers(len(fitting))]))
        elif kind == "scale":
            axes = rng.integers(0, 2, 4)
            constant = rng.standard_normal([size if keep else 1 for size, keep in zip(shape, axes, strict=True)])
            values.append(image.b.op("multiply", x, constant.astype(np.float32)))
        elif kind == "pool" and min(shape[2:]) > 1:
            values.append(image.b.op("nn.max_pool2d", x, pool_size=(2, 2), padding=(0, 1, 1, 0)))
        else:
            values.append(image.relu(x))
    count = int(rng.integers(1, 3))
    results = [values[-1], *(values[i] for i in rng.integers(1, len(values), count - 1))]
    return image, list(dict.fromkeys(results))


def work(module):
    """The elements that convolutions make."""
    calls = [b.value for b in module["main"].bindings if b.value.op_name.startswith("nn.conv")]
    return sum(int(np.prod(call.tensor_type.shape)) for call in calls)


def test_random_networks_keep_their_meaning_and_get_no_larger():
    moved = 0
    for seed in range(150):
        image, results = random_network(seed)
        before = DeadCodeElimination()(IRModule({"main": image.b.function(*results)}))
        after, _ = image.check(*results)
        assert work(after) <= work(before)
        moved += work(after) < work(before)
    assert moved > 15, "programs in which nothing moves would prove nothing"
