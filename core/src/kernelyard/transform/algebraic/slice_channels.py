"""Write splits of an image's channels as slices, each of which a library reads in place."""

from __future__ import annotations

from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, TupleGetItem, Var, get_op
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

CHANNELS, LEAST_RANK = 1, 4


class SliceChannels(FunctionPass):
    """`split(image)[i]` along the channels becomes `strided_slice(image)`.

    A library that computes convolutions lays images out as it likes, and a slice of one is a view there; a tuple of
    pieces has to leave that layout. Images and volumes alone: rows are split by who computes their products.
    """

    name = "slice_channels"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Slicer().mutate(function)


class _Slicer(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, TupleGetItem):
            return value
        split = self.value_of(value.tuple_value)
        if not isinstance(split, Call) or split.op_name != "split":
            return value
        image = split.args[0]
        sections = split.attrs["sections"]
        if image.tensor_type.rank < LEAST_RANK or split.attrs["axis"] != CHANNELS:
            return value
        begin = sum(sections[1 : value.index], sections[0]) if value.index else 0
        attrs = {"axes": (CHANNELS,), "begin": (begin,), "end": (begin + sections[value.index],), "strides": (1,)}
        return Call(get_op("strided_slice"), [image], attrs)
