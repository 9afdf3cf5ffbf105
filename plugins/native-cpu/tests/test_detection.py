"""Kernels of detectors: samples in regions of interest, and boxes that suppress others."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard as ky
import kernelyard.ops
from kernelyard.dims import symbol
from kernelyard.ir import Call, FunctionBuilder, IRModule, TensorType, get_op


def compiled(name: str, inputs: list[np.ndarray], **attrs: Any) -> ky.Executable:
    """Compile one operator for inputs of these shapes with generated kernels alone; nothing is left to NumPy."""
    b = FunctionBuilder()
    operands = [b.input(f"x{n}", each.shape, str(each.dtype)) for n, each in enumerate(inputs)]
    exe = ky.compile(IRModule({"main": b.function(b.op(name, *operands, **attrs))}), backends=[])
    assert {each.backend for each in exe.report.nodes} == {"native-cpu"}
    return exe


# 32, 48 and 64 channels are 2 to 4 vectors: their tile of a whole row of cells is transposed before it is stored.
@pytest.mark.parametrize("channels", [1, 16, 32, 48, 64])
@pytest.mark.parametrize(("sizes", "samples", "mode"), [((7, 7), 2, "avg"), ((3, 8), 1, "avg"), ((2, 5), 2, "max")])
def test_roi_align(channels: int, sizes: tuple[int, int], samples: int, mode: str) -> None:
    rng = np.random.default_rng(channels)
    corners = rng.random((3, 4), dtype=np.float32) * 6 - 1
    corners[:, 2:] += corners[:, :2]
    inputs = [rng.standard_normal((2, channels, 6, 9), dtype=np.float32), corners, rng.integers(0, 2, 3)]
    attrs = {"sizes": sizes, "sampling_ratio": samples, "mode": mode, "half_pixel": True, "spatial_scale": 0.75}
    found = compiled("image.roi_align", inputs, **attrs)(*inputs).numpy()
    np.testing.assert_allclose(found, get_op("image.roi_align").reference(*inputs, **attrs), rtol=1e-4, atol=1e-5)


def test_indices_of_images_and_infinite_corners_touch_no_other_memory() -> None:
    inputs = [
        np.ones((2, 3, 4, 5), np.float32),
        np.array([[0, 0, 3, 3], [-np.inf, np.nan, np.inf, 9]], np.float32),
        np.array([7, -9], np.int64),
    ]
    found = compiled("image.roi_align", inputs, sizes=(2, 2), sampling_ratio=2)(*inputs).numpy()
    np.testing.assert_allclose(found[0], 1)


@st.composite
def sorted_boxes(draw: st.DrawFn) -> list[np.ndarray]:
    """Boxes on a small grid, so that many overlap and some are equal or empty, in groups."""
    count = draw(st.integers(1, 40))
    numbers = draw(st.lists(st.tuples(*[st.integers(0, 5)] * 4), min_size=count, max_size=count))
    boxes = np.asarray(numbers, np.float32)
    boxes[:, 2:] += boxes[:, :2]
    groups = np.sort(np.asarray(draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)), np.int64))
    overlap = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    return [boxes, groups, np.array(draw(st.integers(-1, 6)), np.int64), np.array(overlap, np.float32)]


@settings(deadline=None, max_examples=30)
@given(sorted_boxes())
def test_suppression(inputs: list[np.ndarray]) -> None:
    found = suppression()(*inputs).numpy()
    np.testing.assert_array_equal(found, get_op("image.suppress_boxes").reference(*inputs))


@cache
def suppression() -> ky.Executable:
    count = symbol("n")
    b = FunctionBuilder()
    operands = [b.input("boxes", (count, 4)), b.input("groups", (count,), "int64")]
    operands += [b.input("most", (), "int64"), b.input("overlap", ())]
    return ky.compile(IRModule({"main": b.function(b.op("image.suppress_boxes", *operands))}), backends=[])


@settings(deadline=None, max_examples=20)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 30),
    st.booleans(),
    st.sampled_from([-1.0, 0.3, 0.9, 2.0]),
    st.integers(0, 5),
    st.integers(0, 1 << 16),
)
def test_non_max_suppression(
    images: int, classes: int, boxes: int, is_centered: bool, least: float, most: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    inputs = [
        rng.integers(0, 8, (images, boxes, 4)).astype(np.float32),
        rng.random((images, classes, boxes), dtype=np.float32).round(1),  # equal scores keep their order
        *(np.array(value, dtype) for value, dtype in ((most, np.int64), (0.4, np.float32), (least, np.float32))),
    ]
    exe = non_max_suppression(is_centered)
    wanted = get_op("image.non_max_suppression").reference(*inputs, center_point_box=is_centered)
    np.testing.assert_array_equal(exe(*inputs).numpy(), wanted)
    on_host = {each.op for each in exe.report.nodes if each.backend in ("host", "reference")}
    assert on_host <= {"image.box_candidates", "tensor_to_shape"}


@cache
def non_max_suppression(is_centered: bool) -> ky.Executable:
    n, c, k = symbol("n"), symbol("c"), symbol("k")
    b = FunctionBuilder()
    operands = [b.input("boxes", (n, k, 4)), b.input("scores", (n, c, k)), b.input("most", (), "int64")]
    operands += [b.input("overlap", ()), b.input("least", ())]
    type_ = TensorType((symbol("kept") - 1, 3), "int64")
    attrs = {"center_point_box": is_centered}
    found = b.bind(Call(get_op("image.non_max_suppression"), operands, attrs, type_=type_))
    return ky.compile(IRModule({"main": b.function(found)}), backends=[])
