"""References against definitions written out in plain loops, and against values worked out by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard.errors import ExecutionError, ShapeError
from kernelyard.ir import get_op
from kernelyard.ops.numeric import erf
from kernelyard.ops.samples import floats
from kernelyard.testing.assertions import assert_allclose
from kernelyard.testing.op_cases import op_cases


def reference(name: str, *arrays: Any, **attrs: Any) -> Any:
    function = get_op(name).reference
    assert function is not None
    return function(*(np.asarray(array) for array in arrays), **attrs)


# --- windows, written out ----------------------------------------------------------------------------------------------
def naive_conv(x: np.ndarray, w: np.ndarray, out: tuple[int, ...], attrs: dict[str, Any]) -> np.ndarray:
    rank = x.ndim - 2
    result = np.zeros(out, np.float64)
    per_group, filters_per_group = w.shape[1], w.shape[0] // attrs["groups"]
    for n, o, *place in itertools.product(*map(range, out)):
        first = (o // filters_per_group) * per_group
        for c, *tap in itertools.product(range(per_group), *map(range, w.shape[2:])):
            at = [
                place[i] * attrs["strides"][i] + tap[i] * attrs["dilation"][i] - attrs["padding"][i]
                for i in range(rank)
            ]
            if all(0 <= p < size for p, size in zip(at, x.shape[2:], strict=True)):
                result[(n, o, *place)] += float(x[(n, first + c, *at)]) * float(w[(o, c, *tap)])
    return result


def naive_conv_transpose(x: np.ndarray, w: np.ndarray, out: tuple[int, ...], attrs: dict[str, Any]) -> np.ndarray:
    rank = x.ndim - 2
    result = np.zeros(out, np.float64)
    channels_per_group, per_group = x.shape[1] // attrs["groups"], w.shape[1]
    for n, c, *place in itertools.product(*map(range, x.shape)):
        first = (c // channels_per_group) * per_group
        for o, *tap in itertools.product(range(per_group), *map(range, w.shape[2:])):
            at = [
                place[i] * attrs["strides"][i] + tap[i] * attrs["dilation"][i] - attrs["padding"][i]
                for i in range(rank)
            ]
            if all(0 <= p < size for p, size in zip(at, out[2:], strict=True)):
                result[(n, first + o, *at)] += float(x[(n, c, *place)]) * float(w[(c, o, *tap)])
    return result


def naive_pool(x: np.ndarray, out: tuple[int, ...], attrs: dict[str, Any]) -> np.ndarray:
    rank = x.ndim - 2
    result = np.zeros(out, np.float64)
    for n, c, *place in itertools.product(*map(range, out)):
        inside, counted = [], 0
        for tap in itertools.product(*map(range, attrs["pool_size"])):
            at = [
                place[i] * attrs["strides"][i] + tap[i] * attrs["dilation"][i] - attrs["padding"][i]
                for i in range(rank)
            ]
            if all(0 <= p < size for p, size in zip(at, x.shape[2:], strict=True)):
                inside.append(float(x[(n, c, *at)]))
            ends = [size + pad for size, pad in zip(x.shape[2:], attrs["padding"][rank:], strict=True)]
            counted += all(p < end for p, end in zip(at, ends, strict=True))
        if "count_include_pad" not in attrs:
            result[(n, c, *place)] = max(inside)
        else:
            result[(n, c, *place)] = sum(inside) / (counted if attrs["count_include_pad"] else len(inside))
    return result


WINDOWED = [f"nn.{kind}{rank}d" for kind in ("max_pool", "avg_pool") for rank in (1, 2)]
WINDOWED += [f"nn.conv{rank}d{suffix}" for rank in (1, 2) for suffix in ("", "_transpose")]


# One dtype is enough for the definition.
WINDOWED_CASES = [case for case in op_cases(WINDOWED) if case.sample.inputs[0].dtype == np.float32]


@pytest.mark.parametrize("case", WINDOWED_CASES, ids=lambda case: case.id)
def test_windows_against_plain_loops(case: Any) -> None:
    (expected,) = case.expected()
    attrs = dict(case.op.check_attributes(case.sample.attributes))
    if "pool" in case.op.name:
        naive = naive_pool(case.inputs()[0], expected.shape, attrs)
    else:
        loops = naive_conv_transpose if "transpose" in case.op.name else naive_conv
        naive = loops(*case.inputs(), expected.shape, attrs)
    assert_allclose(expected, naive.astype(np.float32))


# --- elementwise ---------------------------------------------------------------------------------------------------------
@settings(max_examples=300, deadline=None)
@given(st.floats(-12, 12))
def test_erf_is_that_of_the_c_library(x: float) -> None:
    assert math.isclose(float(erf(np.array(x))), math.erf(x), rel_tol=1e-15, abs_tol=1e-300)


def test_erf_of_special_values() -> None:
    found = erf(np.array([np.inf, -np.inf, np.nan, -0.0]))
    assert found[0] == 1
    assert found[1] == -1
    assert np.isnan(found[2])
    assert np.signbit(found[3])


def test_integers_divide_towards_zero_and_remainders_follow_their_names() -> None:
    a, b = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    assert reference("divide", a, b).tolist() == [3, -3, -3, 3]
    assert reference("mod", a, b).tolist() == [1, 1, -1, -1]
    assert reference("fmod", a, b).tolist() == [1, -1, 1, -1]


def test_integer_powers_of_negative_exponents() -> None:
    assert reference("power", np.array([2, 1, -1, -1, 3]), np.array([-1, -5, -3, -2, 4])).tolist() == [0, 1, -1, 1, 81]


def test_halves_are_rounded_to_even() -> None:
    assert reference("round", np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])).tolist() == [-2, -2, 0, 0, 2, 2]


def test_clip_bounds_of_integers_are_limited_to_the_dtype() -> None:
    x = np.array([-128, 0, 127], np.int8)
    assert reference("clip", x, min=-1e9, max=float("inf")).tolist() == [-128, 0, 127]
    assert reference("clip", np.float32([0, 5]), min=4, max=1).tolist() == [1, 1]


def test_conversions() -> None:
    assert reference("astype", np.float32([-1.9, 1.9, 0.5]), dtype="int32").tolist() == [-1, 1, 0]
    assert reference("astype", np.float32([0.0, -0.0, 0.3, np.nan]), dtype="bool").tolist() == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("nn.gelu", 1.0, 0.8413447),
        ("nn.gelu_tanh", 1.0, 0.8411920),
        ("nn.silu", 1.0, 0.7310586),
        ("nn.mish", 1.0, 0.8650984),
        ("nn.hard_swish", 1.0, 2 / 3),
        ("nn.softplus", -100.0, 0.0),
        ("nn.softplus", 200.0, 200.0),
        ("nn.elu", -1.0, math.exp(-1) - 1),
        ("nn.selu", -1.0, 1.0507009873554805 * 1.6732632423543772 * (math.exp(-1) - 1)),
        ("sigmoid", -200.0, 0.0),
    ],
)
def test_activations_at_known_points(name: str, x: float, expected: float) -> None:
    assert float(reference(name, np.float32(x))) == pytest.approx(expected, rel=1e-6, abs=1e-30)


# --- moving data ---------------------------------------------------------------------------------------------------------
def test_slices_forwards_and_backwards() -> None:
    x = np.arange(10)
    assert reference("strided_slice", x, axes=(0,), begin=(1,), end=(8,), strides=(3,)).tolist() == [1, 4, 7]
    assert reference("strided_slice", x, axes=(0,), begin=(9,), end=(-1,), strides=(-4,)).tolist() == [9, 5, 1]
    assert reference("strided_slice", x, axes=(0,), begin=(-1,), end=(0,), strides=(-2,)).tolist() == []


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("constant", [9, 9, 1, 2, 3, 9]),
        ("edge", [1, 1, 1, 2, 3, 3]),
        ("reflect", [3, 2, 1, 2, 3, 2]),
        ("wrap", [2, 3, 1, 2, 3, 1]),
    ],
)
def test_padding_modes(mode: str, expected: list[int]) -> None:
    assert reference("pad", np.array([1, 2, 3]), pads=(2, 1), mode=mode, value=9.0).tolist() == expected


def test_negative_padding_crops() -> None:
    assert reference("pad", np.arange(6), pads=(-2, 1), value=7.0).tolist() == [2, 3, 4, 5, 7]
    assert reference("pad", np.arange(3), pads=(-2, -1)).tolist() == []


@given(size=st.integers(0, 4), before=st.integers(-7, 7), after=st.integers(-7, 7))
def test_cropping_beyond_an_axis_takes_off_what_the_other_side_adds(size: int, before: int, after: int) -> None:
    wide = [9] * max(before, 0) + list(range(size)) + [9] * max(after, 0)
    expected = wide[max(-before, 0) : max(len(wide) + min(after, 0), 0)]
    result = reference("pad", np.arange(size), pads=(before, after), value=9.0)
    assert result.tolist() == expected
    assert result.shape == (max(size + before + after, 0),)  # the type rule's


def test_the_mean_of_no_integers_is_zero() -> None:
    for dtype in ("int64", "int32", "uint8"):
        assert reference("mean", np.zeros((2, 0), dtype), axes=(1,), keepdims=False).tolist() == [0, 0]


def test_gather_nd_with_batches() -> None:
    data = np.arange(8).reshape(2, 2, 2)
    assert reference("gather_nd", data, [[1], [0]], batch_dims=1).tolist() == [[2, 3], [4, 5]]
    assert reference("gather_nd", data, [[0, 1, -1]]).tolist() == [3]
    with pytest.raises(ShapeError, match="other batch dims"):
        reference("gather_nd", data, [[1]], batch_dims=1)


def test_scatter_accumulates_repeated_positions() -> None:
    data, indices, updates = np.ones(4, np.float32), np.array([[1], [1], [3]]), np.float32([5, 7, 9])
    assert reference("scatter_nd", data, indices, updates, reduction="add").tolist() == [1, 13, 1, 10]
    assert reference("scatter_nd", data, indices, updates, reduction="mul").tolist() == [1, 35, 1, 9]
    assert reference("scatter_nd", data, indices, updates, reduction="max").tolist() == [1, 7, 1, 9]
    assert reference("scatter_nd", data, indices, updates, reduction="min").tolist() == [1, 1, 1, 1]


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError):
        reference("take", np.arange(3), np.array([3]))


def test_top_k_prefers_the_lower_index() -> None:
    values, indices = reference("topk", np.array([3, 1, 3, 2], np.uint8), k=3, axis=0)
    assert values.tolist() == [3, 3, 2]
    assert indices.tolist() == [0, 2, 3]
    assert reference("topk", np.array([3, 1, 3, 2]), k=2, axis=0, largest=False)[1].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("exclusive", "reverse", "expected"),
    [
        (False, False, [1, 3, 6]),
        (True, False, [0, 1, 3]),
        (False, True, [6, 5, 3]),
        (True, True, [5, 3, 0]),
    ],
)
def test_cumulative_sums(exclusive: bool, reverse: bool, expected: list[int]) -> None:
    assert reference("cumsum", np.array([1, 2, 3]), axis=0, exclusive=exclusive, reverse=reverse).tolist() == expected


def test_one_hot_wraps_negative_indices_and_leaves_out_others() -> None:
    assert reference("one_hot", np.array([-1, 5]), depth=3, dtype="int64").tolist() == [[0, 0, 1], [0, 0, 0]]


# --- statistics ----------------------------------------------------------------------------------------------------------
def test_sums_of_many_float32_are_not_lost() -> None:
    x = np.full(3_000_000, 0.1, np.float32)
    assert float(reference("sum", x)) == pytest.approx(3e5, rel=1e-6)
    assert float(reference("mean", x)) == pytest.approx(0.1, rel=1e-6)


def test_integer_sums_wrap_and_means_truncate() -> None:
    assert reference("sum", np.array([100, 100], np.int8)).tolist() == -56
    assert reference("mean", np.array([-1, -2])).tolist() == -1


def test_softmax_of_large_and_masked_values() -> None:
    assert_allclose(reference("nn.softmax", np.float32([1e4, 1e4]), axis=0), np.float32([0.5, 0.5]))
    assert reference("nn.softmax", np.float32([-np.inf, 3]), axis=0).tolist() == [0, 1]


def test_norms_have_unit_statistics() -> None:
    x = floats(4, 6, 5)
    ones, zeros = np.ones(5, np.float32), np.zeros(5, np.float32)
    normal = reference("nn.layer_norm", x, ones, zeros, axes=(2,), epsilon=0.0)
    assert np.abs(normal.mean(2)).max() < 1e-5
    assert np.abs(normal.std(2) - 1).max() < 1e-5
    scaled = reference("nn.rms_norm", x, ones, axes=(2,), epsilon=0.0)
    assert np.abs((scaled**2).mean(2) - 1).max() < 1e-5
    grouped = reference("nn.group_norm", x, np.ones(6, np.float32), np.zeros(6, np.float32), num_groups=6)
    instance = reference("nn.instance_norm", x, np.ones(6, np.float32), np.zeros(6, np.float32))
    assert_allclose(grouped, instance)


def test_lrn_against_its_definition() -> None:
    for case in op_cases(["nn.lrn"]):
        (x,) = case.inputs()
        a = case.op.check_attributes(case.sample.attributes)
        before, after = math.floor((a["size"] - 1) / 2), math.ceil((a["size"] - 1) / 2)
        expected = np.empty_like(x)
        for c in range(x.shape[1]):
            window = x[:, max(c - before, 0) : c + after + 1].astype(np.float64)
            expected[:, c] = x[:, c] / (a["bias"] + a["alpha"] / a["size"] * (window**2).sum(1)) ** a["beta"]
        assert_allclose(case.expected()[0], expected)


# --- resize --------------------------------------------------------------------------------------------------------------
ROW = np.float32([[[1, 2, 3, 4]]])


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, [1, 1, 2, 2, 3, 3, 4, 4]),
        ({"coordinate_transformation_mode": "half_pixel"}, [1, 1, 2, 2, 3, 3, 4, 4]),
        ({"method": "linear"}, [1, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4]),
        ({"method": "linear", "coordinate_transformation_mode": "asymmetric"}, [1, 1.5, 2, 2.5, 3, 3.5, 4, 4]),
        (
            {"method": "linear", "coordinate_transformation_mode": "align_corners"},
            [1, 1 + 3 / 7, 1 + 6 / 7, 1 + 9 / 7, 1 + 12 / 7, 1 + 15 / 7, 1 + 18 / 7, 4],
        ),
    ],
)
def test_resizing_to_twice_the_size(attrs: dict[str, Any], expected: list[float]) -> None:
    assert_allclose(reference("image.resize", ROW, sizes=(8,), **attrs), np.float32([[expected]]))


def test_cubic_resizing_keeps_a_straight_line_straight() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 12)
    found = reference("image.resize", x, sizes=(24,), method="cubic", cubic_coeff_a=-0.5)
    inner = (np.arange(24) + 0.5) / 2 - 0.5
    assert_allclose(found[0, 0, 4:-4], inner[4:-4].astype(np.float32))


def test_a_stated_scale_counts_more_than_the_ratio_of_sizes() -> None:
    exact = reference("image.resize", ROW, sizes=(5,), method="linear")
    stated = reference("image.resize", ROW, sizes=(5,), scales=(1.4,), method="linear")
    assert np.abs(exact - stated).max() > 1e-2


# --- sizes that data decide -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [(), (0,), (3, 0, 2), (1 << 40, 3)])
def test_a_shape_of_data_takes_no_memory(sizes: tuple[int, ...]) -> None:
    found = reference("tensor_to_shape", np.array(sizes, np.int64))
    assert found.shape == sizes
    assert found.dtype == np.bool_
    assert set(found.strides) <= {0}
    assert not found.flags.writeable


def test_no_size_is_negative() -> None:
    with pytest.raises(ExecutionError, match="negative"):
        reference("tensor_to_shape", np.array([3, -1]))


# --- boxes --------------------------------------------------------------------------------------------------------------
def test_the_boxes_of_a_group_come_one_after_another() -> None:
    boxes, most, overlap = np.ones((3, 4), np.float32), np.int64(2), np.float32(0.5)
    assert reference("image.suppress_boxes", boxes, np.array([4, 1, 1]), most, overlap).shape == (3,)
    with pytest.raises(ShapeError, match="one after another"):
        reference("image.suppress_boxes", boxes, np.array([1, 4, 1]), most, overlap)
