"""Evaluate calls of known operands at compile time, by the operators' own NumPy reference."""

from __future__ import annotations

import numpy as np

from kernelyard import dtypes
from kernelyard.dims import SymbolicDim
from kernelyard.errors import PassError
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Tuple, TupleGetItem, Var
from kernelyard.ir.op import Op
from kernelyard.ir.types import TensorType, Type, tensors_of
from kernelyard.transform.pass_base import FunctionPass, PassContext

MAX_BYTES = 1 << 30
MAX_GROWTH = 1 << 16


class FoldConstants(FunctionPass):
    """Replace pure calls of constants by their result, where that does not make the program much larger.

    Options: "fold_constants.max_growth" (bytes, 65536): how much larger than its operands a result may be;
    "fold_constants.max_bytes" (1 GiB): the largest result.
    """

    name = "fold_constants"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        growth = context.option("fold_constants.max_growth", MAX_GROWTH)
        return _Folder(growth, context.option("fold_constants.max_bytes", MAX_BYTES)).mutate(function)


class _Folder(FunctionMutator):
    def __init__(self, max_growth: int, max_bytes: int) -> None:
        super().__init__()
        self._max_growth = max_growth
        self._max_bytes = max_bytes

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            fields = self.value_of(value.tuple_value)
            return fields.fields[value.index] if isinstance(fields, Tuple) else value
        if isinstance(value, Call) and isinstance(value.op, Op) and self._is_foldable(value, value.op):
            return fold_call(value)
        return value

    def _is_foldable(self, call: Call, op: Op) -> bool:
        if op.reference is None or op.opaque_type or not op.pure:
            return False
        if not all(isinstance(arg, Constant) for arg in call.args) or not all(map(_is_known, call.attrs.values())):
            return False
        size = _static_size(call.type)
        operands = sum(arg.data.nbytes for arg in call.args if isinstance(arg, Constant))
        return size is not None and size <= min(operands + self._max_growth, self._max_bytes)


def fold_call(call: Call) -> Expr:
    """Return the value of a call whose operands are all constants: a constant, or a tuple of them.

    Raises: PassError when the reference does not give what the type rule promised.
    """
    assert isinstance(call.op, Op)
    assert call.op.reference is not None
    arrays = [arg.data for arg in call.args if isinstance(arg, Constant)]
    result = call.op.reference(*arrays, **call.attrs)
    parts = result if isinstance(result, tuple) else (result,)
    types = tensors_of(call.type)
    constants = [_constant(part, type_, call.op) for part, type_ in zip(parts, types, strict=True)]
    return Tuple(constants) if isinstance(result, tuple) else constants[0]


def _constant(array: np.ndarray, type_: TensorType, op: Op) -> Constant:
    # A copy: views of broadcast or sliced operands would keep the whole operand alive, or be written as it.
    constant = Constant(np.array(array, dtypes.to_numpy(dtypes.from_numpy(array.dtype)), order="C"))
    if constant.type != type_:
        raise PassError(
            f"the reference of {op.name} does not give what its type rule says",
            found=repr(constant.type),
            expected=repr(type_),
        )
    return constant


def _is_known(value: object) -> bool:
    return not any(isinstance(item, SymbolicDim) for item in (value if isinstance(value, tuple) else (value,)))


def _static_size(type_: Type) -> int | None:
    sizes = [tensor.nbytes for tensor in tensors_of(type_)]
    known = [size for size in sizes if isinstance(size, int)]
    return sum(known) if len(known) == len(sizes) else None
