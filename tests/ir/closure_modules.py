"""Modules in which functions are values, for tests."""

from __future__ import annotations

import numpy as np

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.dims import symbol
from kernelyard.ir import Constant, Expr, Function, FunctionBuilder, FunctionType, IRModule, TensorType, TupleType

PRIVATE = {"private": True}
N = symbol("n")
ROW = TensorType((N,), "float32")
MAP = FunctionType((ROW,), ROW)
FLAG = TensorType((), "bool")


def with_captured(op: str) -> dict[str, Function]:
    """`op_(x)`: the function that applies an operator to x and what it is given."""
    outer, inner = FunctionBuilder(), FunctionBuilder()
    x, y = outer.input("x", (N,)), inner.input("y", (N,))
    closure = outer.closure(f"{op}_x", inner, inner.op(op, x, y))
    return {f"{op}_": outer.function(closure, attrs=PRIVATE), **outer.lifted}


def known() -> IRModule:
    """main(x) = exp(x) + x, by a local function that captures x."""
    b, inner = FunctionBuilder(), FunctionBuilder()
    x, y = b.input("x", (N,)), inner.input("y", (N,))
    add_x = b.closure("add_x", inner, inner.op("add", y, x))
    return IRModule({"main": b.function(b.invoke_closure(add_x, [b.op("exp", x)])), **b.lifted})


def from_a_branch() -> IRModule:
    """main(x, flag) = tanh(x + exp(x) if flag else x * exp(x))."""
    b = FunctionBuilder()
    x, flag = b.input("x", (N,)), b.input("flag", (), "bool")
    chosen = b.if_(flag, "add_", "multiply_", [x], MAP)
    result = b.op("tanh", b.invoke_closure(chosen, [b.op("exp", x)]))
    return IRModule({"main": b.function(result), **with_captured("add"), **with_captured("multiply")})


def applying() -> dict[str, Function]:
    """`twice(f, x)` = f(f(x))."""
    b = FunctionBuilder()
    f, x = b.parameter(MAP, "f"), b.input("x", (N,))
    return {"twice": b.function(b.invoke_closure(f, [b.invoke_closure(f, [x])]), attrs=PRIVATE)}


def as_an_argument() -> IRModule:
    """main(x) = x + (x + x), by a function that applies the one it is given twice."""
    b = FunctionBuilder()
    x = b.input("x", (N,))
    add_x = b.make_closure("add_x", [x], MAP)
    return IRModule(
        {"main": b.function(b.call_function("twice", [add_x, x], ROW)), **applying(), **with_captured("add")}
    )


def unknown_argument() -> IRModule:
    """main(x, flag) = the chosen function twice; it is handed to a function, in a tuple."""
    b = FunctionBuilder()
    x, flag = b.input("x", (N,)), b.input("flag", (), "bool")
    pair = b.tuple(b.if_(flag, "add_", "multiply_", [x], MAP), x)
    same = FunctionBuilder()
    given = same.parameter(TupleType((MAP, ROW)), "pair")
    twice = same.call_function("twice", [same.get(given, 0), same.get(given, 1)], ROW)
    apply = same.function(twice, attrs=PRIVATE)
    result = b.if_(flag, "apply", "apply", [pair], ROW)
    branches = {**with_captured("add"), **with_captured("multiply")}
    return IRModule({"main": b.function(result), "apply": apply, **applying(), **branches})


def composed(turns: int) -> IRModule:
    """main(x) = x + turns * x: a loop makes a function of a function, again and again."""
    step, inner = FunctionBuilder(), FunctionBuilder()
    i, f, x = step.input("i", (), "int64"), step.parameter(MAP, "f"), step.input("x", (N,))
    y = inner.input("y", (N,))
    longer = step.closure("longer", inner, inner.op("add", inner.invoke_closure(f, [y]), x))
    body = step.function(step.op("add", i, 1), longer, x, attrs=PRIVATE)
    c = FunctionBuilder()
    count = c.input("i", (), "int64")
    c.parameter(MAP, "f"), c.input("x", (N,))
    condition = c.function(c.op("less", count, turns), attrs=PRIVATE)
    same = FunctionBuilder()
    identity = same.function(same.input("y", (N,)), attrs=PRIVATE)
    b = FunctionBuilder()
    x = b.input("x", (N,))
    start: list[Expr] = [Constant(np.array(0)), b.make_closure("identity", [], MAP), x]
    types = TupleType((TensorType((), "int64"), MAP, ROW))
    last = b.while_("goes_on", "turn", start, types)
    main = b.function(b.invoke_closure(b.get(last, 1), [x]))
    return IRModule({"main": main, "turn": body, "goes_on": condition, "identity": identity, **step.lifted})


def recursive() -> IRModule:
    """main(x, k) = x + k: a function that captures what it calls until nothing is left."""
    b = FunctionBuilder()
    count, f, x = b.input("k", (), "int64"), b.parameter(MAP, "f"), b.input("x", (N,))
    more = b.op("greater", count, 0)
    result = b.if_(more, "again", "done", [count, f, x], ROW)
    count_down = b.function(result, attrs=PRIVATE)
    b = FunctionBuilder()
    count, f, x = b.input("k", (), "int64"), b.parameter(MAP, "f"), b.input("x", (N,))
    again = b.function(
        b.call_function("count_down", [b.op("subtract", count, 1), f, b.invoke_closure(f, [x])], ROW), attrs=PRIVATE
    )
    b = FunctionBuilder()
    b.input("k", (), "int64"), b.parameter(MAP, "f")
    done = b.function(b.input("x", (N,)), attrs=PRIVATE)
    b, inner = FunctionBuilder(), FunctionBuilder()
    x, k = b.input("x", (N,)), b.input("k", (), "int64")
    one = b.closure("one_more", inner, inner.op("add", inner.input("y", (N,)), 1.0))
    main = b.function(b.call_function("count_down", [k, one, x], ROW))
    return IRModule({"main": main, "count_down": count_down, "again": again, "done": done, **b.lifted})


X = np.array([0.5, -1.0, 2.0], np.float32)
CASES = [
    (known(), [X], np.exp(X) + X),
    (from_a_branch(), [X, np.array(True)], np.tanh(X + np.exp(X))),
    (from_a_branch(), [X, np.array(False)], np.tanh(X * np.exp(X))),
    (as_an_argument(), [X], 3 * X),
    (unknown_argument(), [X, np.array(True)], 3 * X),
    (unknown_argument(), [X, np.array(False)], X**3),
    (composed(0), [X], X),
    (composed(3), [X], 4 * X),
    (recursive(), [X, np.array(4)], X + 4),
]
