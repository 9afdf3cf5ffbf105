"""Operators that make tensors: padding, one-hot codes, symbolic sizes as numbers, ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare, no_flops
from kernelyard.ops.samples import draw_numbers, floats, integers
from kernelyard.ops.type_rules import (
    INTEGERS,
    clamp_size,
    is_nonnegative,
    require,
    require_axis,
    require_dtype,
    require_length,
)

Ints = tuple[int, ...]


# --- pad --------------------------------------------------------------------------------------------------------------
def _pad_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, pads = types[0], attrs["pads"]
    require_length(pads, 2 * x.rank, "pads (all begins, then all ends)")
    sizes = zip(x.shape, pads[: x.rank], pads[x.rank :], strict=True)
    shape = tuple(clamp_size(dim + begin + end) for dim, begin, end in sizes)
    if attrs["mode"] != "constant":
        negative = [pad for pad in pads if not is_nonnegative(pad)]
        require(
            not negative, f"mode {attrs['mode']!r} cannot crop", found=str(tuple(pads)), expected="pads of 0 or more"
        )
    return TensorType(shape, x.dtype)


def _pad(x: np.ndarray, *, pads: Ints, mode: str, value: float) -> np.ndarray:
    begins, ends = pads[: x.ndim], pads[x.ndim :]
    width = [(max(b, 0), max(e, 0)) for b, e in zip(begins, ends, strict=True)]
    if mode != "constant":
        return np.pad(x, width, mode=mode)  # pyright: ignore[reportCallIssue, reportArgumentType]
    wide = np.pad(x, width, constant_values=np.asarray(value).astype(x.dtype))
    # cropped last: what is cropped beyond x is taken off the elements that the other side adds
    kept = [slice(max(-b, 0), max(d + min(e, 0), 0)) for d, b, e in zip(wide.shape, begins, ends, strict=True)]
    return wide[tuple(kept)]


def _pad_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 5),), {"pads": (1, 2, 0, 3)}, "zeros")
    yield Sample((floats(1, 2, 4, 5),), {"pads": (0, 0, 1, 1, 0, 0, 1, 1), "value": -1.5}, "spatial, a value")
    yield Sample((floats(5, 4),), {"pads": (-1, 0, 2, -1)}, "crop")
    yield Sample((floats(2, 3),), {"pads": (-3, 4, 5, -6), "value": 2.5}, "crop more than there is")
    for mode in ("reflect", "edge", "wrap"):
        yield Sample((floats(4, 5),), {"pads": (2, 1, 1, 3), "mode": mode}, mode)
    yield Sample((draw_numbers(2, 3, dtype="int64"),), {"pads": (0, 1, 0, 1), "value": 7.0}, "int64")


declare(
    "pad",
    ("x",),
    _pad_type,
    _pad,
    attributes={
        "pads": Attribute("dims"),
        "mode": Attribute("str", "constant", ("constant", "reflect", "edge", "wrap")),
        "value": Attribute("float", 0.0),
    },
    samples=_pad_samples,
    flops=no_flops,
    summary="x with elements added around it; negative pads crop in mode constant",
)


# --- one_hot ----------------------------------------------------------------------------------------------------------
def _one_hot_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    indices, axis = types[0], attrs["axis"]
    require_dtype(indices, INTEGERS, "the indices")
    require(attrs["depth"] >= 1, "the depth must be positive", found=attrs["depth"])
    position = indices.rank if axis == -1 else require_axis(axis, indices.rank + 1)
    return TensorType(indices.shape[:position] + (attrs["depth"],) + indices.shape[position:], attrs["dtype"])


def _one_hot(
    indices: np.ndarray, *, depth: int, axis: int, on_value: float, off_value: float, dtype: str
) -> np.ndarray:
    wide = indices.astype(np.int64)
    wrapped = np.where(wide < 0, wide + depth, wide)
    hit = wrapped[..., np.newaxis] == np.arange(depth)
    return np.moveaxis(np.where(hit, on_value, off_value), -1, axis).astype(to_numpy(dtype))


def _one_hot_samples() -> Iterator[Sample]:
    yield Sample((integers(3, 4, low=0, high=6),), {"depth": 6}, "last axis")
    yield Sample((integers(3, 4, low=0, high=6),), {"depth": 6, "axis": 0}, "first axis")
    yield Sample(
        (np.array([-1, 0, 7, 2], np.int64),), {"depth": 3, "on_value": 5.0, "off_value": -1.0}, "wrap, out of range"
    )
    yield Sample((integers(2, low=0, high=3, dtype="int32"),), {"depth": 3, "dtype": "int64"}, "int32 to int64")
    yield Sample((np.array(2, np.int64),), {"depth": 4}, "rank 0")


declare(
    "one_hot",
    ("indices",),
    _one_hot_type,
    _one_hot,
    attributes={
        "depth": Attribute("int"),
        "axis": Attribute("int", -1),
        "on_value": Attribute("float", 1.0),
        "off_value": Attribute("float", 0.0),
        "dtype": Attribute("dtype", "float32"),
    },
    samples=_one_hot_samples,
    flops=no_flops,
    summary="a new axis (-1: the last) with on_value at the index and off_value elsewhere; negative indices wrap",
)


# --- sizes and ranges -------------------------------------------------------------------------------------------------
def _shape_tensor_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    return TensorType((len(attrs["dims"]),), "int64")


def _shape_tensor_samples() -> Iterator[Sample]:
    yield Sample((), {"dims": (2, 3, 5)}, "three sizes")
    yield Sample((), {"dims": (7,)}, "one size")
    yield Sample((), {"dims": ()}, "none")


declare(
    "shape_tensor",
    (),
    _shape_tensor_type,
    lambda *, dims: np.array(dims, np.int64),
    attributes={"dims": Attribute("dims")},
    samples=_shape_tensor_samples,
    flops=no_flops,
    summary="sizes as an int64 vector",
)


def _arange_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    count = attrs["count"]
    require(not isinstance(count, int) or count >= 0, "the count is negative", found=count)
    return TensorType((count,), attrs["dtype"])


def _arange(*, start: int, step: int, count: int, dtype: str) -> np.ndarray:
    values: Any = start + step * np.arange(count, dtype=np.int64)
    return values.astype(to_numpy(dtype))


def _arange_samples() -> Iterator[Sample]:
    yield Sample((), {"count": 7}, "from 0")
    yield Sample((), {"start": 3, "step": -2, "count": 5}, "downwards")
    yield Sample((), {"start": 1, "count": 4, "dtype": "float32"}, "float32")


declare(
    "arange",
    (),
    _arange_type,
    _arange,
    attributes={
        "start": Attribute("dim", 0),
        "step": Attribute("int", 1),
        "count": Attribute("dim"),
        "dtype": Attribute("dtype", "int64"),
    },
    samples=_arange_samples,
    flops=no_flops,
    summary="count numbers: start, start + step, ...",
)
