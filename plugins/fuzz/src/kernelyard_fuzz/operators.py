"""Operators added to a sketch from their own declarations: samples say which operands and attributes go together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dtypes
from kernelyard.ir import Constant, Expr, Op, Sample, Var, all_ops
from kernelyard.ir.op import NO_ATTRIBUTES
from kernelyard_fuzz import bins
from kernelyard_fuzz.bins import Interval, interval_of
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.sketch import Sketch

Make: TypeAlias = Callable[[np.ndarray, tuple[int, ...]], "Expr | None"]
TRIES = 6
MOST_CHANGES = 3  # of the attributes of one operator
MOST_AXES = 5  # whose permutations are tried
# Operands that hold sizes or positions of others: other numbers there mean nothing.
TIED = (
    "lengths",
    "seqstart_q",
    "seqstart_k",
    "roots",
    "features",
    "children",
    "batch_indices",
    "groups",
    "sums",
    "zero",
    "p",
)
SWAPS = {
    "float32": ("float16", "bfloat16", "float64", "float16", "bfloat16", "float64", "int32", "uint8", "bool"),
    "int64": ("int32", "int8", "uint32"),
    "int32": ("int64", "int16", "uint8"),
}


@cache
def samples_of(op: Op) -> tuple[Sample, ...]:
    """Return an operator's samples of moderate numbers."""
    found = op.samples() if op.reference is not None else ()
    return tuple(sample for sample in found if all(map(_is_finite, sample.inputs)))


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind in "iub" or bool(np.isfinite(array.astype(np.float64)).all())


@cache
def vocabulary() -> tuple[Op, ...]:
    """Return the operators that graphs are made of."""
    return tuple(op for op in all_ops() if op.pure and samples_of(op))


def grow(
    chooser: Chooser,
    sketch: Sketch,
    op: Op,
    read: Var | None = None,
    attrs: Mapping[str, Any] = NO_ATTRIBUTES,
    make: Make | None = None,
) -> list[Var]:
    """Add an operator that reads a value of the sketch, where it can; return its results.

    The other operands are values, parameters and constants whose shapes and numbers go with it as in one of the
    operator's samples. attrs: attributes that it must have, or conditions of them. make: makes other operands, given
    those of the sample and the shapes that they are to have, or leaves them.
    """
    for _ in range(TRIES):
        before = sketch.mark()
        sample, at = _reader(chooser, op, read)
        sample = _with_attributes(chooser, op, sample, attrs)
        if _has_tied(op, sample) and chooser.chance(80):  # no other sizes go with it
            made = _apply(chooser, sketch, op, sample, [array.shape for array in sample.inputs], {})
        elif read is None or at is None:
            made = _apply(chooser, sketch, op, sample, _resize_operands(chooser, sample), {})
        else:
            made = _reading(chooser, sketch, op, sample, at, read, make)
        if made:
            return made
        sketch.undo(before)
    return []


@cache
def _positions(op: Op) -> Mapping[tuple[int, str], Sequence[tuple[Sample, int]]]:
    """Return samples with the position of an operand, by that operand's rank and dtype."""
    found: dict[tuple[int, str], list[tuple[Sample, int]]] = {}
    for sample in samples_of(op):
        for at, array in enumerate(sample.inputs):
            found.setdefault((array.ndim, dtypes.from_numpy(array.dtype)), []).append((sample, at))
    return found


def _reader(chooser: Chooser, op: Op, read: Var | None) -> tuple[Sample, int | None]:
    """Return a sample and the operand that is to read a value: mostly one of its rank and dtype, where there is one."""
    if read is not None:
        fitting = _positions(op).get((read.tensor_type.rank, read.tensor_type.dtype))
        if fitting and chooser.chance(90):
            return chooser.pick(fitting)
    sample = chooser.pick(samples_of(op))
    return sample, chooser.below(len(sample.inputs)) if sample.inputs else None


def grow_exactly(
    chooser: Chooser,
    sketch: Sketch,
    op: Op,
    given: Mapping[int, Expr],
    constants: Sequence[int],
    attrs: Mapping[str, Any],
    wanted: Mapping[int, Sequence[str]],
    like: np.ndarray | None = None,
) -> list[Var]:
    """Add an operator that reads these operands as they are; return its results, none where it does not take them.

    constants: positions of operands that are to be constants. wanted: dtypes of operands, by position. like: an array
    of the rank and dtype that the result is to have.
    """
    fitting = [sample for sample in samples_of(op) if _takes(sample, given, wanted)]
    for _ in range(TRIES if fitting else 0):
        sample = _with_attributes(chooser, op, chooser.pick(fitting), attrs)
        sizes: dict[int, int] = {}
        for at, operand in given.items():
            if operand.tensor_type.rank == sample.inputs[at].ndim:
                sizes |= _map_sizes(sample.inputs[at].shape, operand.tensor_type.shape)
        shapes: list[tuple[int, ...]] = [_resize(array.shape, sizes) for array in sample.inputs]
        if not given:
            shapes = _resize_operands(chooser, sample) if like is None else _replace_shape(sample, like.shape)
        before = sketch.mark()
        made = _apply(chooser, sketch, op, sample, shapes, given, constants)
        if made and (like is None or _is_like(made[0], like)):
            return made
        sketch.undo(before)
    return []


def _replace_shape(sample: Sample, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return shapes of a sample's operands with another one in place of the first's."""
    first = sample.inputs[0].shape if sample.inputs else ()
    return [shape if array.shape == first else array.shape for array in sample.inputs]


def _is_like(var: Var, like: np.ndarray) -> bool:
    return var.tensor_type.rank == like.ndim and var.tensor_type.dtype == dtypes.from_numpy(like.dtype)


def _takes(sample: Sample, given: Mapping[int, Expr], wanted: Mapping[int, Sequence[str]]) -> bool:
    """Return True for a sample with operands of the ranks and dtypes of given ones; numbers go with any."""
    arrays = sample.inputs
    if any(at >= len(arrays) for at in (*given, *wanted)):
        return False
    if any(dtypes.from_numpy(arrays[at].dtype) not in names for at, names in wanted.items()):
        return False
    for at, operand in given.items():
        type_ = operand.tensor_type
        if type_.dtype != dtypes.from_numpy(arrays[at].dtype):
            return False
        if type_.rank != arrays[at].ndim and not (isinstance(operand, Constant) and type_.rank == 0):
            return False
    return True


def _with_attributes(chooser: Chooser, op: Op, sample: Sample, attrs: Mapping[str, Any]) -> Sample:
    """Return a sample with these attributes; for a condition, with any value that fulfils it, where one is known."""
    if not attrs:
        return sample
    wanted = {name: value for name, value in attrs.items() if not callable(value)}
    for name, condition in ((name, value) for name, value in attrs.items() if callable(value)):
        fitting = [value for value in _candidates(op, sample, name) if condition(value)]
        if fitting:
            wanted[name] = chooser.pick(fitting)
    return Sample(sample.inputs, {**sample.attributes, **wanted}, sample.label)


def _candidates(op: Op, sample: Sample, name: str) -> Sequence[Any]:
    """Return values of an attribute: those of the samples, and all permutations of axes."""
    rank = sample.inputs[0].ndim if sample.inputs else 0
    if name == "axes" and rank <= MOST_AXES:
        return list(permutations(range(rank)))
    return [each.attributes[name] for each in (sample, *samples_of(op)) if name in each.attributes]


def _reading(
    chooser: Chooser, sketch: Sketch, op: Op, sample: Sample, at: int, read: Var, make: Make | None
) -> list[Var]:
    array = sample.inputs[at]
    dtype, own = dtypes.from_numpy(array.dtype), read.tensor_type.dtype
    swap = {dtype: own} if own != dtype and own in SWAPS and chooser.chance(20) else {}
    fitted = fit(chooser, sketch, read, array.ndim, swap.get(dtype, dtype), interval_of(array))
    if fitted is None:
        return []
    sizes = _map_sizes(array.shape, fitted.tensor_type.shape)
    shapes: list[tuple[int, ...]] = [_resize(other.shape, sizes) for other in sample.inputs]
    given: dict[int, Expr] = {at: fitted}
    if chooser.chance(10):  # the same value twice
        given |= {other: fitted for other, one in enumerate(sample.inputs) if one.dtype == array.dtype}
    if make is not None and all(math.prod(shape) <= bins.LARGEST for shape in shapes):
        given |= _make_others(make, sample, shapes, given)
    return _apply(chooser, sketch, op, sample, shapes, given, swap=swap)


def _make_others(
    make: Make, sample: Sample, shapes: Sequence[tuple[int, ...]], given: Mapping[int, Expr]
) -> dict[int, Expr]:
    """Return other operands by position, of those that `make` makes."""
    others = {at: make(sample.inputs[at], shape) for at, shape in enumerate(shapes) if at not in given}
    return {at: made for at, made in others.items() if made is not None}


def fit(chooser: Chooser, sketch: Sketch, var: Var, rank: int, dtype: str, interval: Interval) -> Var | None:
    """Return a value of that rank, dtype and range, made from another one by as few operators as that takes."""
    found: Var | None = var
    if var.tensor_type.dtype != dtype:
        floats = dtypes.is_float(dtype) and dtypes.is_float(var.tensor_type.dtype)
        if not floats and not chooser.chance(30):
            return None
        found = sketch.op("astype", var, dtype=dtype)
    if found is not None and found.tensor_type.rank != rank:
        found = sketch.op("reshape", found, shape=_of_rank(chooser, found.tensor_type.shape, rank))
    if found is None or interval.holds(sketch.arrays[found].astype(np.float64)):
        return found
    if dtypes.is_float(dtype):
        return sketch.op("clip", found, min=interval.low, max=interval.high)
    return None


def _of_rank(chooser: Chooser, shape: Sequence[Any], rank: int) -> tuple[int, ...]:
    sizes = list(shape)
    while len(sizes) > max(rank, 1):
        at = chooser.below(len(sizes) - 1)
        sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
    while len(sizes) < rank:
        sizes.insert(chooser.below(len(sizes) + 1), 1)
    return tuple(sizes) if rank else ()


def _map_sizes(old: Sequence[int], new: Sequence[Any]) -> dict[int, int]:
    """Return sizes by those of the sample that they stand for; an axis of size 1 broadcasts, and stands for itself."""
    return {one: other for one, other in zip(old, new, strict=True) if one > 1}


def _resize_operands(chooser: Chooser, sample: Sample) -> list[tuple[int, ...]]:
    """Return shapes of a sample's operands with other sizes, equal ones in place of equal ones; or its own."""
    shapes: list[tuple[int, ...]] = [array.shape for array in sample.inputs]
    if chooser.chance(25):
        return shapes
    sizes: dict[int, int] = {}
    for shape in shapes:
        for axis, old in enumerate(shape):
            if old > 1 and old not in sizes and chooser.chance(60):
                others = math.prod(_resize(shape[:axis], sizes))
                sizes[old] = bins.size(chooser, others, may_be_large=len(shapes) <= 2)
    return [_resize(shape, sizes) for shape in shapes]


def _resize(shape: Sequence[int], sizes: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(sizes.get(size, size) for size in shape)


def _apply(
    chooser: Chooser,
    sketch: Sketch,
    op: Op,
    sample: Sample,
    shapes: Sequence[tuple[int, ...]],
    given: Mapping[int, Expr],
    constants: Sequence[int] = (),
    swap: Mapping[str, str] | None = None,
) -> list[Var]:
    """Apply an operator to given operands and to others made for it. swap: dtypes in place of those of the sample."""
    if _is_tied(op, sample, shapes, given) or any(math.prod(shape) > bins.LARGEST for shape in shapes):
        return []
    operands = _operands(chooser, sketch, op, sample, shapes, given, swap)
    known = [at for at, operand in enumerate(operands) if isinstance(operand, Constant)]
    free = [at for at in known if at not in constants and at not in given]
    fed = [at for at in free if chooser.chance(50)]
    if len(known) == len(operands):
        fed = fed or free[:1]  # an operator of constants alone would be folded away
    attributes = _attributes(chooser, op, sample)
    return sketch.apply(op, operands, attributes, fed) or sketch.apply(op, operands, sample.attributes, fed)


def _operands(
    chooser: Chooser,
    sketch: Sketch,
    op: Op,
    sample: Sample,
    shapes: Sequence[tuple[int, ...]],
    given: Mapping[int, Expr],
    swap: Mapping[str, str] | None,
) -> list[Expr]:
    swap = (_swap(chooser, sample) if not given else {}) if swap is None else swap
    operands: list[Expr] = []
    for at, (array, shape) in enumerate(zip(sample.inputs, shapes, strict=True)):
        name, dtype = op.inputs[min(at, len(op.inputs) - 1)], dtypes.from_numpy(array.dtype)
        made = given.get(at) or (Constant(array) if name in TIED else None)
        operands.append(made or _operand(chooser, sketch, array, shape, swap.get(dtype, dtype)))
    return operands


def _is_tied(op: Op, sample: Sample, shapes: Sequence[tuple[int, ...]], given: Mapping[int, Expr]) -> bool:
    """Return True where an operand is about the sizes or the order of others, and these are not the sample's."""
    changed = any(array.shape != shape for array, shape in zip(sample.inputs, shapes, strict=True))
    tied = (at for at, name in enumerate(op.inputs[: len(sample.inputs)]) if name in TIED)
    return _has_tied(op, sample) and (changed or any(at in given for at in tied))


def _has_tied(op: Op, sample: Sample) -> bool:
    return any(name in TIED for name in op.inputs[: len(sample.inputs)])


def _swap(chooser: Chooser, sample: Sample) -> dict[str, str]:
    """Return another dtype for one of a sample's, now and then."""
    found = [dtypes.from_numpy(array.dtype) for array in sample.inputs]
    known = [dtype for dtype in found if dtype in SWAPS]
    if not known or not chooser.chance(15):
        return {}
    return {known[0]: chooser.pick(SWAPS[known[0]])}


def _operand(chooser: Chooser, sketch: Sketch, like: np.ndarray, shape: tuple[int, ...], dtype: str) -> Expr:
    """Return a value of the sketch with that type and range; or else a new parameter or constant."""
    interval = interval_of(like)
    if chooser.chance(50):
        fitting = [
            var
            for var, array in sketch.arrays.items()
            if array.shape == shape and var.tensor_type.dtype == dtype and interval.holds(array.astype(np.float64))
        ]
        if fitting:
            return chooser.pick(fitting)
    if shape == like.shape and dtypes.from_numpy(like.dtype) == dtype and (like.dtype.kind in "iub" or not like.ndim):
        array = like  # indices, scales and lengths mean something beside each other
    else:
        array = bins.array_in(chooser, shape, dtype, interval)
    return Constant(array)


def _attributes(chooser: Chooser, op: Op, sample: Sample) -> dict[str, Any]:
    """Return a sample's attributes, of which up to three are others now and then."""
    attributes = dict(sample.attributes)
    for _ in range(chooser.between(1, MOST_CHANGES) if op.attributes and chooser.chance(40) else 0):
        name = chooser.pick(tuple(op.attributes))
        declared = op.attributes[name]
        attributes[name] = bins.change_attribute(chooser, declared, attributes.get(name, declared.default))
    return attributes
