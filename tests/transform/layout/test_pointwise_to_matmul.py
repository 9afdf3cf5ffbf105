"""Pointwise convolutions of sequences, between transposes, that become matrix products."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder
from kernelyard.transform.layout.pointwise_to_matmul import PointwiseToMatmul

FIRST = (0, 2, 1)
N, LENGTH = dims.symbol("n"), dims.symbol("length")
SIZES = [(2, 5), (N, LENGTH)]


class Network:
    """A function of a sequence of `channels` in the making."""

    def __init__(self, batch=2, length=5, channels=8):
        self.b = FunctionBuilder()
        self.x = self.b.input("x", (batch, length, channels))
        self._rng = np.random.default_rng(0)

    def op(self, name, *operands, **attrs):
        return self.b.op(name, *operands, **attrs)

    def weight(self, *shape):
        return self._rng.standard_normal(shape, dtype=np.float32)

    def transpose(self, x):
        return self.op("permute_dims", x, axes=FIRST)

    def conv(self, x, channels, groups=1, kernel=1, **attrs):
        weight = self.weight(channels, x.tensor_type.shape[1] // groups, kernel)
        y = self.op("nn.conv1d", x, weight, groups=groups, **attrs)
        return self.op("add", y, self.weight(1, channels, 1))

    def split(self, x):
        """Channels as two heads."""
        batch, channels, length = x.tensor_type.shape
        return self.op("reshape", x, shape=(batch, 2, channels // 2, length))

    def join(self, x):
        batch, heads, channels, length = x.tensor_type.shape
        return self.op("reshape", x, shape=(batch, heads * channels, length))


@pytest.mark.parametrize(("batch", "length"), SIZES)
def test_a_feed_forward_block_needs_no_transposes(check, batch, length):
    net = Network(batch, length)
    x = net.transpose(net.x)
    y = net.op("add", net.conv(net.op("nn.gelu", net.conv(x, 16)), 8), x)
    y = net.op("nn.layer_norm", net.transpose(y), net.weight(8), net.weight(8), axes=(2,))
    ops = check.ops(check.clean(PointwiseToMatmul(), net.b.function(y)))
    assert ops == ["matmul", "add", "nn.gelu", "matmul", "add", "add", "nn.layer_norm"]


@pytest.mark.parametrize(("batch", "length"), SIZES)
def test_groups_are_a_batch_and_stay_apart_from_product_to_product(check, batch, length):
    net = Network(batch, length)
    x = net.transpose(net.x)
    y = net.op("add", net.conv(net.op("nn.gelu", net.conv(x, 16, groups=4)), 8, groups=4), x)
    function = check.clean(PointwiseToMatmul(), net.b.function(net.transpose(y)))
    ops = check.ops(function)
    assert "nn.conv1d" not in ops
    assert ops.count("permute_dims") == 2
    assert [b.value.tensor_type.shape for b in function.bindings if b.value.op_name == "matmul"] == [
        (4, batch * length, 4),
        (4, batch * length, 2),
    ]


def test_other_groups_than_those_before(check):
    net = Network()
    y = net.conv(net.conv(net.conv(net.transpose(net.x), 16, groups=4), 8, groups=2), 8)
    ops = check.ops(check.clean(PointwiseToMatmul(), net.b.function(net.transpose(y))))
    assert ops.count("matmul") == 3
    assert "nn.conv1d" not in ops


@pytest.mark.parametrize(("batch", "length"), SIZES)
@pytest.mark.parametrize(
    ("groups", "permutations"),
    [
        (1, [(0, 2, 1, 3), (0, 2, 1, 3), (0, 2, 1, 3), (0, 2, 3, 1)]),
        (2, [(0, 2, 1, 3), (1, 0, 2, 3), (1, 0, 2, 3), (1, 0, 3, 2)]),  # a group is a head: it is moved once
    ],
)
def test_attention_over_channels_first(check, batch, length, groups, permutations):
    """Heads are split off the channels, and joined again, as SqueezeBERT does."""
    net = Network(batch, length)
    x = net.transpose(net.x)
    q, k, v = (net.split(net.conv(x, 8, groups)) for _ in range(3))
    q, v = (net.op("permute_dims", y, axes=(0, 1, 3, 2)) for y in (q, v))
    weights = net.op("nn.softmax", net.op("matmul", q, k), axis=3)
    y = net.join(net.op("permute_dims", net.op("matmul", weights, v), axes=(0, 1, 3, 2)))
    y = net.transpose(net.op("add", net.conv(y, 8), x))
    function = check.clean(PointwiseToMatmul(), net.b.function(y))
    ops = check.ops(function)
    assert "nn.conv1d" not in ops
    axes = [b.value.attrs["axes"] for b in function.bindings if b.value.op_name == "permute_dims"]
    assert sorted(a for a in axes if len(a) == 4) == permutations
    assert FIRST not in axes


def not_transposed_before(net):
    return net.transpose(net.conv(net.x, 8))


def not_transposed_behind(net):
    return net.op("nn.relu", net.conv(net.transpose(net.x), 16))


def with_a_wide_window(net):
    return net.transpose(net.conv(net.transpose(net.x), 8, kernel=3))


def with_strides(net):
    return net.transpose(net.conv(net.transpose(net.x), 8, strides=(2,)))


def padded(net):
    return net.transpose(net.conv(net.transpose(net.x), 8, padding=(1, 1)))


@pytest.mark.parametrize(
    "build", [not_transposed_before, not_transposed_behind, with_a_wide_window, with_strides, padded]
)
def test_what_stays_a_convolution(check, build):
    net = Network()
    ops = check.ops(check.clean(PointwiseToMatmul(), net.b.function(build(net))))
    assert ops.count("nn.conv1d") == 1
    assert "matmul" not in ops


def test_a_result_that_is_read_in_both_orders_stays(check):
    net = Network()
    y = net.conv(net.transpose(net.x), 8)
    function = net.b.function(net.transpose(y), net.op("nn.relu", y))
    assert check.ops(check.clean(PointwiseToMatmul(), function)).count("nn.conv1d") == 1


@pytest.mark.parametrize("shape", [(5,), (2, 1, 5), (2, 8, 5)])
def test_a_constant_for_each_place_stays_behind_the_transpose(check, shape):
    net = Network()
    y = net.op("multiply", net.conv(net.transpose(net.x), 8), net.weight(*shape))
    ops = check.ops(check.clean(PointwiseToMatmul(), net.b.function(net.transpose(y))))
    assert ops.count("matmul") == 1


@pytest.mark.parametrize("groups", [1, 4])
def test_scalars_and_operands_of_each_channel(check, groups):
    net = Network()
    scale = net.b.input("scale", ())
    y = net.op("multiply", net.conv(net.transpose(net.x), 8, groups), np.float32(0.5))
    y = net.op("multiply", net.op("nn.prelu", y, net.weight(8, 1)), scale)
    ops = check.ops(check.clean(PointwiseToMatmul(), net.b.function(net.transpose(y))))
    assert "nn.conv1d" not in ops
