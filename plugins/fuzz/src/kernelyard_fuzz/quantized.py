"""Quantized layers: stored integers are dequantized, go through operators, and are quantized again, as in quantized
models.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Constant, Expr, Op, Var
from kernelyard_fuzz import bins
from kernelyard_fuzz.bins import Interval, interval_of
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.operators import grow, samples_of
from kernelyard_fuzz.sketch import Sketch
from kernelyard_fuzz.written import grow_or_write

STORED = ("int8", "uint8")
# What quantized models are made of; some of what is drawn is any other operator.
LAYERS = (
    *("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv2d_transpose", "matmul", "add", "subtract"),
    *("nn.relu", "clip", "sigmoid", "tanh", "nn.leaky_relu", "nn.hard_swish", "nn.softmax", "nn.layer_norm"),
    *(
        "nn.max_pool2d",
        "nn.avg_pool2d",
        "nn.avg_pool1d",
        "mean",
        "max",
        "concat",
        "reshape",
        "permute_dims",
        "split",
        "pad",
        "flip",
    ),
    *("multiply", "strided_slice", "tile", "nn.conv1d_transpose", "nn.conv3d_transpose", "argmax"),
)
SHAPES = ((1, 4, 6, 6), (2, 3, 5, 7), (3, 8), (2, 5, 16), (1, 2, 9), (1, 2, 3, 4, 5))
MEETING = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
MOST_LAYERS = 3
LEAST = 1e-30  # of what is stored by a scale of its own: libraries take denormal numbers for zeros
MOVED = ("reshape", "permute_dims", "pad", "strided_slice", "concat", "flip", "tile", "broadcast_to", "nn.max_pool2d")


class Habits(NamedTuple):
    """How often, of 100 tensors, a quantizer does what few do: scales along an axis, scales that are fed, another dtype
    than before."""

    by_axis: int
    fed: int
    other: int


ANY, USUAL = Habits(25, 10, 50), Habits(4, 2, 10)
BY_AXIS = USUAL._replace(by_axis=100)


class Parameters(NamedTuple):
    """How integers stand for floats: (stored - zero) * scale, with one scale or with those of an axis."""

    scale: Expr
    zero: Expr
    axis: int | None


def add_quantized_layers(
    chooser: Chooser, sketch: Sketch, layers: Sequence[Op], others: Sequence[Op], read: Var | None
) -> None:
    """Add one to three layers that read a value, or integers of their own; `others`: drawn now and then."""
    first, habits = chooser.pick(((ANY, ANY), (USUAL, USUAL), (BY_AXIS, USUAL)))
    op = _draw_layer(chooser, layers, others)
    stored, how = _first(chooser, sketch, read, op, first)
    for _ in range(chooser.between(1, MOST_LAYERS)):
        real = _dequantize(sketch, stored, how)
        if real is None:
            return
        made = _meet(chooser, sketch, op, real, habits) if op.name in MEETING and chooser.chance(60) else []
        made = made or grow_or_write(chooser, sketch, op, real, make=partial(_weights, chooser, sketch, habits))
        if made and chooser.chance(30):
            made = grow(chooser, sketch, chooser.pick(layers or others), made[0]) or made
        if not made or made[0].tensor_type.dtype != "float32":
            return
        is_moved = made[0].tensor_type.rank == real.tensor_type.rank and op.name in MOVED
        dtype, how = _behind(chooser, sketch, made[0], is_moved, (stored.tensor_type.dtype, how), habits)
        following = sketch.op("quantize", made[0], how.scale, how.zero, axis=how.axis, dtype=dtype)
        if following is None:
            return
        stored = following
        op = _draw_layer(chooser, layers, others)


def _meet(chooser: Chooser, sketch: Sketch, op: Op, real: Var, habits: Habits) -> Sequence[Var]:
    """Return what two stored tensors make, as branches of a network that meet: each has a zero point of its own."""
    shape, before = sketch.arrays[real].shape, sketch.mark()
    if len(shape) > 1 and chooser.chance(25):  # one number for each channel
        shape = tuple(size if axis == 1 else 1 for axis, size in enumerate(shape))
    dtype, low = chooser.pick(STORED), chooser.pick((-2.0, -0.5, 0.0))
    limits = np.iinfo(dtype)
    codes = sketch.input(bins.array_in(chooser, shape, dtype, Interval(limits.min, limits.max)))
    other = _dequantize(sketch, codes, _parameters(chooser, sketch, Interval(low, 1.5), dtype, shape, habits))
    pair = [real, real] if other is None else [other, real] if chooser.chance(30) else [real, other]
    made = sketch.op(op.name, *pair)
    if made is None:
        sketch.undo(before)
    return [] if made is None else [made]


def _first(chooser: Chooser, sketch: Sketch, read: Var | None, op: Op, habits: Habits) -> tuple[Var, Parameters]:
    """Return integers for an operator to begin with: a value of the graph, quantized where it is float, or a parameter,
    mostly of a rank that the operator reads."""
    dtype = chooser.pick(STORED)
    if read is not None and chooser.chance(50):
        array = sketch.arrays[read]
        if read.tensor_type.dtype in STORED:
            how = _parameters(chooser, sketch, Interval(-2.0, 2.0), read.tensor_type.dtype, array.shape, habits)
            return read, how
        if read.tensor_type.dtype == "float32":
            how = _parameters(chooser, sketch, interval_of(array), dtype, array.shape, habits)
            made = sketch.op("quantize", read, how.scale, how.zero, axis=how.axis, dtype=dtype)
            if made is not None:
                return made, how
    ranks = {sample.inputs[0].ndim for sample in samples_of(op) if sample.inputs}
    fitting = [shape for shape in SHAPES if len(shape) in ranks]
    shape, limits = chooser.pick(fitting if fitting and chooser.chance(75) else SHAPES), np.iinfo(dtype)
    stored = sketch.input(bins.array_in(chooser, shape, dtype, Interval(limits.min, limits.max)))
    return stored, _parameters(chooser, sketch, Interval(-2.0, 2.0), dtype, shape, habits)


def _draw_layer(chooser: Chooser, layers: Sequence[Op], others: Sequence[Op]) -> Op:
    """Return one of the layers, of which some only move numbers, or any other operator."""
    moving = [op for op in layers if op.name in MOVED]
    if moving and chooser.chance(20):
        return chooser.pick(moving)
    return chooser.pick(layers if layers and chooser.chance(75) else others)


def _behind(
    chooser: Chooser, sketch: Sketch, real: Var, is_moved: bool, before: tuple[str, Parameters], habits: Habits
) -> tuple[str, Parameters]:
    """Return dtype and parameters by which a layer's result is stored: where it only moves numbers, often the same."""
    array = sketch.arrays[real]
    if is_moved and chooser.chance(50) and _has_scales_of(before[1], array.shape):
        return before
    dtype = chooser.pick(STORED) if chooser.chance(2 * habits.other) else before[0]
    return dtype, _parameters(chooser, sketch, interval_of(array), dtype, array.shape, habits)


def _has_scales_of(how: Parameters, shape: Sequence[int]) -> bool:
    """Return True where there is one scale, or one for each element of its axis of that shape."""
    return how.axis is None or how.scale.tensor_type.shape in ((), (shape[how.axis],))


def _dequantize(sketch: Sketch, stored: Expr, how: Parameters) -> Var | None:
    return sketch.op("dequantize", stored, how.scale, how.zero, axis=how.axis, dtype="float32")


def _parameters(
    chooser: Chooser,
    sketch: Sketch,
    interval: Interval,
    dtype: str,
    shape: Sequence[int],
    habits: Habits,
    channels: int | None = None,
) -> Parameters:
    """Return parameters by which a dtype holds an interval; now and then half of it, or one scale for each channel.

    channels: the axis that scales mostly belong to; any, if None.
    """
    limits = np.iinfo(dtype)
    low, high = min(interval.low, 0.0), max(interval.high, 0.0)
    if high - low < LEAST:
        low = high = 0.0
    if dtype == "int8" and chooser.chance(50):  # symmetric
        scale, zero = max(-low, high) / limits.max, 0
    else:
        scale = (high - low) / (limits.max - limits.min)
        zero = int(np.clip(np.rint(limits.min - low / scale), limits.min, limits.max)) if scale else 0
    scales = np.asarray((scale or 0.05) * (0.5 if chooser.chance(10) else 1), np.float32)
    if chooser.chance(25):  # so that what is quantized again lies exactly between two integers
        scales = np.exp2(np.ceil(np.log2(scales)))
    axis = chooser.below(len(shape)) if shape and chooser.chance(habits.by_axis) else None
    if axis is not None and channels is not None and chooser.chance(75):
        axis = channels
    if axis is not None:
        scales = bins.array_in(chooser, (shape[axis],), "float32", Interval(0.5 * float(scales), float(scales)))
    zeros = np.full(scales.shape, zero, dtype)
    is_fed = chooser.chance(habits.fed)
    return Parameters(sketch.input(scales) if is_fed else Constant(scales), Constant(zeros), axis)


def _weights(chooser: Chooser, sketch: Sketch, habits: Habits, like: np.ndarray, shape: tuple[int, ...]) -> Var | None:
    """Return another operand of a layer, dequantized, in the range of a sample's; None where it is to be as usual."""
    if dtypes.from_numpy(like.dtype) != "float32" or not like.ndim or chooser.chance(30):
        return None
    interval, dtype, before = interval_of(like), "int8" if chooser.chance(75) else "uint8", sketch.mark()
    rare = habits if chooser.chance(50) else BY_AXIS
    channels = min(len(shape), 2) - 1 if chooser.chance(30) else 0 if len(shape) > 2 else len(shape) - 1
    how = _parameters(chooser, sketch, interval, dtype, shape, rare._replace(fed=0), channels)
    assert isinstance(how.scale, Constant)
    assert isinstance(how.zero, Constant)
    limits, scale, zero = np.iinfo(dtype), how.scale.data.max(initial=1e-6), how.zero.data.max(initial=0)
    low, high = (int(np.clip(end / scale + zero, limits.min, limits.max)) for end in interval)
    codes = bins.array_in(chooser, shape, dtype, Interval(low, high))
    real = _dequantize(sketch, sketch.input(codes) if chooser.chance(40) else Constant(codes), how)
    if real is not None and interval.holds(sketch.arrays[real].astype(np.float64)):
        return real
    sketch.undo(before)
    return None
