"""Reducers: smaller cases of a case, each a guess that may fail as well. Type inference rejects most wrong guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.errors import KernelyardError
from kernelyard.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Op,
    TensorType,
    Tuple,
    Var,
    operands,
    with_operands,
)
from kernelyard.ir.control_flow import IF
from kernelyard.ir.op import REQUIRED
from kernelyard.ir.types import symbols_of
from kernelyard.transform.interprocedural.bind_symbolic_vars import bind_function
from kernelyard.transform.interprocedural.inline_functions import inline_into
from kernelyard.transform.pass_infra.pass_base import PassContext
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_debug.case import Case

Reducer: TypeAlias = "Callable[[Case], Iterator[Case]]"
SMALL = (1, 2, 3, 4, 8)  # sizes that are tried


def fewer_outputs(case: Case) -> Iterator[Case]:
    """Yield the case with one result alone, for each."""
    if len(case.results) == 1:
        return
    for name, result in zip(case.output_names, case.results, strict=True):
        attrs = {**case.function.attrs, "output_names": (name,)}
        yield _sweep(case, Function(case.function.params, case.function.bindings, result, attrs))


def simplify(case: Case) -> Iterator[Case]:
    """Yield the case after passes of the compiler: what was composed or folded is fewer ops."""
    for name in ("clean", "simplify"):
        module = get_pipeline(name).run(case.module, PassContext())
        small = Case(module, case.feeds)
        if len(small.function.bindings) < len(case.function.bindings):
            yield small


def choose_branches(case: Case) -> Iterator[Case]:
    """Yield the case with a branch of a conditional in its place, for each."""
    for binding in case.function.bindings:
        value = binding.value
        if not isinstance(value, Call) or value.op_name != IF:
            continue
        then, otherwise, _, *args = value.args
        for branch in (then, otherwise):
            if isinstance(branch, GlobalVar):
                yield _inline(case, binding, Call(branch, args, type_=value.type))


def _inline(case: Case, binding: Binding, call: Call) -> Case:
    """Return a case with what a function does in the place of a binding."""
    assert isinstance(call.op, GlobalVar)
    function = case.function
    bindings = [Binding(b.var, call) if b is binding else b for b in function.bindings]
    called = Function(function.params, bindings, function.result, function.attrs)
    return _sweep(case, inline_into(called, case.module, {call.op.name}))


def bypass_ops(case: Case) -> Iterator[Case]:
    """Yield the case without an op that stands between others: its readers read an operand of the same type."""
    if len(case.function.bindings) == 1:
        return
    for binding in reversed(case.function.bindings):
        for operand in operands(binding.value):
            if isinstance(operand, Var) and operand.type == binding.var.type:
                yield _sweep(case, _bypass(case.function, binding, operand))


def static_sizes(case: Case) -> Iterator[Case]:
    """Yield the case without inputs that only tell sizes: symbols become numbers."""
    used = {o for b in case.function.bindings for o in operands(b.value)} | set(case.results)
    if all(param in used for param in case.function.params):
        return
    symbols = symbols_of(param.type for param in case.function.params)
    values: dict[str, Any] = {}
    for param, name in zip(case.function.params, case.input_names, strict=True):
        for dim, size in zip(param.tensor_type.shape, case.feeds[name].shape, strict=True):
            symbol = dims.as_symbol(dim)
            if symbol in symbols and symbol is not None:
                values[symbol] = size
    yield _sweep(case, bind_function(case.function, values))


def constants_for_inputs(case: Case) -> Iterator[Case]:
    """Yield the case with an input as a constant, for each but the first."""
    for place in range(1, len(case.function.params)):
        param, name = case.function.params[place], case.input_names[place]
        if param.tensor_type.is_static:
            yield _rebuild(case, {param: Constant(case.feeds[name])})


def default_attributes(case: Case) -> Iterator[Case]:
    """Yield the case with an attribute at its default, for each."""
    for binding in case.function.bindings:
        call = binding.value
        if not isinstance(call, Call) or not isinstance(call.op, Op):
            continue
        for name, attribute in call.op.attributes.items():
            if attribute.default is not REQUIRED and call.attrs[name] != attribute.default:
                attrs = {**call.attrs, name: attribute.default}
                yield from _retype(case, {binding: lambda new, c=call, a=attrs: Call(c.op, new, a, c.type)})


def smaller_sizes(case: Case) -> Iterator[Case]:
    """Yield the case with each size that occurs in it made smaller, everywhere."""
    shapes = [param.tensor_type.shape for param in case.function.params]
    shapes += [c.data.shape for b in case.function.bindings for c in operands(b.value) if isinstance(c, Constant)]
    arrays = [feed.shape for feed in case.feeds.values()]
    sizes = sorted({size for shape in (*shapes, *arrays) for size in shape if isinstance(size, int)}, reverse=True)
    for size in sizes:
        for small in (*(each for each in SMALL if each < size), size // 2):
            if 0 < small < size:
                yield from _resize(case, size, small)


def plain_numbers(case: Case) -> Iterator[Case]:
    """Yield the case with plain numbers: weights of ones, then feeds of few digits."""
    for binding in case.function.bindings:
        for operand in operands(binding.value):
            if isinstance(operand, Constant) and dtypes.is_float(operand.tensor_type.dtype):
                plain = np.ones_like(operand.data)
                if operand.data.size > 1 and not np.array_equal(operand.data, plain):
                    yield _rebuild(case, {operand: Constant(plain)})
    for name, feed in case.feeds.items():
        if feed.dtype.kind == "f" and np.isfinite(feed).all() and not np.array_equal(np.round(feed), feed):
            yield Case(case.module, {**case.feeds, name: np.round(feed).astype(feed.dtype)})


def float32_numbers(case: Case) -> Iterator[Case]:
    """Yield the case computed in float32, where it has other floats."""
    types = {param.tensor_type.dtype for param in case.function.params}
    for dtype in sorted(each for each in types if dtypes.is_float(each) and each != "float32"):
        params = {
            p: Var(p.name, TensorType(p.tensor_type.shape, "float32"), p.origin)
            for p in case.function.params
            if p.tensor_type.dtype == dtype
        }
        constants = {
            c: Constant(c.data.astype(np.float32))
            for b in case.function.bindings
            for c in operands(b.value)
            if isinstance(c, Constant) and c.tensor_type.dtype == dtype
        }
        feeds = {
            name: feed.astype(np.float32) if dtypes.from_numpy(feed.dtype) == dtype else feed
            for name, feed in case.feeds.items()
        }
        yield _rebuild(Case(case.module, feeds), {**params, **constants})


REDUCERS: Mapping[str, Reducer] = {
    "outputs": fewer_outputs,
    "branches": choose_branches,
    "static sizes": static_sizes,
    "passes": simplify,
    "bypasses": bypass_ops,
    "sizes": smaller_sizes,
    "attributes": default_attributes,
    "numbers": plain_numbers,
    "dtypes": float32_numbers,
    "constants": constants_for_inputs,
}


def attempts(reducer: Reducer, case: Case) -> Iterator[Case]:
    """Yield what a reducer makes of a case; a guess that does not fit ends it."""
    guesses = reducer(case)
    while True:
        try:
            yield next(guesses)
        except (StopIteration, KernelyardError):
            return


def _sweep(case: Case, function: Function) -> Case:
    """Return a case without bindings and inputs that its results do not need."""
    live: set[Expr] = {function.result, *operands(function.result)}
    kept: list[Binding] = []
    for binding in reversed(function.bindings):
        if binding.var in live:
            kept.append(binding)
            live.update(operands(binding.value))
    names = dict(zip(function.params, case.input_names, strict=True))
    needed = symbols_of(binding.var.type for binding in kept)
    params = [p for p in function.params if p in live]
    if not needed <= symbols_of(p.type for p in params):
        params = list(function.params)
    attrs = {**function.attrs, "input_names": tuple(names[param] for param in params)}
    feeds = {names[param]: case.feeds[names[param]] for param in params}
    return case.with_function(Function(params, kept[::-1], function.result, attrs), feeds)


def _bypass(function: Function, gone: Binding, instead: Var) -> Function:
    """Return a function without a binding; what read it reads an earlier value of the same type."""

    def read(expr: Expr) -> list[Expr]:
        return [instead if each is gone.var else each for each in operands(expr)]

    bindings = [Binding(b.var, with_operands(b.value, read(b.value))) for b in function.bindings if b is not gone]
    result = function.result
    result = Tuple(read(result)) if isinstance(result, Tuple) else instead if result is gone.var else result
    return Function(function.params, bindings, result, function.attrs)


Rewrite: TypeAlias = "Callable[[Sequence[Expr]], Expr]"


def _rebuild(case: Case, replaced: Mapping[Expr, Expr], rewrites: Mapping[Binding, Rewrite] | None = None) -> Case:
    """Return a case with operands replaced, parameters by parameters or constants, and all types inferred anew."""
    function, new = case.function, dict(replaced)
    params = [p for p in (new.get(param, param) for param in function.params) if isinstance(p, Var)]
    gone = [p for p in function.params if not isinstance(new.get(p, p), Var)]
    bindings: list[Binding] = []
    for binding in function.bindings:
        read = [new.get(each, each) for each in operands(binding.value)]
        rewrite = (rewrites or {}).get(binding)
        value = rewrite(read) if rewrite is not None else with_operands(binding.value, read)
        new[binding.var] = var = Var(binding.var.name, value.type, binding.var.origin)
        bindings.append(Binding(var, value))
    names = dict(zip(function.params, case.input_names, strict=True))
    kept = [names[param] for param in function.params if param not in gone]
    result = function.result
    result = Tuple([new.get(f, f) for f in result.fields]) if isinstance(result, Tuple) else new.get(result, result)
    attrs = {**function.attrs, "input_names": tuple(kept)}
    return case.with_function(Function(params, bindings, result, attrs), {n: case.feeds[n] for n in kept})


def _retype(case: Case, rewrites: Mapping[Binding, Rewrite]) -> Iterator[Case]:
    try:
        yield _rebuild(case, {}, rewrites)
    except KernelyardError:  # the attribute does not fit
        return


def _resize(case: Case, size: int, small: int) -> Iterator[Case]:
    """Yield the case with one size replaced by a smaller one: in inputs, constants and attributes."""

    def shape_of(shape: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(small if each == size else each for each in shape)

    def crop(array: np.ndarray) -> np.ndarray:
        return array[tuple(slice(0, n) for n in shape_of(array.shape))]

    new: dict[Expr, Expr] = {}
    for param in case.function.params:
        type_ = param.tensor_type
        new[param] = Var(param.name, TensorType(shape_of(type_.shape), type_.dtype), param.origin)
    rewrites: dict[Binding, Rewrite] = {}
    for binding in case.function.bindings:
        call = binding.value
        new |= {c: Constant(crop(c.data)) for c in operands(call) if isinstance(c, Constant)}
        if isinstance(call, Call) and isinstance(call.op, Op) and not call.op.opaque_type:
            attrs = {name: _resize_attribute(value, size, small) for name, value in call.attrs.items()}
            rewrites[binding] = lambda read, c=call, a=attrs: Call(c.op, read, a)
    try:
        resized = _rebuild(case, new, rewrites)
    except (KernelyardError, ValueError):
        return
    yield Case(resized.module, {name: crop(feed) for name, feed in case.feeds.items()})


def _resize_attribute(value: Any, size: int, small: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_resize_attribute(each, size, small) for each in value)
    return small if value == size and isinstance(value, int) and not isinstance(value, bool) else value
