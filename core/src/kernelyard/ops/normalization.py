"""Normalisation and softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard.dims import Dim
from kernelyard.dtypes import FLOATS
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType
from kernelyard.ops.declaration import declare, flops_per_output
from kernelyard.ops.numeric import in_float64
from kernelyard.ops.samples import floats
from kernelyard.ops.type_rules import (
    require,
    require_axes,
    require_axis,
    require_dtype,
    require_multiple,
    require_same_dtype,
    same_as_first,
    unify_shapes,
)

Axes = tuple[int, ...]
EPSILON = Attribute("float", 1e-5)


def _check_floats(types: Sequence[TensorType]) -> None:
    require_same_dtype(types)
    require_dtype(types[0], FLOATS)


def _check_vectors(types: Sequence[TensorType], size: Dim, names: Sequence[str]) -> None:
    for type_, name in zip(types, names, strict=True):
        unify_shapes(type_.shape, (size,), f"{name} and the channels")


def _broadcast_along(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])


def _normalize(x: np.ndarray, axes: Axes, epsilon: float) -> np.ndarray:
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + epsilon)


# --- batch_norm -------------------------------------------------------------------------------------------------------
def _check_batch_norm(types: Sequence[TensorType], attrs: Attributes) -> None:
    _check_floats(types)
    axis = require_axis(attrs["axis"], types[0].rank)
    _check_vectors(types[1:], types[0].shape[axis], ("gamma", "beta", "mean", "variance"))


def _batch_norm(
    x: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    *,
    epsilon: float,
    axis: int,
) -> np.ndarray:
    scale = gamma / np.sqrt(variance + epsilon)
    return (x - _broadcast_along(mean, axis, x.ndim)) * _broadcast_along(scale, axis, x.ndim) + _broadcast_along(
        beta, axis, x.ndim
    )


def _batch_norm_samples() -> Iterator[Sample]:
    def row(shape: Axes, axis: int, label: str, dtype: str = "float32", **attrs: float) -> Sample:
        c = shape[axis]
        vectors = [floats(c, seed=i, dtype=dtype) for i in (1, 2, 3)]
        variance = floats(c, low=0.1, high=2, dtype=dtype)
        given = {**attrs, "axis": axis} if axis != 1 else attrs
        return Sample((floats(*shape, dtype=dtype), *vectors, variance), given, label)

    yield row((2, 3, 4, 5), 1, "images")
    yield row((2, 5), 1, "rows")
    yield row((2, 4, 5, 3), 3, "channels last", epsilon=1e-3)
    yield row((1, 17, 7), 1, "odd shape")
    yield row((2, 3, 4), 1, "float16", "float16")


declare(
    "nn.batch_norm",
    ("x", "gamma", "beta", "mean", "variance"),
    same_as_first(_check_batch_norm),
    in_float64(_batch_norm),
    attributes={"epsilon": EPSILON, "axis": Attribute("int", 1)},
    samples=_batch_norm_samples,
    flops=flops_per_output(2),
    summary="(x - mean) / sqrt(variance + epsilon) * gamma + beta along one axis",
)


# --- layer_norm and rms_norm ------------------------------------------------------------------------------------------
def _check_over_axes(types: Sequence[TensorType], attrs: Attributes) -> None:
    _check_floats(types)
    axes = require_axes(attrs["axes"], types[0].rank)
    require(bool(axes), "at least one axis is needed", found="none")
    normalized = tuple(types[0].shape[axis] for axis in axes)
    for type_, name in zip(types[1:], ("gamma", "beta"), strict=False):
        unify_shapes(type_.shape, normalized, f"{name} and the normalised axes")


def _broadcast_over(parameter: np.ndarray, axes: Axes, shape: Sequence[int]) -> np.ndarray:
    return parameter.reshape([size if i in axes else 1 for i, size in enumerate(shape)])


def _layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, axes: Axes, epsilon: float) -> np.ndarray:
    normal = _normalize(x, axes, epsilon)
    return normal * _broadcast_over(gamma, axes, x.shape) + _broadcast_over(beta, axes, x.shape)


def _rms_norm(x: np.ndarray, gamma: np.ndarray, *, axes: Axes, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axes, keepdims=True) + epsilon) * _broadcast_over(gamma, axes, x.shape)


# shape, axes, label, dtype
OVER_AXES = (
    ((2, 5, 8), (2,), "last axis", "float32"),
    ((3, 17), (1,), "odd shape", "float32"),
    ((2, 3, 4, 5), (2, 3), "two axes", "float32"),
    ((2, 3, 4), (1,), "middle axis", "float32"),
    ((2, 6), (1,), "float16", "float16"),
)


def _layer_norm_samples() -> Iterator[Sample]:
    for shape, axes, label, dtype in OVER_AXES:
        inner = [shape[axis] for axis in axes]
        parameters = floats(*inner, seed=1, dtype=dtype), floats(*inner, seed=2, dtype=dtype)
        yield Sample((floats(*shape, dtype=dtype), *parameters), {"axes": axes, "epsilon": 1e-5}, label)


def _rms_norm_samples() -> Iterator[Sample]:
    for shape, axes, label, dtype in OVER_AXES:
        gamma = floats(*(shape[axis] for axis in axes), seed=1, dtype=dtype)
        yield Sample((floats(*shape, dtype=dtype), gamma), {"axes": axes, "epsilon": 1e-6}, label)


declare(
    "nn.layer_norm",
    ("x", "gamma", "beta"),
    same_as_first(_check_over_axes),
    in_float64(_layer_norm),
    attributes={"axes": Attribute("ints"), "epsilon": EPSILON},
    samples=_layer_norm_samples,
    flops=flops_per_output(8),
    summary="(x - mean) / sqrt(variance + epsilon) * gamma + beta with statistics over some axes",
)
declare(
    "nn.rms_norm",
    ("x", "gamma"),
    same_as_first(_check_over_axes),
    in_float64(_rms_norm),
    attributes={"axes": Attribute("ints"), "epsilon": EPSILON},
    samples=_rms_norm_samples,
    flops=flops_per_output(5),
    summary="x / sqrt(mean(x * x) + epsilon) * gamma, the mean over some axes",
)


# --- instance_norm and group_norm -------------------------------------------------------------------------------------
def _check_instance_norm(types: Sequence[TensorType], attrs: Attributes) -> None:
    _check_floats(types)
    require(types[0].rank >= 3, "the data needs spatial axes (N, C, spatial...)", found=repr(types[0]))
    _check_vectors(types[1:], types[0].shape[1], ("gamma", "beta"))


def _instance_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, epsilon: float) -> np.ndarray:
    normal = _normalize(x, tuple(range(2, x.ndim)), epsilon)
    return normal * _broadcast_along(gamma, 1, x.ndim) + _broadcast_along(beta, 1, x.ndim)


def _check_group_norm(types: Sequence[TensorType], attrs: Attributes) -> None:
    _check_floats(types)
    require(types[0].rank >= 2, "the data needs channels (N, C, ...)", found=repr(types[0]))
    channels, groups = types[0].shape[1], attrs["num_groups"]
    require(groups >= 1, "num_groups must be positive", found=groups)
    require_multiple(channels, groups, "the channels must be divisible by num_groups")
    _check_vectors(types[1:], channels, ("gamma", "beta"))


def _group_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *, num_groups: int, epsilon: float) -> np.ndarray:
    grouped = x.reshape(x.shape[0], num_groups, -1)
    normal = _normalize(grouped, (2,), epsilon).reshape(x.shape)
    return normal * _broadcast_along(gamma, 1, x.ndim) + _broadcast_along(beta, 1, x.ndim)


def _instance_norm_samples() -> Iterator[Sample]:
    for shape, label in (((2, 3, 4, 5), "images"), ((1, 5, 17), "sequence"), ((2, 2, 3, 2, 3), "volumes")):
        yield Sample((floats(*shape), floats(shape[1], seed=1), floats(shape[1], seed=2)), {"epsilon": 1e-5}, label)


def _group_norm_samples() -> Iterator[Sample]:
    for shape, groups, label in (
        ((2, 6, 4, 5), 3, "images"),
        ((1, 4, 7), 1, "one group"),
        ((2, 4, 3), 4, "each channel"),
    ):
        yield Sample(
            (floats(*shape), floats(shape[1], seed=1), floats(shape[1], seed=2)), {"num_groups": groups}, label
        )


declare(
    "nn.instance_norm",
    ("x", "gamma", "beta"),
    same_as_first(_check_instance_norm),
    in_float64(_instance_norm),
    attributes={"epsilon": EPSILON},
    samples=_instance_norm_samples,
    flops=flops_per_output(8),
    summary="each channel of each example normalised over its spatial axes, times gamma plus beta",
)
declare(
    "nn.group_norm",
    ("x", "gamma", "beta"),
    same_as_first(_check_group_norm),
    in_float64(_group_norm),
    attributes={"num_groups": Attribute("int"), "epsilon": EPSILON},
    samples=_group_norm_samples,
    flops=flops_per_output(8),
    summary="each group of channels of each example normalised, times gamma plus beta per channel",
)


# --- softmax ----------------------------------------------------------------------------------------------------------
def _check_softmax(types: Sequence[TensorType], attrs: Attributes) -> None:
    require_dtype(types[0], FLOATS)
    require_axis(attrs["axis"], types[0].rank)


def _softmax(x: np.ndarray, *, axis: int) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _log_softmax(x: np.ndarray, *, axis: int) -> np.ndarray:
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def _softmax_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 5),), {"axis": 1}, "rows")
    yield Sample((floats(2, 3, 4, 17),), {"axis": 3}, "attention")
    yield Sample((floats(2, 5, 3),), {"axis": 1}, "middle axis")
    yield Sample((floats(7),), {"axis": 0}, "vector")
    yield Sample((floats(2, 5, low=500, high=900),), {"axis": 1}, "large values")
    yield Sample((np.array([[0, -np.inf, 1]], np.float32),), {"axis": 1}, "masked")
    for dtype in ("float64", "float16", "bfloat16"):
        yield Sample((floats(2, 6, dtype=dtype),), {"axis": 1}, dtype)


for _name, _reference, _summary in (
    ("nn.softmax", _softmax, "exp(x) / sum(exp(x)) along an axis"),
    ("nn.log_softmax", _log_softmax, "x - log(sum(exp(x))) along an axis"),
):
    declare(
        _name,
        ("x",),
        same_as_first(_check_softmax),
        in_float64(_reference),
        attributes={"axis": Attribute("int")},
        samples=_softmax_samples,
        flops=flops_per_output(5),
        summary=_summary,
    )


# --- lrn --------------------------------------------------------------------------------------------------------------
def _check_lrn(types: Sequence[TensorType], attrs: Attributes) -> None:
    require_dtype(types[0], FLOATS)
    require(types[0].rank >= 2, "the data needs channels (N, C, ...)", found=repr(types[0]))
    require(attrs["size"] >= 1, "the size must be positive", found=attrs["size"])


def _lrn(x: np.ndarray, *, size: int, alpha: float, beta: float, bias: float) -> np.ndarray:
    squares = x * x
    channels, before = x.shape[1], (size - 1) // 2
    total = np.zeros_like(x)
    for offset in range(-before, size - before):
        into = slice(max(-offset, 0), max(min(channels - offset, channels), 0))
        of = slice(max(offset, 0), max(min(channels + offset, channels), 0))
        total[:, into] += squares[:, of]
    return x / (bias + alpha / size * total) ** beta


def _lrn_samples() -> Iterator[Sample]:
    yield Sample((floats(2, 7, 3, 4),), {"size": 5}, "defaults")
    yield Sample((floats(1, 3, 5),), {"size": 4, "alpha": 0.2, "beta": 0.5, "bias": 2.0}, "even size")
    yield Sample((floats(1, 2, 3),), {"size": 9, "alpha": 0.1}, "wider than the channels")
    yield Sample((floats(1, 16, 4),), {"size": 5, "alpha": 0.1}, "channels in blocks of eight")


declare(
    "nn.lrn",
    ("x",),
    same_as_first(_check_lrn),
    in_float64(_lrn),
    attributes={
        "size": Attribute("int"),
        "alpha": Attribute("float", 1e-4),
        "beta": Attribute("float", 0.75),
        "bias": Attribute("float", 1.0),
    },
    samples=_lrn_samples,
    flops=flops_per_output(6),
    summary="x / (bias + alpha / size * sum of squares over neighbouring channels) ** beta",
)
