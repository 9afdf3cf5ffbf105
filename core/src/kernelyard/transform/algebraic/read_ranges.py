"""Which part of its operands a call reads to compute a part of its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

import numpy as np

from kernelyard import dims
from kernelyard.ir import Call, Constant, Expr, Var
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.transform.pass_infra.rewrite_rule import is_tensor_operator

# By axis, the first place that is read and the one behind the last; axes that are left out are read whole.
Ranges: TypeAlias = Mapping[int, tuple[int, int]]
# By axis of a result, the axis of an operand whose places are the same.
Axes: TypeAlias = Mapping[int, int]

INDEXED = ("strided_slice", "take", "gather_elements")


def hull(left: Ranges, right: Ranges) -> Ranges:
    """Return the smallest part that has both in it."""
    return {
        axis: (min(left[axis][0], right[axis][0]), max(left[axis][1], right[axis][1])) for axis in left if axis in right
    }


class Reads:
    """Find which part of its operands a call of a function reads. values: the value of each variable."""

    def __init__(self, values: Mapping[Var, Expr]) -> None:
        self._values = values

    def computable(self, value: Expr, wanted: Ranges) -> Ranges:
        """Return as much of a wanted part as a call can compute alone: the axes that some operand has, too."""
        if not wanted or not is_tensor_operator(value):
            return {}
        shape = value.tensor_type.shape
        known = {axis for place in range(len(value.args)) for axis in _map_axes(value, place)}
        return {axis: wanted[axis] for axis in wanted if axis in known and wanted[axis] != (0, shape[axis])}

    def of_operand(self, value: Expr, place: int, own: Ranges) -> Ranges:
        """Return the part of an operand that is read to compute the part `own` of a result; {} for all of it."""
        if not is_tensor_operator(value):
            return {}
        same = {to: own[axis] for axis, to in _map_axes(value, place).items() if axis in own}
        return {**same, **self.find_indexed_ranges(value)} if place == 0 else same

    def find_indexed_ranges(self, call: Call) -> Ranges:
        """Return the part of its first operand that a slice, a take or a gather reads by its own indices."""
        if call.op_name == "strided_slice":
            return _slice_ranges(call)
        if call.op_name not in ("take", "gather_elements"):
            return {}
        axis = call.attrs["axis"]
        indices, size = self.indices(call), call.args[0].tensor_type.shape[axis]
        if indices is None or not indices.size:
            return {}
        begin, end = int(indices.min()), int(indices.max()) + 1
        return {axis: (begin, end)} if begin >= 0 and end <= size and end - begin < size else {}

    def indices(self, call: Call) -> np.ndarray | None:
        """Return the constant indices of a take or a gather from the front, before they are repeated; None for
        others."""
        indices, size = call.args[1], call.args[0].tensor_type.shape[call.attrs["axis"]]
        value = self._values.get(indices) if isinstance(indices, Var) else indices
        if isinstance(value, Call) and value.op_name == "broadcast_to":
            value = value.args[0]
        if not isinstance(value, Constant) or not isinstance(size, int):
            return None
        return np.where(value.data < 0, value.data + size, value.data).astype(value.data.dtype)


def _slice_ranges(call: Call) -> Ranges:
    """Return what a slice reads; axes of open sizes, and those that are walked back, are read whole."""
    found = {}
    attrs, shape = call.attrs, call.args[0].tensor_type.shape
    for axis, begin, end, stride in zip(attrs["axes"], attrs["begin"], attrs["end"], attrs["strides"], strict=True):
        is_known = all(isinstance(number, int) for number in (begin, end, shape[axis]))
        if is_known and stride > 0 and 0 <= begin < end <= shape[axis] and end - begin < shape[axis]:
            found[axis] = begin, end
    return found


def _map_axes(call: Call, place: int) -> Axes:
    """Return the axes, of known sizes, along which a place of the result depends on the same place of an operand
    alone."""
    rule = _RULES.get(call.op_name)
    if rule is None:
        return {}
    result, operand = call.tensor_type.shape, call.args[place].tensor_type.shape
    same = rule(call, place).items()
    return {axis: to for axis, to in same if isinstance(result[axis], int) and result[axis] == operand[to]}


def _map_broadcast_axes(call: Call, place: int) -> Axes:
    rank = call.args[place].tensor_type.rank
    missing = call.tensor_type.rank - rank
    return {axis + missing: axis for axis in range(rank)}


def _map_permuted_axes(call: Call, place: int) -> Axes:
    return dict(enumerate(call.attrs["axes"]))


def _map_reshaped_axes(call: Call, place: int) -> Axes:
    """Return the axes that a reshape keeps: those of the same size, with as many elements behind them."""
    before, after = call.args[0].tensor_type.shape, call.tensor_type.shape
    kept = {dims.product(before[axis:]): axis for axis, size in enumerate(before) if size != 1}
    found = {axis: kept.get(dims.product(after[axis:])) for axis, size in enumerate(after) if size != 1}
    return {axis: to for axis, to in found.items() if to is not None}


def _map_matmul_axes(call: Call, place: int) -> Axes:
    """Return the axes of a matrix product: rows of the first operand, columns of the second, leading axes of both."""
    if any(arg.tensor_type.rank < 2 for arg in call.args):
        return {}
    summed = call.tensor_type.rank - (1 if place == 0 else 2)
    return {axis: to for axis, to in _map_broadcast_axes(call, place).items() if axis != summed}


def _map_axes_beside_reduced(call: Call, place: int) -> Axes:
    """Return the axes of a norm or a softmax other than those that it goes along."""
    rank = call.tensor_type.rank
    axes = call.attrs["axes"] if "axes" in call.attrs else (call.attrs["axis"],)
    return _map_other_axes(range(rank), [axis % rank for axis in axes]) if place == 0 else {}


def _map_axes_beside_concat(call: Call, place: int) -> Axes:
    return _map_other_axes(range(call.tensor_type.rank), (call.attrs["axis"],))


def _map_axes_beside_sliced(call: Call, place: int) -> Axes:
    return _map_other_axes(range(call.tensor_type.rank), call.attrs["axes"])


def _map_take_axes(call: Call, place: int) -> Axes:
    """Return the axes of the data around those of the indices."""
    (data, indices), axis = call.args, call.attrs["axis"]
    behind = range(axis + 1, data.tensor_type.rank)
    grown = indices.tensor_type.rank - 1
    return {**{to: to for to in range(axis)}, **{to + grown: to for to in behind}} if place == 0 else {}


def _map_quantized_axes(call: Call, place: int) -> Axes:
    """Return the axes of what is quantized by one scale."""
    is_one = all(not arg.tensor_type.rank for arg in call.args[1:])
    return _map_broadcast_axes(call, place) if is_one else {}


def _map_other_axes(axes: Iterable[int], left_out: Collection[int]) -> Axes:
    return {axis: axis for axis in axes if axis not in left_out}


_RULES: Mapping[str, Callable[[Call, int], Axes]] = {
    **dict.fromkeys((*ELEMENTWISE, "broadcast_to"), _map_broadcast_axes),
    **dict.fromkeys(("nn.layer_norm", "nn.rms_norm", "nn.softmax", "nn.log_softmax"), _map_axes_beside_reduced),
    **dict.fromkeys(("quantize", "dequantize"), _map_quantized_axes),
    "concat": _map_axes_beside_concat,
    "matmul": _map_matmul_axes,
    "permute_dims": _map_permuted_axes,
    "reshape": _map_reshaped_axes,
    "strided_slice": _map_axes_beside_sliced,
    "take": _map_take_axes,
}
