"""Convolutions and pools that read and write channels-last tensors as they lie, instead of permuted copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from kernelyard.ir import Call, Constant, Expr, FunctionMutator, IRModule, TensorType, Var, get_op
from kernelyard.legalize import legalize_call
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Expr as ScalarExpr
from kernelyard.tir.expr import Load
from kernelyard.tir.primfunc import ComputeBlock, IterVar, PrimFunc
from kernelyard.tir.visitor import ExprRewriter, rewrite_block
from kernelyard.transform.layout.convert_layout import CONVOLUTIONS, POOLS, to_first, to_last
from kernelyard.transform.lowering.legalize_ops import PrimFuncTable, call_tir, mutate_with_prim_funcs
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

T = TypeVar("T")


class FuseTransposeConv(Pass):
    """`nn.conv2d(permute_dims(x), w)` of a channels-last `x` becomes one loop-level function that reads `x` as it lies,
    and gives a channels-last result, which is permuted; so do pools.

    Filters are read with their channels last, too: those of a constant are permuted now. Where each filter has a single
    channel (depthwise), the filters come last. Run it after `ConvertLayout` and the partition; `Canonicalize` then
    cancels permutations between two of these functions, and dead-code elimination removes copies that nothing reads.
    """

    name = "fuse_transpose_conv"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return mutate_with_prim_funcs(module, _Fuser)


class _Fuser(FunctionMutator):
    def __init__(self, functions: PrimFuncTable) -> None:
        super().__init__()
        self.functions = functions

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in (*CONVOLUTIONS, *POOLS):
            return value
        rank = value.tensor_type.rank
        image = self._channels_last(value.args[0], rank)
        if image is None:
            return value
        orders = [to_last(rank), *(_order_of_filters(filters.tensor_type) for filters in value.args[1:])]
        args = [image, *map(self._permute, value.args[1:], orders[1:])]
        function = _channels_last_function(value, orders)
        name = self.functions.name_of(function, f"{value.op_name.removeprefix('nn.')}_channels_last")
        result = TensorType(_reorder(value.tensor_type.shape, to_last(rank)), value.tensor_type.dtype)
        made = self.emit(call_tir(name, args, result), var.name, var.origin)
        return Call(get_op("permute_dims"), [made], {"axes": to_first(rank)})

    def _channels_last(self, operand: Expr, rank: int) -> Expr | None:
        """Return the channels-last tensor that an operand is the permutation of."""
        value = self.value_of(operand)
        if not isinstance(value, Call) or value.op_name != "permute_dims" or value.attrs["axes"] != to_first(rank):
            return None
        return value.args[0]

    def _permute(self, operand: Expr, axes: tuple[int, ...]) -> Expr:
        if isinstance(operand, Constant):
            return Constant(np.ascontiguousarray(operand.data.transpose(axes)))
        return self.emit(Call(get_op("permute_dims"), [operand], {"axes": axes}))


def _order_of_filters(filters: TensorType) -> tuple[int, ...]:
    """Return the permutation of filters that has last what neighbours of a channels-last image are multiplied by."""
    spatial = tuple(range(2, filters.rank))
    return (*spatial, 1, 0) if filters.shape[1] == 1 else (0, *spatial, 1)


def _channels_last_function(call: Call, orders: Sequence[tuple[int, ...]]) -> PrimFunc:
    """Return the function of a call with operands in some orders, whose result and locals have their channels last."""
    types = [operand.tensor_type for operand in call.args]
    function = legalize_call(call.op_name, types, call.attrs, call.type)
    rank = call.tensor_type.rank
    order_of = {
        **{each: to_last(rank) for each in (*function.outputs, *function.locals) if len(each.shape) == rank},
        **dict(zip(function.inputs, orders, strict=True)),
    }
    new = {buffer: replace(buffer, shape=_reorder(buffer.shape, order)) for buffer, order in order_of.items()}

    def visit(expr: ScalarExpr) -> ScalarExpr:
        if not isinstance(expr, Load) or expr.buffer not in new:
            return expr
        return Load(new[expr.buffer], _reorder(expr.indices, order_of[expr.buffer]))

    def rewritten(block: ComputeBlock) -> ComputeBlock:
        block = rewrite_block(block, ExprRewriter(visit))
        order = order_of.get(block.output)
        if order is None:
            return block
        axes = _order_axes(block, order)
        return replace(block, axes=axes, output=new[block.output], indices=_reorder(block.indices, order))

    def of(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(new.get(buffer, buffer) for buffer in buffers)

    blocks = tuple(map(rewritten, function.blocks))
    attrs = {**function.attrs, "ops": ("permute_dims", call.op_name)}
    return PrimFunc(of(function.params), blocks, function.num_outputs, of(function.locals), attrs)


def _order_axes(block: ComputeBlock, order: tuple[int, ...]) -> tuple[IterVar, ...]:
    """Return a block's axes, those of its points in the order of the dims that it writes."""
    spatial = block.spatial_axes
    return (*_reorder(spatial, order), *block.reduce_axes) if len(spatial) == len(order) else block.axes


def _reorder(values: Sequence[T], order: Sequence[int]) -> tuple[T, ...]:
    return tuple(values[axis] for axis in order)
