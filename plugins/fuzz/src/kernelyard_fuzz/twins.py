"""Twins: the same function written in another way, by a table of rules. What is equal must stay equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import KernelyardError
from kernelyard.ir import Call, Constant, Expr, Function, FunctionBuilder, IRModule, Tuple, TupleGetItem, Var
from kernelyard.ir.control_flow import is_control_flow
from kernelyard.ir.types import TensorType
from kernelyard_fuzz.chooser import Chooser

Rewrite = Callable[[FunctionBuilder, Var, Chooser], "Var | None"]
MOST = 3  # rewrites of one twin


class Twin(NamedTuple):
    """A module that means the same, and the name of the rule that made it."""

    rule: str
    module: IRModule


def _number(value: float, x: Var) -> Constant:
    return Constant(np.asarray(value, dtypes.to_numpy(x.tensor_type.dtype)))


def _is_number(x: Var) -> bool:
    return x.tensor_type.dtype != "bool" and "float8" not in x.tensor_type.dtype


def _add_zero(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    return b.op("add", x, _number(0, x)) if _is_number(x) else None


def _times_one(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    return b.op("multiply", x, _number(1, x)) if _is_number(x) else None


def _negate_twice(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    if not x.tensor_type.dtype.startswith(("float", "bfloat")) or not _is_number(x):
        return None
    return b.op("negative", b.op("negative", x))


def _double_and_halve(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    """x * (1/2) + x * (1/2): distributing, exactly."""
    if not x.tensor_type.dtype.startswith(("float", "bfloat")) or not _is_number(x):
        return None
    half = b.op("multiply", x, _number(0.5, x))
    return b.op("add", half, half)


def _transpose_twice(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    rank = x.tensor_type.rank
    if rank < 2:
        return None
    left = list(range(rank))
    axes = [left.pop(chooser.below(len(left))) for _ in range(rank)]
    back = tuple(int(axis) for axis in np.argsort(axes))
    return b.op("permute_dims", b.op("permute_dims", x, axes=tuple(axes)), axes=back)


def _reshape_and_back(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    shape = x.tensor_type.shape
    flat = (x.tensor_type.numel,) if chooser.chance(50) else (1, *shape, 1)
    return b.op("reshape", b.op("reshape", x, shape=flat), shape=shape)


def _split_and_concat(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    axes = [axis for axis, size in enumerate(x.tensor_type.shape) if isinstance(size, int) and size > 1]
    if not axes:
        return None
    axis = chooser.pick(axes)
    size = x.tensor_type.shape[axis]
    assert isinstance(size, int)
    at = chooser.between(1, size - 1)
    pieces = b.op("split", x, axis=axis, sections=(at, size - at))
    return b.op("concat", b.get(pieces, 0), b.get(pieces, 1), axis=axis)


def _pad_and_slice(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    rank = x.tensor_type.rank
    if not rank or not _is_number(x):
        return None
    before, after = ([chooser.below(3) for _ in range(rank)] for _ in range(2))
    padded = b.op("pad", x, pads=(*before, *after))
    end = tuple(low + size for low, size in zip(before, x.tensor_type.shape, strict=True))
    axes = tuple(range(rank))
    return b.op("strided_slice", padded, axes=axes, begin=tuple(before), end=end, strides=(1,) * rank)


def _flip_twice(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    if not x.tensor_type.rank:
        return None
    axes = (chooser.below(x.tensor_type.rank),)
    return b.op("flip", b.op("flip", x, axes=axes), axes=axes)


def _select(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    return b.op("where", Constant(np.array(True)), x, x)


def _maximum_with_itself(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    return b.op(chooser.pick(("maximum", "minimum")), x, x) if _is_number(x) else None


def _gather_all(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    axes = [axis for axis, size in enumerate(x.tensor_type.shape) if isinstance(size, int) and size > 0]
    if not axes:
        return None
    axis = chooser.pick(axes)
    size = x.tensor_type.shape[axis]
    assert isinstance(size, int)
    return b.op("take", x, Constant(np.arange(size)), axis=axis)


def _times_identity(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    shape = x.tensor_type.shape
    if x.tensor_type.dtype != "float32" or len(shape) < 2 or not isinstance(shape[-1], int) or not 0 < shape[-1] < 64:
        return None
    return b.op("matmul", x, Constant(np.eye(shape[-1], dtype=np.float32)))


def _sum_of_one(b: FunctionBuilder, x: Var, chooser: Chooser) -> Var | None:
    if not _is_number(x):
        return None
    return b.op("sum", b.op("reshape", x, shape=(*x.tensor_type.shape, 1)), axes=(x.tensor_type.rank,), keepdims=False)


RULES: dict[str, Rewrite] = {
    "x + 0": _add_zero,
    "x * 1": _times_one,
    "-(-x)": _negate_twice,
    "x / 2 + x / 2": _double_and_halve,
    "transpose twice": _transpose_twice,
    "reshape and back": _reshape_and_back,
    "split, then concat": _split_and_concat,
    "pad, then slice": _pad_and_slice,
    "flip twice": _flip_twice,
    "where(True, x, x)": _select,
    "max(x, x)": _maximum_with_itself,
    "take every index": _gather_all,
    "x @ identity": _times_identity,
    "sum over an axis of 1": _sum_of_one,
}


def twin(chooser: Chooser, module: IRModule) -> Twin | None:
    """Return a twin of a module, with one to three values written in another way by one rule; None where none fits."""
    main = module["main"]
    assert isinstance(main, Function)
    values = [*main.params, *(b.var for b in main.bindings)]
    tensors = [var for var in values if isinstance(var.type, TensorType)]
    if not tensors:
        return None
    rule = chooser.pick(tuple(RULES))
    chosen = {chooser.pick(tensors) for _ in range(chooser.between(1, MOST))}
    try:
        function = _rewrite(main, chosen, RULES[rule], chooser)
    except KernelyardError:
        return None
    return None if function is None else Twin(rule, IRModule({**module.functions, "main": function}))


def _rewrite(main: Function, chosen: set[Var], rewrite: Rewrite, chooser: Chooser) -> Function | None:
    builder = FunctionBuilder()
    new: dict[Expr, Expr] = {}
    count = 0

    def put(old: Var, made: Var) -> None:
        nonlocal count
        other = rewrite(builder, made, chooser) if old in chosen else None
        count += other is not None
        new[old] = other or made

    for param in main.params:
        new[param] = builder.parameter(param.type, param.name)
    for param in main.params:
        put(param, new[param])  # pyright: ignore[reportArgumentType]
    for binding in main.bindings:
        put(binding.var, builder.bind(_with(binding.value, new)))
    results = main.result.fields if isinstance(main.result, Tuple) else (main.result,)
    return builder.function(*(new.get(result, result) for result in results)) if count else None


def _with(value: Expr, new: dict[Expr, Expr]) -> Expr:
    if isinstance(value, TupleGetItem):
        return TupleGetItem(new[value.tuple_value], value.index)
    if isinstance(value, Tuple):
        return Tuple([new.get(field, field) for field in value.fields])
    assert isinstance(value, Call)
    args = [new.get(arg, arg) for arg in value.args]
    return Call(value.op, args, value.attrs, value.type if is_control_flow(value) else None)
