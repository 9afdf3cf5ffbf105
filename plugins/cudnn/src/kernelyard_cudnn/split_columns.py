"""Take queries, keys and values from columns of one product, where a model permutes all three before it splits them."""

from __future__ import annotations

import math
from typing import NamedTuple

from kernelyard.dims import Shape
from kernelyard.plugins.api import (
    Call,
    Expr,
    Function,
    FunctionMutator,
    FunctionPass,
    IRModule,
    PassContext,
    TupleGetItem,
    Var,
    get_op,
)


class SplitColumns(FunctionPass):
    """`split(permute_dims(reshape(y)))` becomes `permute_dims(reshape(split(y)))`, in pieces of one.

    Vision transformers make queries, keys and values by one product of shape (batch, length, 3 * heads * size), which
    they reshape to (batch, length, 3, heads, size), permute to (3, batch, heads, length, size), and split. Pieces of
    columns are read where they lie; of what is permuted first, each would be copied.
    """

    name = "split_columns"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Splitter().mutate(function)


class _Stacked(NamedTuple):
    """Columns of a tensor that are split.

    y: the tensor. axis, width: of the columns, and those of a piece. shape: of a piece before it is permuted. axes: the
    permutation of that. place: where a piece has an axis of 1 behind it.
    """

    y: Expr
    axis: int
    width: int
    shape: Shape
    axes: tuple[int, ...]
    place: int


class _Splitter(FunctionMutator):
    def __init__(self) -> None:
        super().__init__()
        self._pieces: dict[Expr, Expr] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, TupleGetItem):
            return value
        split = self.value_of(value.tuple_value)
        stacked = self._match_stacked(split) if isinstance(split, Call) and split.op_name == "split" else None
        if stacked is None:
            return value
        assert isinstance(split, Call)
        if value.tuple_value not in self._pieces:
            attrs = {"sections": (stacked.width,) * len(split.attrs["sections"]), "axis": stacked.axis}
            self._pieces[value.tuple_value] = self.emit(Call(split.op, [stacked.y], attrs), var.name, var.origin)
        piece = self.emit(TupleGetItem(self._pieces[value.tuple_value], value.index), var.name, var.origin)
        shaped = self.emit(Call(get_op("reshape"), [piece], {"shape": stacked.shape}), var.name, var.origin)
        moved = self.emit(Call(get_op("permute_dims"), [shaped], {"axes": stacked.axes}), var.name, var.origin)
        shape = moved.tensor_type.shape
        return Call(get_op("reshape"), [moved], {"shape": (*shape[: stacked.place], 1, *shape[stacked.place :])})

    def _match_stacked(self, split: Call) -> _Stacked | None:
        """Match the permutation of a reshape whose first factor of the last axis is split into ones."""
        permutation = self.value_of(split.args[0])
        if set(split.attrs["sections"]) != {1} or not isinstance(permutation, Call):
            return None
        reshape = self.value_of(permutation.args[0]) if permutation.op_name == "permute_dims" else None
        if not isinstance(reshape, Call) or reshape.op_name != "reshape":
            return None
        y, shape, axes = reshape.args[0], reshape.tensor_type.shape, permutation.attrs["axes"]
        place, rows = split.attrs["axis"], y.tensor_type.shape[:-1]
        axis = axes[place]
        factors = [dim for dim in shape[axis + 1 :] if isinstance(dim, int)]
        if axis != len(rows) or shape[:axis] != rows or len(factors) != len(shape) - axis - 1:
            return None
        rest = tuple(each - (each > axis) for each in axes if each != axis)
        return _Stacked(y, axis, math.prod(factors), (*shape[:axis], *shape[axis + 1 :]), rest, place)
