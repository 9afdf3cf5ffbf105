"""Splits of stored integers as slices, which are views of one tensor: what reads the parts stays in its region."""

from __future__ import annotations

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
from kernelyard_dnnl.primitive_kind import INTEGERS


class SliceSplits(FunctionPass):
    """`split(x)[n]` of 8 bits becomes `strided_slice(x)`."""

    name = "slice_splits"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        is_there = any(getattr(binding.value, "op_name", "") == "split" for binding in function.bindings)
        return _Slicer().mutate(function) if is_there else function


class _Slicer(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        split = self.value_of(value.tuple_value) if isinstance(value, TupleGetItem) else None
        if not isinstance(value, TupleGetItem) or not isinstance(split, Call) or split.op_name != "split":
            return value
        (data,), sizes = split.args, split.attrs["sections"]
        if data.tensor_type.dtype not in INTEGERS or not all(isinstance(size, int) for size in sizes):
            return value
        begin = sum(sizes[: value.index])
        bounds = {"begin": (begin,), "end": (begin + sizes[value.index],)}
        return Call(get_op("strided_slice"), [data], {"axes": (split.attrs["axis"],), "strides": (1,), **bounds})
