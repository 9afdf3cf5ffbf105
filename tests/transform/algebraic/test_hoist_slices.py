"""Products of which no more is computed than somebody reads."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.algebraic.hoist_slices import HoistSlices
from kernelyard.transform.pipelines import get_pipeline


class Network:
    """A function of one tensor in the making."""

    def __init__(self, *shape):
        self.b = FunctionBuilder()
        self.x = self.b.input("x", shape)
        self._rng = np.random.default_rng(0)

    def op(self, name, *operands, **attrs):
        return self.b.op(name, *operands, **attrs)

    def weight(self, *shape):
        return self._rng.standard_normal(shape, dtype=np.float32)

    def first(self, x, axis=1):
        return self.op("take", x, np.int64(0), axis=axis)

    def slice(self, x, axis, begin, end, stride=1):
        return self.op("strided_slice", x, axes=(axis,), begin=(begin,), end=(end,), strides=(stride,))

    def check(self, *results, **sizes):
        """The shapes of the products after the pass, which means the same."""
        module = verify(IRModule({"main": self.b.function(*results)}))
        after = verify(get_pipeline("clean")(HoistSlices()(module)))
        shape = [dims.evaluate(dim, sizes) for dim in self.x.tensor_type.shape]
        assert_same_meaning(module, after, [self._rng.standard_normal(shape, dtype=np.float32)])
        calls = [binding.value for binding in after["main"].bindings]
        return [call.tensor_type.shape for call in calls if call.op_name == "matmul"]


@pytest.mark.parametrize("batch", [2, dims.symbol("n")])
def test_the_first_row_of_a_feed_forward_block(batch):
    net = Network(batch, 9, 8)
    y = net.op("nn.gelu", net.op("add", net.op("matmul", net.x, net.weight(8, 16)), net.weight(16)))
    y = net.op("add", net.op("matmul", y, net.weight(16, 8)), net.x)
    y = net.op("nn.layer_norm", y, net.weight(8), net.weight(8), axes=(2,))
    assert net.check(net.first(y), n=3) == [(batch, 1, 16), (batch, 1, 8)]


def test_attention_of_which_one_row_is_read_has_one_query():
    net = Network(2, 9, 8)
    q, k, v = (
        net.op("permute_dims", net.op("reshape", y, shape=(2, 9, 2, 4)), axes=(0, 2, 1, 3))
        for y in (net.op("matmul", net.x, net.weight(8, 8)) for _ in range(3))
    )
    scores = net.op("matmul", q, net.op("permute_dims", k, axes=(0, 1, 3, 2)))
    weights = net.op("nn.softmax", net.op("add", scores, net.weight(1, 1, 9, 9)), axis=3)
    y = net.op("reshape", net.op("permute_dims", net.op("matmul", weights, v), axes=(0, 2, 1, 3)), shape=(2, 9, 8))
    shapes = net.check(net.slice(net.op("matmul", y, net.weight(8, 8)), 1, 8, 9))
    assert shapes == [(2, 1, 8), (2, 9, 8), (2, 9, 8), (2, 2, 1, 9), (2, 2, 1, 4), (2, 1, 8)]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_columns_that_a_gather_reads(is_repeated):
    """Relative positions: a row reads a window of a product with all positions."""
    net = Network(3, 4, 8)
    y = net.op("matmul", net.x, net.weight(3, 8, 40))
    indices = 20 + np.arange(4)[None, :, None] - np.arange(4)[None, None, :]
    if is_repeated:
        indices = net.op("broadcast_to", indices, shape=(3, 4, 4))
    else:
        indices = np.repeat(indices, 3, axis=0)
    assert net.check(net.op("gather_elements", y, indices, axis=2)) == [(3, 4, 7)]


def test_two_readers_share_what_both_read():
    net = Network(12, 8)
    y = net.op("tanh", net.op("matmul", net.x, net.weight(8, 6)))
    assert net.check(net.slice(y, 0, 2, 4), net.slice(y, 0, 3, 8, 2)) == [(6, 6)]


def test_a_part_of_a_part():
    net = Network(12, 8)
    y = net.op("matmul", net.slice(net.op("matmul", net.x, net.weight(8, 6)), 0, 4, 10), net.weight(6, 5))
    assert net.check(net.op("take", y, np.array([1, 2]), axis=0)) == [(6, 6), (2, 5)]


def test_rows_that_others_read_stay():
    net = Network(12, 8)
    y = net.op("matmul", net.x, net.weight(8, 6))
    assert net.check(net.first(y, 0), net.op("abs", y)) == [(12, 6)]


def test_most_rows_are_not_worth_a_copy():
    net = Network(12, 8)
    assert net.check(net.slice(net.op("matmul", net.x, net.weight(8, 6)), 0, 1, 12)) == [(12, 6)]


def test_a_softmax_along_the_axis_needs_all_of_it():
    net = Network(12, 8)
    y = net.op("nn.softmax", net.op("matmul", net.x, net.weight(8, 6)), axis=0)
    assert net.check(net.first(y, 0)) == [(12, 6)]


def test_rows_of_an_open_number_stay():
    net = Network(dims.symbol("n"), 8)
    y = net.op("matmul", net.x, net.weight(8, 6))
    assert net.check(net.first(y, 0), n=5) == [(dims.symbol("n"), 6)]


def test_indices_from_the_end():
    net = Network(12, 8)
    y = net.op("matmul", net.x, net.weight(8, 6))
    assert net.check(net.op("take", y, np.array([-2, -1, -3]), axis=0)) == [(3, 6)]


def test_a_reshape_that_mixes_rows_needs_all_of_them():
    net = Network(12, 8)
    y = net.op("reshape", net.op("matmul", net.x, net.weight(8, 6)), shape=(6, 12))
    assert net.check(net.first(y, 0)) == [(12, 6)]
