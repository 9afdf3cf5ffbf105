"""Make sizes of a graph symbolic: the same program for every size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import KernelyardError
from kernelyard.ir import Call, Expr, Function, FunctionBuilder, IRModule, Tuple, TupleGetItem, Var
from kernelyard.ir.control_flow import is_control_flow
from kernelyard_fuzz import bins
from kernelyard_fuzz.chooser import Chooser


def with_symbols(chooser: Chooser, module: IRModule) -> IRModule | None:
    """Return the module with symbols in place of a size of its inputs; None where an operator needs to know that size.

    Other sizes may be said by the same symbol: one more, or twice as much. Shapes that `reshape` states follow from the
    number of elements.
    """
    main = module["main"]
    assert isinstance(main, Function)
    if any(isinstance(b.value, Call) and is_control_flow(b.value) for b in main.bindings):
        return None
    sizes = sorted({int(size) for param in main.params for size in param.tensor_type.shape if size > 1})  # pyright: ignore[reportOperatorIssue, reportArgumentType]
    if not sizes:
        return None
    named = _name_sizes(chooser, main, chooser.pick(sizes))
    try:
        return IRModule({**module.functions, "main": _rebuild(main, named)})
    except KernelyardError:
        return None


def _name_sizes(chooser: Chooser, main: Function, size: int) -> dict[tuple[int, int], Dim]:
    """Return dims of a symbol for one axis of a size or for all, and now and then for what follows from that size.

    Or that size follows from the symbol itself.
    """
    axes = [(p, a) for p, param in enumerate(main.params) for a, s in enumerate(param.tensor_type.shape) if s == size]
    symbol = dims.symbol("n")
    named: dict[tuple[int, int], Dim] = dict.fromkeys([chooser.pick(axes)] if chooser.chance(50) else axes, symbol)
    if chooser.chance(20):  # no axis says the symbol alone
        return dict.fromkeys(named, symbol * 2 + 1 if size % 2 else symbol * 2 if chooser.chance(50) else symbol + 1)
    if chooser.chance(30):
        named |= {at: dim for at, dim in _following(main, size, symbol).items() if chooser.chance(70)}
    return named


def _following(main: Function, size: int, symbol: Dim) -> dict[tuple[int, int], Dim]:
    """Return other sizes of inputs, by parameter and axis, as dims of a symbol that stands for `size`."""
    forms = {size + 1: symbol + 1, 2 * size: symbol * 2, 2 * size + 1: symbol * 2 + 1}
    places = ((p, a, other) for p, param in enumerate(main.params) for a, other in enumerate(param.tensor_type.shape))
    return {(p, a): forms[other] for p, a, other in places if isinstance(other, int) and other in forms}


def _rebuild(function: Function, named: Mapping[tuple[int, int], Dim]) -> Function:
    builder = FunctionBuilder()
    new: dict[Expr, Expr] = {}
    for number, param in enumerate(function.params):
        shape = [named.get((number, axis), size) for axis, size in enumerate(param.tensor_type.shape)]
        new[param] = builder.input(param.name, shape, param.tensor_type.dtype)
    for binding in function.bindings:
        new[binding.var] = builder.bind(_with(binding.value, new))
    results = function.result.fields if isinstance(function.result, Tuple) else (function.result,)
    return builder.function(*(new.get(result, result) for result in results))


def _with(value: Expr, new: Mapping[Expr, Expr]) -> Expr:
    if isinstance(value, TupleGetItem):
        return TupleGetItem(new[value.tuple_value], value.index)
    assert isinstance(value, Call)
    args = [new.get(arg, arg) for arg in value.args]
    attrs = dict(value.attrs)
    if value.op_name == "reshape":
        attrs["shape"] = _shape(args[0].tensor_type.numel, attrs["shape"])
    return Call(value.op, args, attrs)


def _shape(numel: Dim, stated: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return a shape of that many elements, one axis of which is not as it was stated."""
    if dims.product(stated) == numel:
        return stated
    for axis in range(len(stated)):
        others = dims.product((*stated[:axis], *stated[axis + 1 :]))
        if others != 0 and dims.floordiv(numel, others) * others == numel:
            return (*stated[:axis], dims.floordiv(numel, others), *stated[axis + 1 :])
    return stated


def symbols(module: IRModule) -> frozenset[str]:
    """Return the symbols of the inputs of `main`."""
    main = module["main"]
    assert isinstance(main, Function)
    found = (dims.symbols_of(dim) for param in main.params if isinstance(param, Var) for dim in param.tensor_type.shape)
    return frozenset().union(*found)


def resize_feeds(chooser: Chooser, module: IRModule, feeds: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return feeds with other sizes in place of the symbols of `main`: their elements again and again.

    Empty where the module has none, or an operand would be too large.
    """
    main = module["main"]
    assert isinstance(main, Function)
    known: dict[str, int] = {}
    made: list[np.ndarray] = []
    for param, feed in zip(main.params, feeds, strict=True):
        array = feed
        for axis, dim in enumerate(param.tensor_type.shape):
            for name in dims.symbols_of(dim):
                known.setdefault(name, chooser.pick((1, 2, 3, *bins.around(feed.shape[axis]), 16, 17)))
            if dims.symbols_of(dim):
                array = array.take(np.arange(dims.evaluate(dim, known)) % feed.shape[axis], axis)
        made.append(array)
    return tuple(made) if known and all(array.size <= bins.LARGEST for array in made) else ()
