"""Convolution and transposed convolution over one, two or three spatial axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.dtypes import FLOATS
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type, tensors_of
from kernelyard.ops.declaration import declare
from kernelyard.ops.samples import floats
from kernelyard.ops.type_rules import (
    require,
    require_dtype,
    require_length,
    require_multiple,
    require_rank,
    require_same_dtype,
    unify,
)
from kernelyard.ops.windows import Ints, check_window, pad_spatial, taps, window_attributes, window_sizes


def _check_operands(types: Sequence[TensorType], attrs: Attributes, rank: int) -> None:
    require_same_dtype(types)
    require_dtype(types[0], FLOATS)
    require_rank(types[0], rank + 2, "the data (N, C, spatial...)")
    require_rank(types[1], rank + 2, "the weight")
    check_window(attrs, rank)
    require(attrs["groups"] >= 1, "groups must be positive", found=attrs["groups"])


# --- convolution ------------------------------------------------------------------------------------------------------
def _conv_type(rank: int, types: Sequence[TensorType], attrs: Attributes) -> Type:
    _check_operands(types, attrs, rank)
    (batch, channels, *spatial), (filters, per_group, *kernel) = types[0].shape, types[1].shape
    unify(channels, per_group * attrs["groups"], "the data's channels and the weight's (times groups)")
    require_multiple(filters, attrs["groups"], "the weight's output channels must be divisible by groups")
    return TensorType((batch, filters, *window_sizes(spatial, kernel, attrs)), types[0].dtype)


def _conv_flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    return 2 * dims.product(tensors_of(result)[0].shape) * dims.product(types[1].shape[1:])


def _conv(
    x: np.ndarray, weight: np.ndarray, *, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> np.ndarray:
    kernel = weight.shape[2:]
    attrs = {"strides": strides, "padding": padding, "dilation": dilation}
    out = tuple(int(size) for size in window_sizes(x.shape[2:], kernel, attrs))  # pyright: ignore[reportArgumentType]
    batch, filters, per_group = x.shape[0], weight.shape[0], weight.shape[1]
    by_group = weight.reshape(groups, filters // groups, per_group, *kernel)
    result = np.zeros((batch, groups, filters // groups, int(np.prod(out))), x.dtype)
    for position, part in taps(pad_spatial(x, padding, 0), kernel, out, strides, dilation):
        # One matrix product per kernel position: no copy of the input for every tap is ever held at once.
        matrix = by_group[(..., *position)]
        part = part.reshape(batch, groups, per_group, -1)
        result += matrix * part if per_group == 1 else np.matmul(matrix, part)
    return result.reshape(batch, filters, *out)


def _conv_samples(rank: int) -> Iterator[Sample]:
    spatial, kernel = (7, 6, 5)[:rank], (3, 2, 3)[:rank]

    def row(c: int, o: int, groups: int, label: str, k: Ints = kernel, n: int = 1, **attrs: Any) -> Sample:
        weight = floats(o, c // groups, *k, low=-1, high=1, seed=1)
        return Sample((floats(n, c, *spatial), weight), {"groups": groups, **attrs} if groups > 1 else attrs, label)

    one, two = (1,) * rank, (2,) * rank
    yield row(3, 4, 1, "plain")
    yield row(3, 8, 1, "padded, strided", n=2, strides=two, padding=one * 2)
    yield row(4, 6, 1, "pointwise", k=one)
    yield row(4, 4, 4, "depthwise", padding=one * 2)
    yield row(2, 6, 2, "depthwise with a multiplier", padding=one + two)
    yield row(6, 4, 2, "grouped", strides=(2, 1, 1)[:rank])
    yield row(3, 5, 1, "dilated", padding=two * 2, dilation=two)
    yield row(1, 1, 1, "asymmetric padding", padding=(0,) * rank + two)
    for dtype in ("float64", "float16", "bfloat16"):
        weight = floats(2, 3, *kernel, low=-1, high=1, dtype=dtype)
        yield Sample((floats(1, 3, *spatial, dtype=dtype), weight), {"padding": one * 2}, dtype)


# --- transposed convolution -------------------------------------------------------------------------------------------
def _transpose_type(rank: int, types: Sequence[TensorType], attrs: Attributes) -> Type:
    _check_operands(types, attrs, rank)
    require_length(attrs["output_padding"], rank, "output_padding")
    (batch, channels, *spatial), (weight_channels, per_group, *kernel) = types[0].shape, types[1].shape
    unify(channels, weight_channels, "the data's channels and the weight's first axis")
    require_multiple(channels, attrs["groups"], "the data's channels must be divisible by groups")
    sizes = _transpose_sizes(spatial, kernel, attrs)
    for i, size in enumerate(sizes):
        require(not isinstance(size, int) or size >= 1, f"nothing is left of spatial axis {i}", found=size)
    return TensorType((batch, per_group * attrs["groups"], *sizes), types[0].dtype)


def _transpose_sizes(spatial: Sequence[Dim], kernel: Sequence[Dim], attrs: Attributes) -> tuple[Dim, ...]:
    rank, padding = len(spatial), attrs["padding"]
    return tuple(
        (size - 1) * attrs["strides"][i]
        + attrs["dilation"][i] * (kernel[i] - 1)
        + attrs["output_padding"][i]
        + 1
        - padding[i]
        - padding[rank + i]
        for i, size in enumerate(spatial)
    )


def _transpose_flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    return 2 * types[0].numel * dims.product(types[1].shape[1:])


def _conv_transpose(
    x: np.ndarray,
    weight: np.ndarray,
    *,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    output_padding: Ints,
) -> np.ndarray:
    rank = x.ndim - 2
    attrs = {"strides": strides, "dilation": dilation, "output_padding": output_padding, "padding": (0,) * (2 * rank)}
    batch, channels, *spatial = x.shape
    per_group, kernel = weight.shape[1], weight.shape[2:]
    by_group = np.swapaxes(weight.reshape(groups, channels // groups, per_group, *kernel), 1, 2)
    by_input = x.reshape(batch, groups, channels // groups, -1)
    whole = np.zeros((batch, groups * per_group, *map(int, _transpose_sizes(spatial, kernel, attrs))), x.dtype)  # pyright: ignore[reportArgumentType]
    for position in itertools.product(*map(range, kernel)):
        part = np.matmul(by_group[(..., *position)], by_input).reshape(batch, groups * per_group, *spatial)
        starts = [p * step for p, step in zip(position, dilation, strict=True)]
        index = [slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, spatial, strides, strict=True)]
        whole[(slice(None), slice(None), *index)] += part
    crop = [slice(padding[i], whole.shape[2 + i] - padding[rank + i]) for i in range(rank)]
    return whole[(slice(None), slice(None), *crop)]


def _transpose_samples(rank: int) -> Iterator[Sample]:
    spatial, kernel = (5, 4, 3)[:rank], (3, 2, 3)[:rank]

    def row(c: int, o: int, groups: int, label: str, k: Ints = kernel, n: int = 1, **attrs: Any) -> Sample:
        weight = floats(c, o // groups, *k, low=-1, high=1, seed=1)
        return Sample((floats(n, c, *spatial), weight), {"groups": groups, **attrs} if groups > 1 else attrs, label)

    one, two = (1,) * rank, (2,) * rank
    yield row(3, 4, 1, "plain")
    yield row(3, 2, 1, "doubling", k=two, n=2, strides=two)
    yield row(4, 3, 1, "padded, strided", strides=two, padding=one * 2)
    yield row(3, 4, 1, "output padding", strides=two, padding=one * 2, output_padding=one)
    yield row(4, 6, 2, "grouped", strides=(2, 1, 1)[:rank])
    yield row(4, 4, 4, "depthwise", padding=one + (0,) * rank)
    yield row(2, 3, 1, "dilated", dilation=two)
    for dtype in ("float64", "float16"):
        weight = floats(3, 2, *kernel, low=-1, high=1, dtype=dtype)
        yield Sample((floats(1, 3, *spatial, dtype=dtype), weight), {"strides": two}, dtype)


for _rank in (1, 2, 3):
    declare(
        f"nn.conv{_rank}d",
        ("x", "weight"),
        partial(_conv_type, _rank),
        _conv,
        attributes={**window_attributes(_rank), "groups": Attribute("int", 1)},
        samples=partial(_conv_samples, _rank),
        flops=_conv_flops,
        widen=True,
        summary="convolution of x (N, C, spatial...) with weight (O, C / groups, kernel...)",
    )
    declare(
        f"nn.conv{_rank}d_transpose",
        ("x", "weight"),
        partial(_transpose_type, _rank),
        _conv_transpose,
        attributes={
            **window_attributes(_rank),
            "groups": Attribute("int", 1),
            "output_padding": Attribute("ints", (0,) * _rank),
        },
        samples=partial(_transpose_samples, _rank),
        flops=_transpose_flops,
        widen=True,
        summary="transposed convolution of x (N, C, spatial...) with weight (C, O / groups, kernel...)",
    )
