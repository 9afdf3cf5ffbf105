"""Dequantization behind data movement: each row of the table fires, and refuses where a parameter is off by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard.ir import Expr, Function, FunctionBuilder, TensorType, Tuple
from kernelyard.ops.samples import floats, integers
from kernelyard.transform import DeadCodeElimination, PropagateDequantize, Sequential
from kernelyard.transform.quantization.quantized_movement import MOVEMENTS

SCALE, ZERO = np.float32(0.25), np.uint8(3)
PASS = Sequential([PropagateDequantize(), DeadCodeElimination()])
INDICES = np.array([[0, 2], [1, 1]], np.int64)
POOL = {"pool_size": (2, 2), "strides": (2, 2), "padding": (1, 0, 1, 0)}

# An operator with what it is called with beside the data of shape (2, 3, 4, 5), and with which axis of scales it goes.
ROWS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], int | None]] = {
    "reshape": ("reshape", (), {"shape": (2, 3, 20)}, 1),
    "permute_dims": ("permute_dims", (), {"axes": (0, 2, 3, 1)}, 1),
    "broadcast_to": ("broadcast_to", (), {"shape": (6, 2, 3, 4, 5)}, 1),
    "tile": ("tile", (), {"repeats": (1, 1, 2, 1)}, 1),
    "strided_slice": ("strided_slice", (), {"axes": (2,), "begin": (1,), "end": (3,), "strides": (1,)}, 1),
    "flip": ("flip", (), {"axes": (3,)}, 1),
    "take": ("take", (INDICES,), {"axis": 2}, 1),
    "gather_elements": ("gather_elements", (np.zeros((2, 3, 1, 5), np.int64),), {"axis": 2}, None),
    "gather_nd": ("gather_nd", (np.array([[0, 1], [1, 2]], np.int64),), {}, None),
    "split": ("split", (), {"axis": 2, "sections": (1, 3)}, 1),
    "concat": ("concat", (), {"axis": 2}, 1),
    "pad": ("pad", (), {"pads": (0, 0, 1, 1, 0, 0, 2, 0), "value": -0.5}, None),
    "image.resize": ("image.resize", (), {"sizes": (8, 7)}, 1),
    "nn.max_pool2d": ("nn.max_pool2d", (), POOL, 1),
    "max": ("max", (), {"axes": (2,), "keepdims": True}, None),
    "min": ("min", (), {"axes": (1, 3), "keepdims": False}, None),
}
SAME_RANK = {"nn.max_pool1d": "nn.max_pool2d", "nn.max_pool3d": "nn.max_pool2d"}


def moved(
    row: str,
    scale: Any = SCALE,
    zero: Any = ZERO,
    back: tuple[Any, Any] | None = None,
    along: int | None = None,
    **changed: Any,
) -> Function:
    """A function that dequantizes, calls the operator, and quantizes again, by default with the same parameters."""
    op, others, attrs, _ = ROWS[row]
    b = FunctionBuilder()
    x = b.parameter(TensorType((2, 3, 4, 5), "uint8"), "x")
    data = b.op("dequantize", x, scale, zero, axis=along)
    operands = [data, b.op("dequantize", x, scale, zero, axis=along)] if op == "concat" else [data, *others]
    if op == "split":
        whole = b.op(op, *operands, **{**attrs, **changed})
        results = [b.get(whole, index) for index in range(2)]
    else:
        results = [b.op(op, *operands, **{**attrs, **changed})]
    back = back or (scale, zero)
    stored: list[Expr] = [b.op("quantize", y, *back, dtype="uint8") for y in results]
    return b.function(Tuple(stored) if len(stored) > 1 else stored[0])


def inputs() -> list[np.ndarray]:
    return [integers(2, 3, 4, 5, dtype="uint8", low=0, high=255)]


def test_every_row_of_the_table_is_here():
    assert {SAME_RANK.get(name, name) for name in MOVEMENTS} == set(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_stored_numbers_are_moved(check, row):
    after = check(PASS, moved(row), inputs())
    assert check.ops(after) == [ROWS[row][0]]


@pytest.mark.parametrize("row", [row for row in ROWS if row != "pad"])
@pytest.mark.parametrize("back", [(np.float32(0.26), ZERO), (SCALE, np.uint8(4))], ids=["scale", "zero point"])
def test_other_parameters_are_applied(check, row, back):
    after = check(PASS, moved(row, back=back), inputs())
    assert check.ops(after)[:2] == [ROWS[row][0], "dequantize"]
    assert "quantize" in check.ops(after)


@pytest.mark.parametrize("row", [row for row, (*_, axis) in ROWS.items() if axis is not None])
def test_scales_go_along_with_their_axis(check, row):
    after = check(PASS, moved(row, floats(3, low=0.1, high=1), back=(SCALE, ZERO), along=1), inputs())
    assert check.ops(after)[:2] == [ROWS[row][0], "dequantize"]


# --- refusals ---------------------------------------------------------------------------------------------------------
CUT = {
    "reshape": {"shape": (6, 4, 5)},
    "strided_slice": {"axes": (1,), "begin": (0,), "end": (2,), "strides": (1,)},
    "flip": {"axes": (1,)},
    "tile": {"repeats": (1, 2, 1, 1)},
    "take": {"axis": 1},
    "concat": {"axis": 1},
    "split": {"axis": 1, "sections": (1, 2)},
    "gather_elements": {},
    "gather_nd": {},
    "max": {},
    "min": {},
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    **{
        f"{row} along the axis of scales": (row, {"scale": floats(3), "along": 1, **changed}, "does not stay an axis")
        for row, changed in CUT.items()
    },
    **{f"{row} of a negative scale": (row, {"scale": -SCALE}, "positive") for row in ("nn.max_pool2d", "max", "min")},
    "linear resize": ("image.resize", {"method": "linear"}, "linear interpolation computes"),
    "a padding between two stored numbers": ("pad", {"value": -0.6}, "no stored number"),
    "a padding beyond the stored numbers": ("pad", {"value": -1.0}, "no stored number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(check, case, caplog):
    row, changed, reason = REFUSED[case]
    function = moved(row, back=(SCALE, ZERO), **changed)
    with caplog.at_level("DEBUG", "kernelyard.transform.quantization.propagate_dequantize"):
        after = check(PASS, function, inputs())
    assert check.ops(after)[0] == "dequantize"
    assert reason in caplog.text


def test_16_bits_are_not_pooled(check, caplog):
    b = FunctionBuilder()
    x = b.op("dequantize", b.parameter(TensorType((1, 2, 6, 6), "int16"), "x"), SCALE, np.int16(3))
    pooled = b.op("nn.max_pool2d", x, **POOL)
    with caplog.at_level("DEBUG", "kernelyard.transform.quantization.propagate_dequantize"):
        after = check(PASS, b.function(pooled))
    assert check.ops(after) == ["dequantize", "nn.max_pool2d"]
    assert "more than 8 bits" in caplog.text


def test_operands_of_different_scales_are_not_concatenated_as_they_are(check, caplog):
    b = FunctionBuilder()
    x = b.parameter(TensorType((2, 3), "uint8"), "x")
    parts = [b.op("dequantize", x, np.float32(scale), ZERO) for scale in (0.5, 0.25)]
    with caplog.at_level("DEBUG", "kernelyard.transform.quantization.propagate_dequantize"):
        after = check(PASS, b.function(b.op("concat", *parts, axis=0)))
    assert check.ops(after) == ["dequantize", "dequantize", "concat"]
    assert "the scales differ" in caplog.text


def test_parts_of_different_scales_are_stored_alike_before_a_concat(check):
    b = FunctionBuilder()
    x = b.parameter(TensorType((2, 3), "uint8"), "x")
    parts = [b.op("dequantize", x, np.float32(scale), ZERO) for scale in (0.5, 0.25)]
    whole = b.op("concat", *parts, axis=0)
    after = check(PASS, b.function(b.op("quantize", whole, np.float32(0.25), ZERO, dtype="uint8")))
    assert check.ops(after) == ["dequantize", "quantize", "concat"]  # the second part is stored so already


def test_parts_that_are_computed_are_stored_after_a_concat(check):
    b = FunctionBuilder()
    x = b.parameter(TensorType((2, 3), "uint8"), "x")
    parts = [b.op("exp", b.op("dequantize", x, SCALE, ZERO)), b.op("dequantize", x, SCALE, ZERO)]
    whole = b.op("concat", *parts, axis=0)
    after = check(PASS, b.function(b.op("quantize", whole, SCALE, ZERO, dtype="uint8")))
    assert check.ops(after)[-2:] == ["concat", "quantize"]


def test_sixteen_bits_are_not_resized_as_they_are(check, caplog):
    b = FunctionBuilder()
    x = b.parameter(TensorType((1, 2, 3, 4), "int16"), "x")
    with caplog.at_level("DEBUG", "kernelyard.transform.quantization.propagate_dequantize"):
        y = b.op("image.resize", b.op("dequantize", x, SCALE, np.int16(0)), sizes=(6, 8))
        after = check(PASS, b.function(y))
    assert check.ops(after) == ["dequantize", "image.resize"]
    assert "more than 8 bits" in caplog.text


# --- quantize ---------------------------------------------------------------------------------------------------------
def quantized(*ops: tuple[str, dict[str, Any]], scale: Any = SCALE, zero: Any = ZERO) -> Function:
    b = FunctionBuilder()
    y: Expr = b.op("exp", b.input("x", (4, 6)))
    for op, attrs in ops:
        y = b.op(op, y, **attrs)
    return b.function(b.op("quantize", y, scale, zero, dtype=str(np.asarray(zero).dtype)))


@pytest.mark.parametrize(
    ("zero", "op", "attrs", "goes"),
    [
        (np.uint8(0), "nn.relu", {}, True),
        (np.uint8(1), "nn.relu", {}, False),
        (np.int8(-128), "nn.relu", {}, True),
        (np.int8(-127), "nn.relu", {}, False),
        (np.uint8(0), "clip", {"min": 0.0, "max": 63.75}, True),
        (np.uint8(0), "clip", {"min": 0.0, "max": 63.5}, False),
        (np.uint8(0), "clip", {"min": None, "max": 63.75}, True),
        (np.uint8(0), "clip", {"min": 0.25, "max": None}, False),
    ],
)
def test_bounds_that_the_quantize_has_itself_go(check, zero, op, attrs, goes):
    function = quantized((op, attrs), zero=zero)
    after = check(PASS, function, [floats(4, 6, low=-3, high=9)])
    assert check.ops(after) == (["exp", "quantize"] if goes else ["exp", op, "quantize"])


def test_a_quantize_is_done_before_the_data_is_moved(check):
    function = quantized(("nn.relu", {}), ("reshape", {"shape": (2, 2, 6)}), ("permute_dims", {"axes": (1, 2, 0)}))
    assert check.ops(check(PASS, function)) == ["exp", "nn.relu", "quantize", "reshape", "permute_dims"]


def test_a_movement_that_others_read_stays(check):
    b = FunctionBuilder()
    y = b.op("permute_dims", b.op("exp", b.input("x", (4, 6))), axes=(1, 0))
    function = b.function(Tuple([b.op("quantize", y, SCALE, ZERO, dtype="uint8"), b.op("tanh", y)]))
    assert check.ops(check(PASS, function)) == ["exp", "permute_dims", "quantize", "tanh"]


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("scale", [SCALE, -SCALE])
def test_the_place_of_the_largest_is_found_among_stored_numbers(check, op, scale):
    b = FunctionBuilder()
    x = b.parameter(TensorType((4, 6), "uint8"), "x")
    after = check(PASS, b.function(b.op(op, b.op("dequantize", x, scale, ZERO), axis=1)))
    assert check.ops(after) == ([op] if scale > 0 else ["dequantize", op])


@settings(deadline=None, max_examples=60)
@given(
    scale=st.floats(2.0**-100, 2.0**100, width=32),
    dtype=st.sampled_from(["int8", "uint8", "int16", "uint16"]),
    data=st.data(),
)
def test_quantize_gives_back_what_dequantize_has_read(scale, dtype, data):
    limits = np.iinfo(dtype)
    zero = data.draw(st.integers(limits.min, limits.max))
    x = np.unique(np.linspace(limits.min, limits.max, 1024).astype(dtype))
    b = FunctionBuilder()
    parameters = np.float32(scale), np.asarray(zero, dtype)
    y = b.op("dequantize", b.parameter(TensorType(x.shape, dtype), "x"), *parameters)
    b.op("quantize", y, *parameters, dtype=dtype)
    first, second = (binding.value.op for binding in b.bindings)
    real = first.reference(x, *parameters, axis=None, dtype="float32")
    np.testing.assert_array_equal(second.reference(real, *parameters, axis=None, dtype=dtype), x)
