"""Calls of functions that are no operators: loop-level functions, and those of attached RuntimeModules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard.errors import FrontendError
from kernelyard.nn.op.reduction import fields
from kernelyard.nn.scope import current
from kernelyard.nn.tensor import Operand, Tensor, to_expr
from kernelyard.plugins.api import Call, Expr, ExternFunc, GlobalVar, TensorType, TupleType, Type, get_op
from kernelyard.runtime.api import SYMBOL

if TYPE_CHECKING:
    from kernelyard.plugins.codegen_api import PrimFunc

__all__ = ["extern", "tensor_ir_op"]


def extern(name: str, args: Sequence[Operand], out: Tensor | Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Return a function that fills its outputs, by its symbol; `out` says what these are (`Tensor.placeholder`).

    Whoever compiles the export attaches a module that has it (`transform.AttachExternModules`); `nn.SourceModule` and
    `nn.ObjectModule` do so themselves. Raises: FrontendError for what is no name of a C function, and unless the export
    has `allow_extern=True`.
    """
    check_symbol(name)
    current().externs.require(name)
    return call_extern(name, args, out)


def check_symbol(name: str) -> None:
    """Check the name of a C function. Raises: FrontendError."""
    if not SYMBOL.match(name):
        raise FrontendError("invalid name of a C function", found=repr(name))


def call_extern(name: str, args: Sequence[Operand], out: Any) -> Tensor | tuple[Tensor, ...]:
    """Call an extern function that is allowed already; see `extern`."""
    return _call("call_dps_packed", ExternFunc(name), name, args, _type_of(out, name))


def tensor_ir_op(func: PrimFunc, name_hint: str, args: Sequence[Operand]) -> Tensor | tuple[Tensor, ...]:
    """Call a PrimFunc whose buffers have exactly the shapes of `args`, symbols included.

    The function gets the name `name_hint`, or one like it. Raises: FrontendError for arguments of other types.
    """
    given = [each.type for each in as_tensors(name_hint, args)]
    taken = [TensorType(tuple(buffer.shape), buffer.dtype) for buffer in func.inputs]
    if given != taken:
        raise FrontendError(f"{name_hint} got arguments of the wrong types", found=repr(given), expected=repr(taken))
    name = current().subroutines.add_loop_function(func, name_hint)
    return _call("call_tir", GlobalVar(name), name_hint, args, func.result_type)


def _call(op: str, callee: Expr, name: str, args: Sequence[Operand], type_: Type) -> Tensor | tuple[Tensor, ...]:
    traced = current()
    operands = [callee, *(each.expr for each in as_tensors(name, args))]
    var = traced.builder.bind(Call(get_op(op), operands, type_=type_), origin=traced.origin)
    return fields(var) if isinstance(type_, TupleType) else Tensor(var)


def as_tensors(name: str, args: Sequence[Operand]) -> list[Tensor]:
    """Return the arguments of the function `name` as tensors, arrays as constants. Raises: FrontendError for anything
    else.
    """
    for number, arg in enumerate(args):
        if not isinstance(arg, (Tensor, np.ndarray)):
            found = f"{type(arg).__name__} as argument {number} of {name}"
            raise FrontendError("external functions take tensors", found=found, expected="a tensor or an array")
    return [arg if isinstance(arg, Tensor) else Tensor(to_expr(arg)) for arg in args]


def _type_of(inferred: Any, symbol: str) -> Type:
    """Return the type of what an inference function answered."""
    if isinstance(inferred, Tensor):
        return inferred.type
    if isinstance(inferred, (tuple, list)) and inferred and all(isinstance(each, Tensor) for each in inferred):
        return TupleType(tuple(each.type for each in inferred))
    raise FrontendError(
        f"the inference function of {symbol} returns no placeholders",
        found=type(inferred).__name__,
        expected="Tensor.placeholder(shape, dtype), or a tuple of them",
    )
