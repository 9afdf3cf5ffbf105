"""Type rules: symbolic formulas, refusals, and the proofs they rest on."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import TypeInferenceError
from kernelyard.ir import TensorType, get_op
from kernelyard.ir.types import tensors_of
from kernelyard.ops.type_rules import are_different, assumptions, clamp_size, is_nonnegative, unify
from kernelyard.testing.strategies import symbolic_dims

n, m = dims.symbol("n"), dims.symbol("m")
SIZES = [{"n": a, "m": b} for a, b in itertools.product((1, 2, 3, 4, 5, 7, 12), repeat=2)]


def infer(name: str, *shapes: tuple[Dim, ...], dtype: str = "float32", **attrs: Any) -> tuple[Dim, ...]:
    op = get_op(name)
    result = op.infer_type([TensorType(shape, dtype) for shape in shapes], op.check_attributes(attrs))
    return tensors_of(result)[0].shape


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "expected"),
    [
        ("add", [(n, 1, 4), (m, 4)], {}, (n, m, 4)),
        ("add", [(n, 3), (1, 3)], {}, (n, 3)),
        ("add", [(n,), (m,)], {}, (dims.broadcast(n, m),)),
        ("matmul", [(n, m, 8), (8, 5)], {}, (n, m, 5)),
        ("matmul", [(n, 4, m, 8), (1, 4, 8, m)], {}, (n, 4, m, m)),
        (
            "nn.conv2d",
            [(n, 3, m, m), (8, 3, 3, 3)],
            {"strides": (2, 2), "padding": (1,) * 4},
            (n, 8, *[(m + 1) // 2] * 2),
        ),
        ("nn.conv2d", [(n, 3, m, 9), (8, 3, 3, 3)], {"padding": (1,) * 4}, (n, 8, m, 9)),
        ("nn.conv1d", [(n, 4, m), (4, 1, 5)], {"groups": 4, "dilation": (2,)}, (n, 4, m - 8)),
        ("nn.conv2d_transpose", [(n, 3, m, 5), (3, 8, 2, 2)], {"strides": (2, 2)}, (n, 8, m * 2, 10)),
        ("nn.max_pool2d", [(n, 3, m, m * 2)], {"pool_size": (2, 2), "strides": (2, 2)}, (n, 3, m // 2, m)),
        (
            "nn.avg_pool2d",
            [(1, 1, m, m)],
            {"pool_size": (3, 3), "strides": (2, 2), "ceil_mode": True},
            (1, 1, *[dims.ceildiv(m - 3, 2) + 1] * 2),
        ),
        ("mean", [(n, 8, m, m)], {"axes": (2, 3), "keepdims": True}, (n, 8, 1, 1)),
        ("sum", [(n, m)], {}, ()),
        ("argmax", [(n, m)], {"axis": 1}, (n,)),
        ("reshape", [(n, 4, m)], {"shape": (n * 2, m * 2)}, (n * 2, m * 2)),
        ("permute_dims", [(n, m, 3)], {"axes": (2, 0, 1)}, (3, n, m)),
        ("concat", [(n, m), (3, m), (n, m)], {"axis": 0}, (n * 2 + 3, m)),
        ("split", [(n * 3, 4)], {"axis": 0, "sections": (n, n * 2)}, (n, 4)),
        ("strided_slice", [(n, 4)], {"axes": (0,), "begin": (0,), "end": (n - 1,), "strides": (1,)}, (n - 1, 4)),
        ("strided_slice", [(n,)], {"axes": (0,), "begin": (0,), "end": (n,), "strides": (2,)}, ((n + 1) // 2,)),
        ("strided_slice", [(n,)], {"axes": (0,), "begin": (n - 1,), "end": (-1,), "strides": (-1,)}, (n,)),
        ("pad", [(n, 4)], {"pads": (0, 1, m, 2)}, (n + m, 7)),
        ("tile", [(n, 4)], {"repeats": (3, 1)}, (n * 3, 4)),
        ("broadcast_to", [(1, 4)], {"shape": (n, m, 4)}, (n, m, 4)),
        ("image.resize", [(n, 3, m, 4)], {"sizes": (m * 2, 8)}, (n, 3, m * 2, 8)),
    ],
)
def test_symbolic_shapes(
    name: str, shapes: list[tuple[Dim, ...]], attrs: dict[str, Any], expected: tuple[Dim, ...]
) -> None:
    assert infer(name, *shapes, **attrs) == expected


def test_integer_operators_of_indices() -> None:
    op = get_op("take")
    table, indices = TensorType((100, n), "float32"), TensorType((m, 7), "int32")
    assert op.infer_type([table, indices], op.check_attributes({})) == TensorType((m, 7, n), "float32")
    op = get_op("shape_tensor")
    assert op.infer_type([], op.check_attributes({"dims": (n, 3, n * m)})) == TensorType((3,), "int64")
    op = get_op("arange")
    assert op.infer_type([], op.check_attributes({"count": n})) == TensorType((n,), "int64")


def test_work_of_matmul_and_convolution_counts_two_per_multiply_add() -> None:
    op = get_op("matmul")
    types = [TensorType((n, 4, 8), "float32"), TensorType((8, 5), "float32")]
    assert op.flops is not None
    assert op.flops(types, op.infer_type(types, {}), {}) == n * 4 * 5 * 8 * 2
    op = get_op("nn.conv2d")
    types = [TensorType((1, 4, 8, 8), "float32"), TensorType((6, 2, 3, 3), "float32")]
    attrs = op.check_attributes({"groups": 2, "padding": (1, 1, 1, 1)})
    assert op.flops is not None
    assert op.flops(types, op.infer_type(types, attrs), attrs) == 2 * (6 * 8 * 8) * (2 * 3 * 3)


@pytest.mark.parametrize(
    ("name", "shapes", "dtype", "attrs", "message"),
    [
        ("exp", [(2,)], "int64", {}, "wrong dtype"),
        ("logical_and", [(2,), (2,)], "float32", {}, "wrong dtype"),
        ("add", [(2, 3), (4,)], "float32", {}, "do not broadcast"),
        ("where", [(2,), (2,), (2,)], "float32", {}, "wrong dtype of the condition"),
        ("matmul", [(2, 3), (4, 5)], "float32", {}, "summed axes must have the same size"),
        ("matmul", [(), (4,)], "float32", {}, "rank 1 or more"),
        ("nn.conv2d", [(1, 3, 8), (8, 3, 3, 3)], "float32", {}, "wrong rank"),
        ("nn.conv2d", [(1, 4, 8, 8), (8, 3, 3, 3)], "float32", {}, "channels"),
        ("nn.conv2d", [(1, 3, 2, 2), (8, 3, 3, 3)], "float32", {}, "larger than the padded input"),
        ("nn.conv2d", [(1, 4, 8, 8), (3, 2, 3, 3)], "float32", {"groups": 2}, "divisible by groups"),
        ("nn.conv2d", [(1, 3, 8, 8), (8, 3, 3, 3)], "float32", {"strides": (1,)}, "strides has the wrong length"),
        ("nn.conv2d", [(1, 3, 8, 8), (8, 3, 3, 3)], "float32", {"strides": (0, 1)}, "stride is not positive"),
        ("nn.conv2d", [(1, 3, 8, 8), (8, 3, 3, 3)], "int32", {}, "wrong dtype"),
        ("nn.max_pool1d", [(1, 3, 8)], "float32", {"pool_size": (2,), "padding": (2, 0)}, "padding alone"),
        ("nn.batch_norm", [(2, 3, 4), (3,), (3,), (3,), (4,)], "float32", {}, "variance and the channels"),
        ("nn.layer_norm", [(2, 3), (2,), (3,)], "float32", {"axes": (1,)}, "gamma and the normalised axes"),
        ("nn.group_norm", [(2, 6, 4), (6,), (6,)], "float32", {"num_groups": 4}, "divisible"),
        ("nn.softmax", [(2, 3)], "float32", {"axis": -1}, "out of range"),
        ("sum", [(2, 3)], "float32", {"axes": (1, 0)}, "must ascend"),
        ("sum", [(2, 3)], "float32", {"axes": (1, 1)}, "given twice"),
        ("reshape", [(2, 3)], "float32", {"shape": (4, 2)}, "keep the number of elements"),
        ("reshape", [(n, 4)], "float32", {"shape": (n, 5)}, "keep the number of elements"),
        ("reshape", [(2, 3)], "float32", {"shape": (-1,)}, "size is negative"),
        ("permute_dims", [(2, 3)], "float32", {"axes": (0, 0)}, "given twice"),
        ("broadcast_to", [(3,)], "float32", {"shape": (2, 4)}, "does not broadcast"),
        ("concat", [(2, 3), (2, 4)], "float32", {"axis": 0}, "axis 1 of the operands"),
        ("split", [(5,)], "float32", {"axis": 0, "sections": (2, 2)}, "sum of its sections"),
        (
            "strided_slice",
            [(5,)],
            "float32",
            {"axes": (0,), "begin": (0,), "end": (6,), "strides": (1,)},
            "end of axis 0 is out of range",
        ),
        ("pad", [(5,)], "float32", {"pads": (-1, 0), "mode": "edge"}, "cannot crop"),
        ("topk", [(5,)], "float32", {"axis": 0, "k": 6}, "k is out of range"),
        ("image.resize", [(1, 1, 4, 4)], "int32", {"sizes": (8, 8), "method": "linear"}, "wrong dtype"),
        ("one_hot", [(4,)], "float32", {"depth": 3}, "wrong dtype of the indices"),
    ],
)
def test_refusals_say_what_is_wrong(
    name: str, shapes: list[tuple[Dim, ...]], dtype: str, attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        infer(name, *shapes, dtype=dtype, **attrs)
    assert message in caught.value.message
    assert name in caught.value.message
    assert name in str(caught.value.where)


def test_different_dtypes_are_refused() -> None:
    op = get_op("add")
    with pytest.raises(TypeInferenceError, match="same dtype"):
        op.infer_type([TensorType((2,), "float32"), TensorType((2,), "int64")], {})


# --- proofs ------------------------------------------------------------------------------------------------------------
@settings(max_examples=150, deadline=None)
@given(symbolic_dims())
def test_what_is_proved_nonnegative_is(dim: Dim) -> None:
    if is_nonnegative(dim):
        assert all(dims.evaluate(dim, sizes) >= 0 for sizes in SIZES)


@settings(max_examples=150, deadline=None)
@given(symbolic_dims(), symbolic_dims())
def test_what_is_proved_different_is(left: Dim, right: Dim) -> None:
    if are_different(left, right):
        assert all(dims.evaluate(left, sizes) != dims.evaluate(right, sizes) for sizes in SIZES)


@settings(max_examples=100, deadline=None)
@given(symbolic_dims())
def test_a_clamped_size_is_never_negative(dim: Dim) -> None:
    clamped = clamp_size(dim)
    assert all(dims.evaluate(clamped, sizes) == max(dims.evaluate(dim, sizes), 0) for sizes in SIZES)


@pytest.mark.parametrize(
    "dim",
    [
        n,
        n - 1,
        n * m - n,
        n // 2,
        (n + 1) // 2 - n // 2,
        n - dims.minimum(n, 3),
        dims.maximum(n - 5, 0),
        n * 2 - n // 3,
    ],
)
def test_proofs_that_slices_and_paddings_need(dim: Dim) -> None:
    assert is_nonnegative(dim)
    assert clamp_size(dim) == dim


@pytest.mark.parametrize("dim", [n - 2, n - m, 3 - n, n // 2 - 1])
def test_what_does_not_hold_is_not_proved(dim: Dim) -> None:
    assert not is_nonnegative(dim)


def test_sizes_that_cannot_be_proved_equal_are_noted() -> None:
    with assumptions() as pairs:
        assert infer("concat", (n, 4), (m, 4), axis=1) == (m, 8)
        assert infer("matmul", (2, n), (8, 3)) == (2, 3)
    assert (n, 8) in pairs
    assert (n, m) in pairs
    assert unify(n, 5, "two sizes") == 5
    with assumptions() as none:
        infer("add", (n, 4), (n, 4))
    assert none == []


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize(("pool", "stride"), [(2, 2), (3, 2), (2, 3), (1, 2)])
def test_the_last_window_in_ceil_mode_starts_inside(pool: int, stride: int, back: int) -> None:
    front = min(1, pool - 1)
    back = min(back, pool - 1)
    attrs = {"pool_size": (pool,), "strides": (stride,), "padding": (front, back), "ceil_mode": True}
    symbolic = infer("nn.max_pool1d", (1, 1, n), **attrs)[2]
    for size in range(max(pool - front - back - (stride - 1), 1), 14):  # one window, if it begins before the end
        starts = [s for s in range(-front, size, stride) if s - stride + pool < size + back or s == -front]
        assert dims.evaluate(symbolic, {"n": size}) == len(starts)
        assert infer("nn.max_pool1d", (1, 1, size), **attrs)[2] == len(starts)
