"""Binding of symbols to sizes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

import kernelyard.ops  # noqa: F401
from kernelyard import dims
from kernelyard.errors import PassError
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.ir.types import symbols_of
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard.transform.interprocedural.bind_symbolic_vars import BindSymbolicVars

N, M = dims.symbol("n"), dims.symbol("m")


@settings(max_examples=40, deadline=None)
@given(modules(symbolic=True))
def test_bound_modules_mean_the_same(program):
    sizes: dict[str, dims.Dim] = {}
    for param, array in zip(program.module["main"].params, program.inputs, strict=True):
        symbols = map(dims.as_symbol, param.type.shape)
        sizes |= {name: size for name, size in zip(symbols, array.shape, strict=True) if name}
    bound = verify(BindSymbolicVars(sizes)(program.module))
    assert not symbols_of([bound["main"].result_type])
    assert_same_meaning(program.module, bound, program.inputs)


def test_other_symbols_stay_and_may_be_the_new_ones():
    b = FunctionBuilder()
    x = b.input("x", (N, M))
    module = IRModule({"main": b.function(b.op("concat", x, x, axis=0))})
    assert BindSymbolicVars({"n": M + 1})(module)["main"].result_type.shape == (M * 2 + 2, M)


def test_called_functions_are_bound_too():
    inner = FunctionBuilder()
    part = inner.function(inner.op("tanh", inner.input("p", (N, 4))), attrs={"Composite": "acme.tanh"})
    b = FunctionBuilder()
    x = b.input("x", (N, 4))
    module = IRModule({"main": b.function(b.call_function("part", [x], x.type)), "part": part})
    bound = verify(BindSymbolicVars({"n": 3})(module))
    assert bound["part"].result_type.shape == (3, 4)


def test_unknown_symbols_are_refused():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.input("x", (dims.symbol("batch"), 4)))})
    with pytest.raises(PassError, match="no parameter") as info:
        BindSymbolicVars({"bach": 1})(module)
    assert info.value.hint == "did you mean 'batch'?"


def test_one_entry_function_alone_with_what_it_calls():
    inner = FunctionBuilder()
    part = inner.function(inner.op("tanh", inner.input("p", (N, 4))), attrs={"Composite": "acme.tanh"})
    b, other = FunctionBuilder(), FunctionBuilder()
    x, y = b.input("x", (N, 4)), other.input("y", (N, 2))
    first, second = b.function(b.call_function("part", [x], x.type)), other.function(other.op("tanh", y))
    bound = verify(BindSymbolicVars({"n": 3}, "main")(IRModule({"main": first, "other": second, "part": part})))
    assert bound["main"].result_type.shape == bound["part"].result_type.shape == (3, 4)
    assert bound["other"] is second


def test_a_function_that_another_entry_needs_symbolic_is_refused():
    inner = FunctionBuilder()
    part = inner.function(inner.op("tanh", inner.input("p", (N, 4))), attrs={"Composite": "acme.tanh"})
    b, other = FunctionBuilder(), FunctionBuilder()
    x, y = b.input("x", (N, 4)), other.input("y", (N, 4))
    first = b.function(b.call_function("part", [x], x.type))
    second = other.function(other.call_function("part", [y], y.type))
    with pytest.raises(PassError, match="another entry function") as info:
        BindSymbolicVars({"n": 3}, "main")(IRModule({"main": first, "other": second, "part": part}))
    assert info.value.found == "@part"


SCENARIOS = {
    "BindSymbolicVars: one function": test_one_entry_function_alone_with_what_it_calls,
    "BindSymbolicVars: unknown symbol": test_unknown_symbols_are_refused,
}
