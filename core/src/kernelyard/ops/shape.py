"""Operators that rearrange elements without computing: reshape, permute, broadcast, concatenate, split, slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, TupleType, Type
from kernelyard.ops.declaration import declare, no_flops
from kernelyard.ops.samples import draw_numbers, floats
from kernelyard.ops.type_rules import (
    are_different,
    clamp_size,
    require,
    require_axes,
    require_axis,
    require_broadcastable,
    require_length,
    require_same_dtype,
    require_within,
    unify,
)

Ints = tuple[int, ...]


def _require_sizes(shape: Sequence[Dim]) -> None:
    negative = [dim for dim in shape if isinstance(dim, int) and dim < 0]
    require(
        not negative,
        "a size is negative",
        found=tuple(shape),
        hint="write every size explicitly; -1 is not inferred here",
    )


# --- reshape ----------------------------------------------------------------------------------------------------------
def _reshape_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, shape = types[0], attrs["shape"]
    _require_sizes(shape)
    require(
        not are_different(x.numel, dims.product(shape)),
        "a reshape must keep the number of elements",
        found=f"{x!r} with {x.numel} elements",
        expected=f"{dims.product(shape)} elements for {shape}",
    )
    if x.numel != dims.product(shape):
        unify(x.numel, dims.product(shape), "the number of elements")  # noted as an assumption
    return TensorType(shape, x.dtype)


def _reshape_samples() -> Iterator[Sample]:
    yield Sample((floats(2, 3, 4),), {"shape": (6, 4)}, "merge")
    yield Sample((floats(6, 4),), {"shape": (2, 3, 1, 4)}, "split")
    yield Sample((floats(1, 1),), {"shape": ()}, "to rank 0")
    yield Sample((floats(),), {"shape": (1,)}, "from rank 0")
    yield Sample((draw_numbers(2, 6, dtype="int64"),), {"shape": (3, 4)}, "int64")


declare(
    "reshape",
    ("x",),
    _reshape_type,
    lambda x, *, shape: np.reshape(x, shape),
    attributes={"shape": Attribute("dims")},
    samples=_reshape_samples,
    flops=no_flops,
    summary="the same elements in the same order under another shape",
)


# --- permute_dims -----------------------------------------------------------------------------------------------------
def _permute_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, axes = types[0], attrs["axes"]
    require_length(axes, x.rank, "axes")
    require_axes(axes, x.rank, ordered=False)
    return TensorType(tuple(x.shape[axis] for axis in axes), x.dtype)


def _permute_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 5),), {"axes": (1, 0)}, "transpose")
    yield Sample((floats(2, 3, 4, 5),), {"axes": (0, 2, 3, 1)}, "channels last")
    yield Sample((floats(2, 3, 4, 5),), {"axes": (0, 2, 1, 3)}, "heads")
    yield Sample((floats(1, 7, 3),), {"axes": (2, 0, 1)}, "rotate")
    yield Sample((floats(),), {"axes": ()}, "rank 0")
    yield Sample((draw_numbers(2, 5, dtype="bool"),), {"axes": (1, 0)}, "bool")


declare(
    "permute_dims",
    ("x",),
    _permute_type,
    lambda x, *, axes: np.transpose(x, axes),
    attributes={"axes": Attribute("ints")},
    samples=_permute_samples,
    flops=no_flops,
    summary="axis i of the result is axis axes[i] of x",
)


# --- broadcast_to -----------------------------------------------------------------------------------------------------
def _broadcast_to_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, shape = types[0], attrs["shape"]
    _require_sizes(shape)
    require_broadcastable(x.shape, shape, "the operand")
    return TensorType(shape, x.dtype)


def _broadcast_to_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 1),), {"shape": (2, 3, 5)}, "new axis and stretched axis")
    yield Sample((floats(),), {"shape": (2, 3)}, "rank 0")
    yield Sample((floats(2, 3),), {"shape": (2, 3)}, "same shape")
    yield Sample((draw_numbers(1, 7, dtype="int64"),), {"shape": (3, 7)}, "int64")


declare(
    "broadcast_to",
    ("x",),
    _broadcast_to_type,
    lambda x, *, shape: np.broadcast_to(x, shape),
    attributes={"shape": Attribute("dims")},
    samples=_broadcast_to_samples,
    flops=no_flops,
    summary="x repeated along axes of size 1 and along new leading axes",
)


# --- concat and split -------------------------------------------------------------------------------------------------
def _concat_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require(bool(types), "at least one operand is needed", found="none")
    dtype = require_same_dtype(types)
    axis = require_axis(attrs["axis"], types[0].rank)
    shape = list(types[0].shape)
    for type_ in types[1:]:
        require(type_.rank == len(shape), "operands must have the same rank", found=type_, expected=types[0])
        for i, dim in enumerate(type_.shape):
            shape[i] = shape[i] + dim if i == axis else unify(shape[i], dim, f"axis {i} of the operands")
    return TensorType(tuple(shape), dtype)


def _concat_samples() -> Iterator[Sample]:
    yield Sample((floats(2, 3), floats(4, 3, seed=1)), {"axis": 0}, "rows")
    yield Sample((floats(1, 3, 4, 5), floats(1, 2, 4, 5), floats(1, 1, 4, 5)), {"axis": 1}, "three, channels")
    yield Sample((floats(2, 3, 7), floats(2, 3, 1)), {"axis": 2}, "last axis")
    yield Sample((floats(3),), {"axis": 0}, "one operand")
    yield Sample((draw_numbers(2, 2, dtype="int64"), draw_numbers(2, 3, dtype="int64")), {"axis": 1}, "int64")


declare(
    "concat",
    ("xs*",),
    _concat_type,
    lambda *xs, axis: np.concatenate(xs, axis),
    attributes={"axis": Attribute("int")},
    samples=_concat_samples,
    flops=no_flops,
    summary="operands one after the other along an axis",
)


def _split_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, sections = types[0], attrs["sections"]
    axis = require_axis(attrs["axis"], x.rank)
    _require_sizes(sections)
    require(bool(sections), "at least one section is needed", found="none")
    unify(x.shape[axis], sum(sections[1:], sections[0]), f"axis {axis} and the sum of its sections")
    return TupleType(tuple(TensorType(x.shape[:axis] + (size,) + x.shape[axis + 1 :], x.dtype) for size in sections))


def _split(x: np.ndarray, *, axis: int, sections: Ints) -> tuple[np.ndarray, ...]:
    if sum(sections) != x.shape[axis]:  # of a symbolic size, which the type rule could not hold against them
        raise ValueError(f"sections of {sum(sections)} elements in place of {x.shape[axis]}")
    return tuple(np.split(x, np.cumsum(sections)[:-1], axis))


def _split_samples() -> Iterator[Sample]:
    yield Sample((floats(6, 4),), {"axis": 0, "sections": (2, 4)}, "rows")
    yield Sample((floats(2, 9, 3),), {"axis": 1, "sections": (3, 3, 3)}, "equal parts")
    yield Sample((floats(1, 7),), {"axis": 1, "sections": (7,)}, "one section")
    yield Sample((draw_numbers(2, 5, dtype="int64"),), {"axis": 1, "sections": (1, 4)}, "int64")


declare(
    "split",
    ("x",),
    _split_type,
    _split,
    attributes={"axis": Attribute("int"), "sections": Attribute("dims")},
    samples=_split_samples,
    flops=no_flops,
    summary="a tuple of pieces of the given sizes along an axis",
)


# --- strided_slice ----------------------------------------------------------------------------------------------------
def _strided_slice_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, axes = types[0], attrs["axes"]
    require_axes(axes, x.rank, ordered=False)
    for name in ("begin", "end", "strides"):
        require_length(attrs[name], len(axes), name)
    shape = list(x.shape)
    for axis, begin, end, stride in zip(axes, attrs["begin"], attrs["end"], attrs["strides"], strict=True):
        shape[axis] = _slice_size(shape[axis], begin, end, stride, axis)
    return TensorType(tuple(shape), x.dtype)


def _slice_size(size: Dim, begin: Dim, end: Dim, stride: int, axis: int) -> Dim:
    require(stride != 0, f"the stride of axis {axis} is 0")
    first, last = (0, size) if stride > 0 else (-1, size - 1)
    for name, bound in (("begin", begin), ("end", end)):
        require_within(bound, first, last, f"{name} of axis {axis}")
    if stride > 0:
        return clamp_size(dims.ceildiv(end - begin, stride)) if stride > 1 else clamp_size(end - begin)
    return clamp_size(dims.ceildiv(begin - end, -stride))


def _strided_slice(x: np.ndarray, *, axes: Ints, begin: Ints, end: Ints, strides: Ints) -> np.ndarray:
    index = [slice(None)] * x.ndim
    for axis, first, last, stride in zip(axes, begin, end, strides, strict=True):
        # -1 is before the first element, where NumPy has the last one there
        index[axis] = slice(0, 0) if first < 0 else slice(first, None if last < 0 else last, stride)
    return x[tuple(index)]


def _strided_slice_samples() -> Iterator[Sample]:
    def row(shape: Ints, axes: Ints, begin: Ints, end: Ints, strides: Ints, label: str) -> Sample:
        attributes = {"axes": axes, "begin": begin, "end": end, "strides": strides}
        return Sample((floats(*shape),), attributes, label)

    yield row((6, 4), (0,), (1,), (5,), (1,), "rows")
    yield row((6, 4), (0, 1), (1, 0), (6, 3), (2, 1), "two axes, one strided")
    yield row((7, 3), (0,), (6,), (-1,), (-1,), "reversed")
    yield row((7, 3), (0,), (5,), (0,), (-2,), "backwards by two")
    yield row((2, 9, 3), (1,), (8,), (9,), (1,), "last element")
    yield row((1, 17), (1,), (0,), (17,), (3,), "odd shape")
    yield Sample(
        (draw_numbers(5, dtype="int64"),), {"axes": (0,), "begin": (1,), "end": (4,), "strides": (1,)}, "int64"
    )


declare(
    "strided_slice",
    ("x",),
    _strided_slice_type,
    _strided_slice,
    attributes={
        "axes": Attribute("ints"),
        "begin": Attribute("dims"),
        "end": Attribute("dims"),
        "strides": Attribute("ints"),
    },
    samples=_strided_slice_samples,
    flops=no_flops,
    summary="every stride-th element from begin to before end; a negative stride walks back and may end at -1",
)


# --- flip, tile, trilu ------------------------------------------------------------------------------------------------
def _flip_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require_axes(attrs["axes"], types[0].rank)
    return types[0]


def _flip_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 5),), {"axes": (1,)}, "rows")
    yield Sample((floats(2, 3, 4),), {"axes": (0, 2)}, "two axes")


declare(
    "flip",
    ("x",),
    _flip_type,
    lambda x, *, axes: np.flip(x, axes),
    attributes={"axes": Attribute("ints")},
    samples=_flip_samples,
    flops=no_flops,
    summary="x in reverse order along some axes",
)


def _tile_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, repeats = types[0], attrs["repeats"]
    require_length(repeats, x.rank, "repeats")
    require(all(count >= 0 for count in repeats), "a repeat count is negative", found=repeats)
    return TensorType(tuple(dim * count for dim, count in zip(x.shape, repeats, strict=True)), x.dtype)


def _tile_samples() -> Iterator[Sample]:
    yield Sample((floats(2, 3),), {"repeats": (2, 2)}, "both axes")
    yield Sample((floats(1, 3, 1),), {"repeats": (1, 1, 5)}, "one axis")
    yield Sample((draw_numbers(3, dtype="int64"),), {"repeats": (3,)}, "int64")


declare(
    "tile",
    ("x",),
    _tile_type,
    lambda x, *, repeats: np.tile(x, repeats),
    attributes={"repeats": Attribute("ints")},
    samples=_tile_samples,
    flops=no_flops,
    summary="x repeated as a whole along each axis",
)


def _trilu_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require(types[0].rank >= 2, "a matrix is needed", found=repr(types[0]), expected="rank 2 or more")
    return types[0]


def _trilu(x: np.ndarray, *, k: int, upper: bool) -> np.ndarray:
    return np.triu(x, k) if upper else np.tril(x, k)


def _trilu_samples() -> Iterator[Sample]:
    yield Sample((floats(4, 4),), {}, "upper")
    yield Sample((floats(4, 4),), {"upper": False}, "lower")
    yield Sample((floats(2, 3, 5),), {"k": 1}, "above the diagonal, batched")
    yield Sample((draw_numbers(5, 3, dtype="int64"),), {"k": -1, "upper": False}, "below the diagonal, int64")


declare(
    "trilu",
    ("x",),
    _trilu_type,
    _trilu,
    attributes={"k": Attribute("int", 0), "upper": Attribute("bool", True)},
    samples=_trilu_samples,
    flops=no_flops,
    summary="matrices with everything below (or above) the k-th diagonal set to 0",
)
