"""Operators that read or write at computed positions: take, gather, scatter, cumulative sums, top-k.

Negative indices count from the end. An index out of range is the caller's error: the reference raises
IndexError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard.dims import Shape
from kernelyard.errors import ShapeError
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, TupleType, Type
from kernelyard.ops.declaration import declare, flops_per_input, no_flops
from kernelyard.ops.numeric import in_float64
from kernelyard.ops.samples import booleans, draw_numbers, floats, integers
from kernelyard.ops.type_rules import (
    INTEGERS,
    NUMBERS,
    require,
    require_axis,
    require_dtype,
    require_same_dtype,
    require_within,
    unify_shapes,
)

REDUCTIONS = ("none", "add", "mul", "max", "min")
ACCUMULATORS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _require_indices(type_: TensorType) -> None:
    require_dtype(type_, INTEGERS, "the indices")


# --- take -------------------------------------------------------------------------------------------------------------
def _take_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    data, indices = types
    _require_indices(indices)
    axis = require_axis(attrs["axis"], data.rank)
    return TensorType(data.shape[:axis] + indices.shape + data.shape[axis + 1 :], data.dtype)


def _take_samples() -> Iterator[Sample]:
    yield Sample((floats(5, 3), integers(2, 4, low=0, high=5)), {}, "rows of a table")
    yield Sample((floats(2, 7, 3), integers(4, low=0, high=7)), {"axis": 1}, "middle axis")
    yield Sample((floats(5, 3), np.array([-1, 0, -5], np.int64)), {}, "negative indices")
    yield Sample((floats(2, 6), np.array(3, np.int64)), {"axis": 1}, "rank 0 index")
    yield Sample((draw_numbers(5, dtype="int64"), integers(3, low=0, high=5, dtype="int32")), {}, "int64 by int32")


declare(
    "take",
    ("data", "indices"),
    _take_type,
    lambda data, indices, *, axis: np.take(data, indices, axis),
    attributes={"axis": Attribute("int", 0)},
    samples=_take_samples,
    flops=no_flops,
    summary="slices of data along an axis, one for each index",
)


# --- gather -----------------------------------------------------------------------------------------------------------
def _gather_elements_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    data, indices = types
    _require_indices(indices)
    require_axis(attrs["axis"], data.rank)
    require(
        indices.rank == data.rank, "data and indices must have the same rank", found=repr(indices), expected=repr(data)
    )
    return TensorType(indices.shape, data.dtype)


def _elements_index(indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    index = list(np.ogrid[tuple(slice(0, size) for size in indices.shape)])
    index[axis] = indices
    return tuple(index)


def _gather_elements_samples() -> Iterator[Sample]:
    yield Sample((floats(4, 5), integers(4, 3, low=0, high=5)), {"axis": 1}, "columns")
    yield Sample((floats(4, 5), integers(2, 5, low=-4, high=4)), {"axis": 0}, "rows, negative indices")
    yield Sample((draw_numbers(2, 3, 4, dtype="int64"), integers(2, 3, 4, low=0, high=3)), {"axis": 1}, "int64")


declare(
    "gather_elements",
    ("data", "indices"),
    _gather_elements_type,
    lambda data, indices, *, axis: data[_elements_index(indices, axis)],
    attributes={"axis": Attribute("int")},
    samples=_gather_elements_samples,
    flops=no_flops,
    summary="`result[i][j] = data[indices[i][j]][j]` for axis 0, and so on",
)


def _gather_nd_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    data, indices = types
    _require_indices(indices)
    batch = attrs["batch_dims"]
    depth = _index_depth(indices)
    require(
        0 <= batch < indices.rank and batch + depth <= data.rank,
        "the indices reach beyond the data's axes",
        found=f"{batch} batch dims and index vectors of length {depth}",
        expected=f"at most rank {data.rank} together",
    )
    shared = unify_shapes(data.shape[:batch], indices.shape[:batch], "the batch dims")
    return TensorType(shared + indices.shape[batch:-1] + data.shape[batch + depth :], data.dtype)


def _index_depth(indices: TensorType) -> int:
    require(indices.rank >= 1, "the indices need an axis of index vectors", found=repr(indices))
    depth = indices.shape[-1]
    require(isinstance(depth, int), "the length of the index vectors must be known", found=depth, expected="a number")
    assert isinstance(depth, int)
    return depth


def _gather_nd(data: np.ndarray, indices: np.ndarray, *, batch_dims: int) -> np.ndarray:
    if data.shape[:batch_dims] != indices.shape[:batch_dims]:
        shapes = f"{data.shape[:batch_dims]} and {indices.shape[:batch_dims]}"
        raise ShapeError("data and indices have other batch dims", found=shapes, expected="the same")
    batch = np.ogrid[tuple(slice(0, size) for size in indices.shape[:batch_dims])]
    inner = indices.ndim - 1 - batch_dims
    if not indices.shape[-1]:  # nothing is chosen: all of the data, for each index vector
        rest = data.shape[batch_dims:]
        whole = data.reshape(data.shape[:batch_dims] + (1,) * inner + rest)
        return np.broadcast_to(whole, indices.shape[:-1] + rest)
    spread = [part.reshape(part.shape + (1,) * inner) for part in batch]
    return data[(*spread, *np.moveaxis(indices, -1, 0))]


def _gather_nd_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 4, 5), np.array([[0, 1], [2, 3], [-1, -1]], np.int64)), {}, "slices")
    yield Sample((floats(3, 4), np.array([[0, 1], [2, 3]], np.int64)), {}, "elements")
    yield Sample((floats(2, 4, 5), integers(2, 3, 1, low=0, high=4)), {"batch_dims": 1}, "batched")


declare(
    "gather_nd",
    ("data", "indices"),
    _gather_nd_type,
    _gather_nd,
    attributes={"batch_dims": Attribute("int", 0)},
    samples=_gather_nd_samples,
    flops=no_flops,
    summary="elements or slices of data at the index vectors in the last axis of indices",
)


# --- scatter ----------------------------------------------------------------------------------------------------------
def _scatter(data: np.ndarray, index: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    result = data.copy()
    if reduction == "none":
        result[index] = updates
    else:
        ACCUMULATORS[reduction].at(result, index, updates)
    return result


def _check_scatter(types: Sequence[TensorType], attrs: Attributes) -> None:
    data, indices, updates = types
    _require_indices(indices)
    require_same_dtype((data, updates))
    if attrs["reduction"] != "none":
        require_dtype(data, NUMBERS, "the data of a scatter with a reduction")


def _scatter_elements_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    data, indices, updates = types
    _check_scatter(types, attrs)
    require_axis(attrs["axis"], data.rank)
    require(
        indices.rank == data.rank, "data and indices must have the same rank", found=repr(indices), expected=repr(data)
    )
    unify_shapes(indices.shape, updates.shape, "indices and updates")
    return data


def _scatter_elements(
    data: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int, reduction: str
) -> np.ndarray:
    return _scatter(data, _elements_index(indices, axis), updates, reduction)


def _scatter_elements_samples() -> Iterator[Sample]:
    indices = np.array([[1, 0, 2], [-1, 2, 0]], np.int64)
    for reduction in REDUCTIONS:
        yield Sample((floats(4, 3), indices, floats(2, 3, seed=1)), {"axis": 0, "reduction": reduction}, reduction)
    repeated = np.array([[1, 1, 1]], np.int64)
    yield Sample(
        (floats(1, 5), repeated, floats(1, 3, seed=1)), {"axis": 1, "reduction": "add"}, "add twice to one place"
    )
    yield Sample((draw_numbers(4, dtype="int64"), np.array([2, 0]), np.array([7, 8])), {"axis": 0}, "int64")


SCATTER_REDUCTION = Attribute("str", "none", REDUCTIONS)
declare(
    "scatter_elements",
    ("data", "indices", "updates"),
    _scatter_elements_type,
    _scatter_elements,
    attributes={"axis": Attribute("int"), "reduction": SCATTER_REDUCTION},
    samples=_scatter_elements_samples,
    flops=no_flops,
    widen=True,
    summary="data with updates written (or accumulated) at `data[indices[i][j]][j]` for axis 0, and so on",
)


def _scatter_nd_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    data, indices, updates = types
    _check_scatter(types, attrs)
    depth = _index_depth(indices)
    require(depth <= data.rank, "the index vectors are too long", found=depth, expected=f"at most rank {data.rank}")
    expected: Shape = indices.shape[:-1] + data.shape[depth:]
    unify_shapes(updates.shape, expected, "updates and the positions they go to")
    return data


def _scatter_nd(data: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, reduction: str) -> np.ndarray:
    return _scatter(data, tuple(np.moveaxis(indices, -1, 0)), updates, reduction)


def _scatter_nd_samples() -> Iterator[Sample]:
    indices = np.array([[0, 1], [2, 3], [-1, 0]], np.int64)
    for reduction in REDUCTIONS:
        yield Sample((floats(3, 4), indices, floats(3, seed=1)), {"reduction": reduction}, reduction)
    yield Sample((floats(4, 3), np.array([[1], [3]], np.int64), floats(2, 3, seed=1)), {}, "rows")
    yield Sample((booleans(4), np.array([[1], [3]], np.int64), booleans(2, seed=1)), {}, "bool")


declare(
    "scatter_nd",
    ("data", "indices", "updates"),
    _scatter_nd_type,
    _scatter_nd,
    attributes={"reduction": SCATTER_REDUCTION},
    samples=_scatter_nd_samples,
    flops=no_flops,
    widen=True,
    summary="data with updates written (or accumulated) at the index vectors in the last axis of indices",
)


# --- invert_permutation -----------------------------------------------------------------------------------------------
def _invert_permutation_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    _require_indices(types[0])
    require(types[0].rank == 1, "a permutation is a vector", found=types[0].rank, expected="rank 1")
    return TensorType(types[0].shape, "int64")


def _invert_permutation(p: np.ndarray) -> np.ndarray:
    inverse = np.empty(len(p), np.int64)
    inverse[p] = np.arange(len(p))
    return inverse


def _invert_permutation_samples() -> Iterator[Sample]:
    yield Sample((np.array([2, 0, 3, 1], np.int64),), {}, "int64")
    yield Sample((np.arange(19, dtype=np.int32)[::-1].copy(),), {}, "int32")
    yield Sample((np.zeros(0, np.int64),), {}, "empty")


declare(
    "invert_permutation",
    ("p",),
    _invert_permutation_type,
    _invert_permutation,
    samples=_invert_permutation_samples,
    flops=no_flops,
    summary="where each number is in a vector that has each of 0 to its length - 1 once",
)


# --- cumsum, cumprod and topk -----------------------------------------------------------------------------------------
def _cumsum_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require_dtype(types[0], NUMBERS)
    require_axis(attrs["axis"], types[0].rank)
    return types[0]


def _cumulative(x: np.ndarray, add: np.ufunc, start: int, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    x = np.flip(x, axis) if reverse else x
    total = add.accumulate(x, axis, dtype=x.dtype)
    if exclusive:
        first = np.full_like(total, start, shape=total.shape[:axis] + (1,) + total.shape[axis + 1 :])
        total = np.take(np.concatenate([first, total], axis), np.arange(x.shape[axis]), axis)
    return np.flip(total, axis) if reverse else total


def _cumsum(x: np.ndarray, *, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    return _cumulative(x, np.add, 0, axis, exclusive, reverse)


def _cumprod(x: np.ndarray, *, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    return _cumulative(x, np.multiply, 1, axis, exclusive, reverse)


def _cumsum_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 5),), {"axis": 1}, "rows")
    yield Sample((floats(4, 3),), {"axis": 0, "exclusive": True}, "exclusive")
    yield Sample((floats(2, 3, 4),), {"axis": 1, "reverse": True}, "reverse")
    yield Sample((floats(2, 0),), {"axis": 1, "exclusive": True}, "empty")
    yield Sample((draw_numbers(2, 7, dtype="int64"),), {"axis": 1, "exclusive": True, "reverse": True}, "int64, both")


declare(
    "cumsum",
    ("x",),
    _cumsum_type,
    in_float64(_cumsum),
    attributes={"axis": Attribute("int"), "exclusive": Attribute("bool", False), "reverse": Attribute("bool", False)},
    samples=_cumsum_samples,
    flops=flops_per_input(1),
    summary="running sums along an axis; exclusive leaves the element itself out, reverse runs from the end",
)
declare(
    "cumprod",
    ("x",),
    _cumsum_type,
    in_float64(_cumprod),
    attributes={"axis": Attribute("int"), "exclusive": Attribute("bool", False), "reverse": Attribute("bool", False)},
    samples=_cumsum_samples,
    flops=flops_per_input(1),
    summary="running products along an axis; exclusive leaves the element itself out, reverse runs from the end",
)


def _topk_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, k = types[0], attrs["k"]
    require_dtype(x, NUMBERS)
    axis = require_axis(attrs["axis"], x.rank)
    require_within(k, 0, x.shape[axis], "k")
    shape = x.shape[:axis] + (k,) + x.shape[axis + 1 :]
    return TupleType((TensorType(shape, x.dtype), TensorType(shape, "int64")))


def _topk(x: np.ndarray, *, k: int, axis: int, largest: bool, sorted: bool) -> tuple[np.ndarray, np.ndarray]:  # noqa: A002
    # Ranks keep ties in index order for any dtype, unsigned ones too; a sorted result is a valid unsorted one.
    # NumPy does not sort the NaN of a float that it does not know.
    numbers = x if x.dtype.isbuiltin == 1 else x.astype(np.float32)
    ranks = np.unique(numbers, return_inverse=True)[1].reshape(x.shape)
    order = np.argsort(-ranks if largest else ranks, axis=axis, kind="stable")
    indices = np.take(order, np.arange(k), axis)
    return np.take_along_axis(x, indices, axis), indices.astype(np.int64)


def _topk_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 7),), {"k": 3, "axis": 1}, "largest")
    yield Sample((floats(7, 3),), {"k": 2, "axis": 0, "largest": False}, "smallest, first axis")
    yield Sample((np.array([[2, 1, 2, 1]], np.float32),), {"k": 3, "axis": 1}, "ties: the lower index first")
    yield Sample((integers(2, 9),), {"k": 9, "axis": 1}, "int64, all")
    yield Sample((integers(9, dtype="uint8", low=0),), {"k": 4, "axis": 0}, "uint8")


declare(
    "topk",
    ("x",),
    _topk_type,
    _topk,
    attributes={
        "k": Attribute("dim"),
        "axis": Attribute("int"),
        "largest": Attribute("bool", True),
        "sorted": Attribute("bool", True),
    },
    samples=_topk_samples,
    flops=flops_per_input(1),
    summary="the k largest (or smallest) elements along an axis and their indices; equal ones by ascending index",
)
