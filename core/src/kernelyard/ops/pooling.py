"""Maximum and average pooling over one, two or three spatial axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.dtypes import FLOATS
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare, sum_of_elements
from kernelyard.ops.samples import draw_numbers, floats
from kernelyard.ops.type_rules import NUMBERS, require, require_dtype, require_length, require_rank
from kernelyard.ops.windows import Ints, check_window, pad_spatial, taps, window_attributes, window_sizes


def _pool_type(rank: int, allowed: Sequence[str], types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, pool_size = types[0], attrs["pool_size"]
    require_dtype(x, allowed)
    require_rank(x, rank + 2, "the data (N, C, spatial...)")
    check_window(attrs, rank)
    require_length(pool_size, rank, "pool_size")
    require(all(size >= 1 for size in pool_size), "a pool size is not positive", found=pool_size)
    for i, pad in enumerate(attrs["padding"]):
        reach = attrs["dilation"][i % rank] * (pool_size[i % rank] - 1)
        require(
            pad <= reach, "a window would lie in the padding alone", found=f"padding {pad}", expected=f"at most {reach}"
        )
    return TensorType(x.shape[:2] + window_sizes(x.shape[2:], pool_size, attrs, attrs["ceil_mode"]), x.dtype)


def _pool_flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    return sum_of_elements(result) * dims.product(attrs["pool_size"])


def _lay_out(
    x: np.ndarray, value: float | int, pool_size: Ints, strides: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
) -> tuple[np.ndarray, Ints]:
    """Return x padded so that every window fits, and the number of windows along each axis."""
    attrs = {"strides": strides, "padding": padding, "dilation": dilation}
    out = tuple(int(size) for size in window_sizes(x.shape[2:], pool_size, attrs, ceil_mode))  # pyright: ignore[reportArgumentType]
    rank = len(pool_size)
    extra = []
    for i in range(rank):
        needed = (out[i] - 1) * strides[i] + dilation[i] * (pool_size[i] - 1) + 1
        extra.append(max(needed - (x.shape[2 + i] + padding[i] + padding[rank + i]), 0))
    return pad_spatial(x, padding, value, tuple(extra)), out


def _max_pool(
    x: np.ndarray, *, pool_size: Ints, strides: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
) -> np.ndarray:
    lowest = np.iinfo(x.dtype).min if np.issubdtype(x.dtype, np.integer) else -np.inf
    whole, out = _lay_out(x, lowest, pool_size, strides, padding, dilation, ceil_mode)
    result = np.full((*x.shape[:2], *out), lowest, x.dtype)
    for _, part in taps(whole, pool_size, out, strides, dilation):
        np.maximum(result, part, out=result)
    return result


def _avg_pool(
    x: np.ndarray,
    *,
    pool_size: Ints,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
) -> np.ndarray:
    whole, out = _lay_out(x, 0, pool_size, strides, padding, dilation, ceil_mode)
    counted = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if count_include_pad:  # what ceil_mode reaches beyond the padding is never counted
        counted = pad_spatial(counted, padding, 1)
        padding = (0,) * len(padding)
    counted = _embed(counted, padding, whole.shape[2:])
    total = np.zeros((*x.shape[:2], *out), x.dtype)
    count = np.zeros((1, 1, *out), x.dtype)
    for (_, part), (_, ones) in zip(
        taps(whole, pool_size, out, strides, dilation), taps(counted, pool_size, out, strides, dilation), strict=True
    ):
        total += part
        count += ones
    return total / count


def _embed(counted: np.ndarray, padding: Ints, spatial: Sequence[int]) -> np.ndarray:
    """Return `counted` with zeros around it, up to the size of the padded input."""
    rank = len(spatial)
    back = tuple(spatial[i] - counted.shape[2 + i] - padding[i] for i in range(rank))
    return pad_spatial(counted, padding[:rank] + back, 0)


def _samples(rank: int, average: bool) -> Iterator[Sample]:
    two, one = (2,) * rank, (1,) * rank
    three = (3, 2, 3)[:rank]
    spatial = (9, 7, 6)[:rank]
    reach = tuple(size - 1 for size in three)
    yield Sample((floats(1, 3, *spatial),), {"pool_size": two, "strides": two}, "halving")
    yield Sample((floats(2, 2, *spatial),), {"pool_size": three, "strides": two, "padding": one * 2}, "padded")
    yield Sample((floats(1, 1, *spatial),), {"pool_size": three, "padding": (0,) * rank + reach}, "padded behind")
    ceil = {"strides": two, "ceil_mode": True}
    yield Sample((floats(1, 2, *spatial),), {"pool_size": two, **ceil}, "ceil mode")
    yield Sample((floats(1, 2, *spatial),), {"pool_size": three, "padding": one * 2, **ceil}, "ceil mode, padded")
    yield Sample(
        (floats(1, 2, *spatial),), {"pool_size": two, "padding": one * 2, **ceil}, "ceil mode, last one dropped"
    )
    larger = tuple(size + 1 for size in spatial)
    yield Sample((floats(1, 2, *spatial),), {"pool_size": larger, **ceil}, "ceil mode, larger than the input")
    yield Sample((floats(1, 2, *spatial),), {"pool_size": two, "dilation": two}, "dilated")
    if average:
        counted = {"pool_size": three, "padding": one * 2, "count_include_pad": True}
        yield Sample((floats(1, 2, *spatial),), counted, "padding counted")
        yield Sample((floats(1, 2, *spatial),), {**counted, **ceil}, "padding counted, ceil mode")
    for dtype in ("float64", "float16") if average else ("float64", "float16", "int8", "uint8"):
        yield Sample((draw_numbers(1, 2, *spatial, dtype=dtype),), {"pool_size": two}, dtype)


for _rank in (1, 2, 3):
    _attributes = {"pool_size": Attribute("ints"), **window_attributes(_rank), "ceil_mode": Attribute("bool", False)}
    declare(
        f"nn.max_pool{_rank}d",
        ("x",),
        partial(_pool_type, _rank, NUMBERS),
        _max_pool,
        attributes=_attributes,
        samples=partial(_samples, _rank, False),
        flops=_pool_flops,
        widen=True,
        summary="the largest element of each window; padding does not take part",
    )
    declare(
        f"nn.avg_pool{_rank}d",
        ("x",),
        partial(_pool_type, _rank, FLOATS),
        _avg_pool,
        attributes={**_attributes, "count_include_pad": Attribute("bool", False)},
        samples=partial(_samples, _rank, True),
        flops=_pool_flops,
        widen=True,
        summary="the mean of each window; padding counts as zeros with count_include_pad, else not at all",
    )
