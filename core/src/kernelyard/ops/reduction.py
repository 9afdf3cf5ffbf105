"""Reductions over axes: sums, products, means, extrema, any/all, and the index of an extremum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from kernelyard.dims import Shape
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare, flops_per_input
from kernelyard.ops.numeric import in_float64
from kernelyard.ops.samples import booleans, draw_numbers, floats
from kernelyard.ops.type_rules import BOOL, NUMBERS, require_axes, require_axis, require_dtype

Axes = tuple[int, ...]


def reduce_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Return `shape` with some axes dropped, or kept with size 1."""
    return tuple(1 if i in axes else dim for i, dim in enumerate(shape) if keepdims or i not in axes)


def _rule(allowed: Sequence[str]) -> Callable[[Sequence[TensorType], Attributes], Type]:
    def infer(types: Sequence[TensorType], attrs: Attributes) -> Type:
        x = types[0]
        require_dtype(x, allowed)
        axes = require_axes(attrs["axes"], x.rank) or tuple(range(x.rank))
        return TensorType(reduce_shape(x.shape, axes, attrs["keepdims"]), x.dtype)

    return infer


def _axes(x: np.ndarray, axes: Axes) -> Axes:
    return axes or tuple(range(x.ndim))


def _sum(x: np.ndarray, *, axes: Axes, keepdims: bool) -> np.ndarray:
    return np.sum(x, axis=_axes(x, axes), keepdims=keepdims, dtype=x.dtype)


def _prod(x: np.ndarray, *, axes: Axes, keepdims: bool) -> np.ndarray:
    return np.prod(x, axis=_axes(x, axes), keepdims=keepdims, dtype=x.dtype)


def _mean(x: np.ndarray, *, axes: Axes, keepdims: bool) -> np.ndarray:
    if not np.issubdtype(x.dtype, np.integer):
        return np.mean(x, axis=_axes(x, axes), keepdims=keepdims)
    wide = np.uint64 if x.dtype == np.uint64 else np.int64
    total = np.sum(x, axis=_axes(x, axes), keepdims=keepdims, dtype=wide)
    count = x.size // max(total.size, 1)
    quotient = np.sign(total) * (np.abs(total) // count) if count else total  # 0, as where an integer is divided by 0
    return quotient.astype(x.dtype)


def _reduce_with(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def reference(x: np.ndarray, *, axes: Axes, keepdims: bool) -> np.ndarray:
        return function(x, axis=_axes(x, axes), keepdims=keepdims)

    return reference


# name: (reference, operand dtypes, what it computes)
REDUCTIONS: dict[str, tuple[Callable[..., np.ndarray], Sequence[str], str]] = {
    "sum": (in_float64(_sum), NUMBERS, "the sum; integers wrap around"),
    "mean": (
        in_float64(_mean),
        NUMBERS,
        "the arithmetic mean; integers are summed in 64 bits and truncated towards zero; that of none is 0",
    ),
    "prod": (in_float64(_prod), NUMBERS, "the product; integers wrap around"),
    "max": (_reduce_with(np.max), NUMBERS, "the largest element; NaN when there is one"),
    "min": (_reduce_with(np.min), NUMBERS, "the smallest element; NaN when there is one"),
    "any": (_reduce_with(np.any), BOOL, "true when one is"),
    "all": (_reduce_with(np.all), BOOL, "true when each is"),
}
REDUCTION_ATTRIBUTES = {"axes": Attribute("ints", ()), "keepdims": Attribute("bool", False)}
# shape, attributes, label
REDUCTION_SAMPLES = (
    ((3, 5), {"axes": (1,)}, "rows"),
    ((3, 5), {"axes": (0,), "keepdims": True}, "columns, kept"),
    ((2, 3, 4, 5), {"axes": (2, 3), "keepdims": True}, "spatial"),
    ((2, 3, 7), {"axes": (0, 2)}, "outer and inner"),
    ((2, 3, 5), {}, "everything"),
    ((2, 3, 5), {"keepdims": True}, "everything, kept"),
    ((1, 17, 1), {"axes": (1,)}, "odd shape"),
    ((), {}, "rank 0"),
)


def _samples(allowed: Sequence[str]) -> Iterator[Sample]:
    for shape, attributes, label in REDUCTION_SAMPLES:
        array = booleans(*shape) if allowed is BOOL else floats(*shape)
        yield Sample((array,), attributes, label)
    if allowed is not BOOL:
        for dtype in ("float64", "float16", "bfloat16", "int32", "int64"):
            yield Sample((draw_numbers(3, 4, dtype=dtype),), {"axes": (1,)}, dtype)


def _mean_samples() -> Iterator[Sample]:
    yield from _samples(NUMBERS)
    yield Sample((np.full((2, 3), 2**30, np.int32),), {"axes": (1,)}, "int32, whose sum is larger")


for _name, (_reference, _allowed, _summary) in REDUCTIONS.items():
    declare(
        _name,
        ("x",),
        _rule(_allowed),
        _reference,
        attributes=REDUCTION_ATTRIBUTES,
        samples=_mean_samples if _name == "mean" else partial(_samples, _allowed),
        flops=flops_per_input(1),
        summary=f"{_summary}, over `axes` (none given: all)",
    )


# --- the index of an extremum -----------------------------------------------------------------------------------------
def _arg_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x = types[0]
    require_dtype(x, NUMBERS)
    axis = require_axis(attrs["axis"], x.rank)
    return TensorType(reduce_shape(x.shape, (axis,), attrs["keepdims"]), "int64")


def _arg(
    function: Callable[..., np.ndarray], x: np.ndarray, *, axis: int, keepdims: bool, select_last_index: bool
) -> np.ndarray:
    if not select_last_index:
        return function(x, axis=axis, keepdims=keepdims).astype(np.int64)
    return (x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=keepdims)).astype(np.int64)


def _arg_samples() -> Iterator[Sample]:
    ties = np.array([[3, 1, 3, 1], [2, 2, 2, 2]], np.float32)
    yield Sample((floats(3, 5),), {"axis": 1}, "rows")
    yield Sample((floats(2, 3, 4),), {"axis": 1, "keepdims": True}, "middle axis, kept")
    yield Sample((ties,), {"axis": 1}, "ties: the first")
    yield Sample((ties,), {"axis": 1, "select_last_index": True}, "ties: the last")
    for dtype in ("float16", "int32"):
        yield Sample((draw_numbers(3, 7, dtype=dtype),), {"axis": 0}, dtype)


for _name, _function in (("argmax", np.argmax), ("argmin", np.argmin)):
    declare(
        _name,
        ("x",),
        _arg_type,
        partial(_arg, _function),
        attributes={
            "axis": Attribute("int"),
            "keepdims": Attribute("bool", False),
            "select_last_index": Attribute("bool", False),
        },
        samples=_arg_samples,
        flops=flops_per_input(1),
        summary=f"the index of the {'largest' if _name == 'argmax' else 'smallest'} element along an axis",
    )
