"""Memory descriptors: orders of dims, views of the same bytes, and copies that can be seen with another shape."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelyard_dnnl.layout import any_layout, channels_last, dense


def test_orders_of_dims():
    assert dense((2, 3, 4), "float32").strides == (12, 4, 1)
    assert channels_last((2, 3, 4, 5), "float32").strides == (60, 1, 15, 3)
    assert channels_last((2, 3, 4, 5), "float32").order == (0, 2, 3, 1)
    assert channels_last((2, 3, 1, 1), "float32").is_plain
    assert channels_last((1, 16, 9, 1), "float32").order == (0, 2, 3, 1)
    assert any_layout((2, 3), "float32").strides is None


def test_views_of_the_same_bytes():
    x = dense((2, 3, 4, 5), "float32")
    assert x.reshape((6, 20)) == dense((6, 20), "float32")
    moved = x.permute((0, 2, 3, 1))
    assert moved.shape == (2, 4, 5, 3)
    assert moved.reshape((2, 20, 3)).strides == (60, 1, 20)
    assert moved.reshape((2, 60)) is None
    assert not moved.is_plain
    assert moved.is_dense
    assert dense((2, 0, 3), "float32").reshape((0, 7)).shape == (0, 7)


@st.composite
def reshapes(draw):
    """A layout of a tensor and another shape of as many elements."""
    factors = draw(st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=6))
    shape, target = (tuple(map(math.prod, draw(splits(factors)))) for _ in range(2))
    return dense(shape, "float32", draw(st.permutations(range(len(shape))))), target


def splits(factors):
    """The list cut into runs, each of which is one dim."""
    places = st.lists(st.integers(0, len(factors)), unique=True, max_size=5).map(sorted)
    return places.map(lambda cuts: [factors[a:b] for a, b in itertools.pairwise([0, *cuts, len(factors)])])


@given(reshapes())
def test_a_copy_that_can_be_seen_with_another_shape(reshape):
    source, target = reshape
    copy = source.viewable_as(target)
    assert copy.is_dense
    view = copy.reshape(target)
    values = np.arange(math.prod(target), dtype=np.float32)
    memory = np.empty_like(values)
    strided(memory, copy)[...] = values.reshape(source.shape)
    np.testing.assert_array_equal(strided(memory, view), values.reshape(target))


def strided(memory, descriptor):
    strides = [4 * stride for stride in descriptor.strides]
    return np.lib.stride_tricks.as_strided(memory, descriptor.shape, strides)


def test_where_dims_stay_in_a_copy_that_is_reshaped():
    shuffled = channels_last((2, 12, 5, 6), "float32").reshape((2, 3, 4, 5, 6)).permute((0, 2, 1, 3, 4))
    assert shuffled.viewable_as((2, 12, 5, 6)) == dense((2, 4, 3, 5, 6), "float32", (0, 3, 4, 1, 2))
    heads = dense((2, 3, 4, 5), "float32").permute((0, 2, 1, 3))
    assert heads.viewable_as((2, 4, 15)).is_plain
    assert channels_last((2, 12, 5, 6), "float32").viewable_as((2, 360)).is_plain
    assert any_layout((2, 3), "float32").viewable_as((6,)).is_plain
