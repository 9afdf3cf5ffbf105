"""Let chains of convolutions and pools pass their tensors on channels-last.

The vocabulary has one layout: convolutions and pools are channels-first, and no operator carries a layout. So a
channels-last convolution is written as what it is, the convolution between two permutations:

    permute_dims(nn.conv2d(permute_dims(x_nhwc, NHWC to NCHW), w), NCHW to NHWC)

and everything between two of these (activations, sums, concatenations, norms, ...) works on channels-last tensors. A
backend that has the channels-last operator matches the three as one pattern; it converts in its `prepare`, right before
its patterns are matched. `Canonicalize` cancels the permutations that nobody took, so the others lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, TensorType, Var, get_op
from kernelyard.ir.op import Op
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

CONVOLUTIONS = tuple(f"nn.conv{rank}d" for rank in (1, 2, 3))
TRANSPOSED = tuple(f"nn.conv{rank}d_transpose" for rank in (1, 2, 3))
POOLS = tuple(f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3))
SPATIAL = (*CONVOLUTIONS, *TRANSPOSED, *POOLS)


class ConvertLayout(FunctionPass):
    """Surround spatial operators by permutations, and move these over what lies between.

    ops: the operators whose data becomes channels-last, default all convolutions and pools. dtypes: of these alone;
    None: of all. following: operators that become channels-last where they read what is so already. Weights keep their
    order, and so do parameters and results.
    """

    name = "convert_layout"

    def __init__(
        self, ops: Collection[str] = SPATIAL, dtypes: Collection[str] | None = None, following: Collection[str] = ()
    ) -> None:
        self._ops = frozenset(ops)
        self._dtypes = None if dtypes is None else frozenset(dtypes)
        self._following = frozenset(following)

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Converter(self._ops, self._dtypes, self._following).mutate(function)


def to_last(rank: int) -> tuple[int, ...]:
    """Return the permutation from channels-first to channels-last.

    Example:
        >>> to_last(4)
        (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """Return the permutation from channels-last to channels-first.

    Example:
        >>> to_first(4)
        (0, 3, 1, 2)
    """
    return (0, rank - 1, *range(1, rank - 1))


class _Converter(FunctionMutator):
    """A channels-last value is known by the permutation to channels-first that its readers see."""

    def __init__(self, ops: frozenset[str], dtypes: frozenset[str] | None, following: frozenset[str]) -> None:
        super().__init__()
        self._ops = ops
        self._dtypes = dtypes
        self._following = following
        self._converted: dict[Expr, Expr] = {}
        self._own: set[Expr] = set()

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Op) or not isinstance(value.type, TensorType):
            return value
        rank = value.type.rank
        if self._becomes_last(value, rank):
            first = self.emit(self._to_channels_first(self._to_channels_last(value.args[0], rank), rank))
            result = self.emit(Call(value.op, [first, *value.args[1:]], value.attrs), var.name, var.origin)
            return self._to_channels_first(self.emit(_permute(result, to_last(rank))), rank)
        if value.op.name == "permute_dims" and value.attrs["axes"] == to_last(rank):
            return self._below(value.args[0], rank) or value  # what the model does itself is done already
        return self._convert_call(var, value, rank) or value

    def _becomes_last(self, call: Call, rank: int) -> bool:
        if call.op_name in self._following:
            return self._is_converted(call.args[0], rank)
        return call.op_name in self._ops and (self._dtypes is None or call.tensor_type.dtype in self._dtypes)

    def _convert_call(self, var: Var, call: Call, rank: int) -> Expr | None:
        """Return the call on channels-last operands, for one that reads a converted value and does not care for the
        order.
        """
        movable = _MOVABLE.get(call.op_name)
        if movable is None or not any(self._is_converted(arg, rank) for arg in call.args):
            return None
        attrs = movable(call, rank)
        if attrs is None:
            return None
        moved = call.args[:1] if call.op_name in _FIRST_OPERAND_ONLY else call.args
        operands = [*(self._to_channels_last(arg, rank) for arg in moved), *call.args[len(moved) :]]
        return self._to_channels_first(self.emit(Call(call.op, operands, attrs), var.name, var.origin), rank)

    def _is_converted(self, operand: Expr, rank: int) -> bool:
        """Return True for the channels-first form of a channels-last value.

        Of rank 3 it has to be one of ours: exchanging two axes is either permutation, and what transformers do with
        their tokens.
        """
        return self._below(operand, rank) is not None and (rank > 3 or self.value_of(operand) in self._own)

    def _to_channels_first(self, last: Expr, rank: int) -> Expr:
        """Return the channels-first form of a channels-last value."""
        made = _permute(last, to_first(rank))
        self._own.add(made)
        return made

    def _below(self, operand: Expr, rank: int) -> Expr | None:
        """Return the channels-last value that an operand is the channels-first form of."""
        value = self.value_of(operand)
        if rank < 3 or not isinstance(value, Call) or value.op_name != "permute_dims":
            return None
        return value.args[0] if value.attrs["axes"] == to_first(rank) else None

    def _to_channels_last(self, operand: Expr, rank: int) -> Expr:
        below = self._below(operand, rank)
        if below is not None:
            return below
        if operand not in self._converted:
            self._converted[operand] = self._convert_operand(operand, rank)
        return self._converted[operand]

    def _convert_operand(self, operand: Expr, rank: int) -> Expr:
        """Return the operand, broadcast to `rank`, channels-last."""
        shape = operand.tensor_type.shape
        if not shape:
            return operand
        aligned = (1,) * (rank - len(shape)) + shape
        if isinstance(operand, Constant):
            data = np.expand_dims(operand.data, tuple(range(rank - len(shape))))
            return Constant(np.ascontiguousarray(data.transpose(to_last(rank))))
        if aligned != shape:
            operand = self.emit(Call(get_op("reshape"), [operand], {"shape": aligned}))
        return self.emit(_permute(operand, to_last(rank)))


def _permute(operand: Expr, axes: tuple[int, ...]) -> Call:
    return Call(get_op("permute_dims"), [operand], {"axes": axes})


def _keep_attributes(call: Call, rank: int) -> Mapping[str, Any]:
    return call.attrs


def _convert_axis(call: Call, rank: int) -> Mapping[str, Any]:
    return {**call.attrs, "axis": to_last(rank).index(call.attrs["axis"] % rank)}


def _convert_reduction_axes(call: Call, rank: int) -> Mapping[str, Any] | None:
    """Return the attributes of a reduction in channels-last layout; None if it drops the reduced axes."""
    if not call.attrs["keepdims"]:
        return None
    return {**call.attrs, "axes": tuple(sorted(to_last(rank).index(axis) for axis in call.attrs["axes"]))}


def _convert_pads(call: Call, rank: int) -> Mapping[str, Any]:
    def move(pads: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(pads[axis] for axis in to_last(rank))

    pads = call.attrs["pads"]
    return {**call.attrs, "pads": move(pads[:rank]) + move(pads[rank:])}


_FIRST_OPERAND_ONLY = ("nn.batch_norm",)
_MOVABLE: dict[str, Callable[[Call, int], Mapping[str, Any] | None]] = {
    **dict.fromkeys(ELEMENTWISE, _keep_attributes),
    **dict.fromkeys(("concat", "nn.softmax", "nn.log_softmax", "nn.batch_norm"), _convert_axis),
    **dict.fromkeys(("sum", "mean", "max", "min"), _convert_reduction_axes),
    "pad": _convert_pads,
}
