"""Functions as values: lifting, text, what the verifier refuses, and what the interpreter makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from closure_modules import CASES, FLAG, MAP, PRIVATE, ROW, N, from_a_branch, with_captured

from kernelyard.errors import ParseError, VerifyError
from kernelyard.ir import FunctionBuilder, FunctionType, IRModule, TensorType, TupleType, parse_module, to_text, verify
from kernelyard.ir.lambda_lifting import free_variables, lift
from kernelyard.ir.scopes import fits
from kernelyard.ir.types import leaves_of, substitute, tensors_of
from kernelyard.ops.interpreter import run


@pytest.mark.parametrize(("module", "feeds", "wanted"), CASES)
def test_the_interpreter_knows_them(module, feeds, wanted):
    np.testing.assert_allclose(run(verify(module), feeds)[0], wanted, rtol=1e-6)


@pytest.mark.parametrize(("module", "feeds", "wanted"), CASES)
def test_text_and_back(module, feeds, wanted):
    text = to_text(module)
    again = parse_module(text)
    assert to_text(again) == text
    np.testing.assert_allclose(run(again, feeds)[0], wanted, rtol=1e-6)


def test_types():
    assert repr(MAP) == "Function[(Tensor[(n,), float32]) -> Tensor[(n,), float32]]"
    both = TupleType((MAP, FLAG))
    assert leaves_of(both) == (MAP, FLAG)
    assert tensors_of(both) == (FLAG,)
    of_two = FunctionType((TensorType((2,), "float32"),), TensorType((2,), "float32"))
    assert substitute(MAP, {"n": 2}) == of_two
    assert fits(MAP, MAP, {"n"}, {})
    assert not fits(MAP, of_two, {"n"}, {})
    assert fits(TupleType((ROW, MAP)), TupleType((of_two.result, of_two)), set(), {})
    assert not fits(MAP, ROW, {"n"}, {})
    assert not fits(both, TupleType((FLAG, MAP)), {"n"}, {})


@pytest.mark.parametrize("text", ["Function[Tensor[(), bool]]", "Function[() -> ]", "Function[() Tensor[(), bool]]"])
def test_texts_of_types_that_are_none(text):
    with pytest.raises(ParseError):
        parse_module(f"module\ndef @f(%x: {text}) -> Tensor[(), bool] {{\n  return %x\n}}\n")


# --- lifting ------------------------------------------------------------------------------------------------------
def test_what_is_read_from_around_becomes_parameters():
    outer, inner = FunctionBuilder(), FunctionBuilder()
    a, b, c = (outer.input(name, (N,)) for name in "abc")
    y = inner.input("y", (N,))
    function = inner.function(inner.op("add", inner.op("multiply", y, c), a), y)
    assert free_variables(function) == (c, a)
    lifted, captured = lift(function)
    assert captured == (c, a)
    assert [param.name for param in lifted.params] == ["c", "a", "y"]
    assert free_variables(lifted) == ()
    assert b not in captured


def test_a_variable_that_is_only_returned_is_captured():
    outer, inner = FunctionBuilder(), FunctionBuilder()
    x = outer.input("x", (N,))
    lifted, captured = lift(inner.function(x))
    assert captured == (x,)
    assert lifted.result is lifted.params[0]


def test_functions_inside_functions_inside_functions():
    outer, middle, inner = FunctionBuilder(), FunctionBuilder(), FunctionBuilder()
    x, y, z = outer.input("x", (N,)), middle.input("y", (N,)), inner.input("z", (N,))
    innermost = middle.closure("innermost", inner, inner.op("add", inner.op("multiply", x, y), z))
    closure = outer.closure("middle", middle, middle.invoke_closure(innermost, [y]))
    module = IRModule({"main": outer.function(outer.invoke_closure(closure, [x])), **outer.lifted})
    assert [param.name for param in module["middle"].params] == ["x", "y"]  # pyright: ignore[reportAttributeAccessIssue]
    values = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(run(verify(module), [values])[0], values * values + values)


def test_sizes_of_the_place_where_it_was_made():
    """The function broadcasts to a size that only its maker knows."""
    outer, inner = FunctionBuilder(), FunctionBuilder()
    x = outer.input("x", (N,))
    wide = inner.op("broadcast_to", inner.input("y", (1,)), shape=(N,))
    closure = outer.closure("widen", inner, wide)
    one = outer.op("sum", x, axes=(0,), keepdims=True)
    module = verify(IRModule({"main": outer.function(outer.invoke_closure(closure, [one])), **outer.lifted}))
    np.testing.assert_array_equal(run(module, [np.ones(4, np.float32)])[0], np.full(4, 4, np.float32))


# --- refused ------------------------------------------------------------------------------------------------------
PUBLIC = (lambda b: b.function(b.input("x", (N,))))(FunctionBuilder())
TWO = FunctionType((ROW, ROW), ROW)


@pytest.mark.parametrize(
    ("match", "build"),
    [
        ("only private functions take and return closures", lambda b, x: b.make_closure("add_x", [x], MAP)),
        ("no graph-level function", lambda b, x: b.invoke_closure(b.make_closure("missing", [], MAP), [x])),
        ("is no private function", lambda b, x: b.invoke_closure(b.make_closure("public", [], MAP), [x])),
        ("cannot capture", lambda b, x: b.invoke_closure(b.make_closure("add_x", [b.op("greater", x, 0.0)], MAP), [x])),
        ("cannot capture", lambda b, x: b.invoke_closure(b.make_closure("add_x", [x, x, x], MAP), [x])),
        ("another signature than the", lambda b, x: b.invoke_closure(b.make_closure("add_x", [x], TWO), [x, x])),
        ("be a closure", lambda b, x: b.invoke_closure(x, [x], ROW)),
        ("wrong types", lambda b, x: b.invoke_closure(b.make_closure("add_x", [x], MAP), [x, x])),
        ("must return the type", lambda b, x: b.invoke_closure(b.make_closure("add_x", [x], MAP), [x], FLAG)),
        ("must have a function type", lambda b, x: b.make_closure("add_x", [x], ROW)),  # pyright: ignore[reportArgumentType]
    ],
)
def test_the_verifier_refuses(match, build):
    b = FunctionBuilder()
    x = b.input("x", (N,))
    functions = {"main": b.function(build(b, x)), "public": PUBLIC, **with_captured("add")}
    with pytest.raises(VerifyError, match=match):
        verify(IRModule(functions))


def test_entry_functions_take_no_closures():
    b = FunctionBuilder()
    f, x = b.parameter(MAP, "f"), b.input("x", (N,))
    with pytest.raises(VerifyError, match="only private functions"):
        verify(IRModule({"main": b.function(b.invoke_closure(f, [x]))}))


def test_a_branch_that_gives_another_function_type():
    functions = dict(from_a_branch().functions)
    b = FunctionBuilder()
    functions["add_"] = b.function(b.input("x", (N,)), attrs=PRIVATE)
    with pytest.raises(VerifyError, match="must return the type"):
        verify(IRModule(functions))
