"""Modules with branches and loops, for tests."""

from __future__ import annotations

import numpy as np

from kernelyard.dims import Dim, symbol
from kernelyard.ir import Constant, Function, FunctionBuilder, IRModule, TensorType, TupleType

PRIVATE = {"private": True}
FLAG = TensorType((), "bool")
COUNT = TensorType((), "int64")


def rows(n: Dim) -> TensorType:
    """Rows of four float32."""
    return TensorType((n, 4), "float32")


def unary(op: str, n: Dim) -> Function:
    """A private function of rows: one operator."""
    b = FunctionBuilder()
    return b.function(b.op(op, b.input("x", (n, 4))), attrs=PRIVATE)


def branching(n: Dim = 2) -> IRModule:
    """main(x, c) = (exp(x) if c else tanh(x)) + x."""
    b = FunctionBuilder()
    x, c = b.input("x", (n, 4)), b.input("c", (), "bool")
    y = b.if_(c, "then", "otherwise", [x], rows(n))
    main = b.function(b.op("add", y, x))
    return IRModule({"main": main, "then": unary("exp", n), "otherwise": unary("tanh", n)})


def counting(turns: int, n: Dim = 2) -> IRModule:
    """main(x) = x doubled `turns` times, and the number of turns."""
    b = FunctionBuilder()
    i = b.input("i", (), "int64")
    b.input("x", (n, 4))
    condition = b.function(b.op("less", i, turns), attrs=PRIVATE)
    b = FunctionBuilder()
    i, x = b.input("i", (), "int64"), b.input("x", (n, 4))
    body = b.function(b.op("add", i, 1), b.op("add", x, x), attrs=PRIVATE)
    b = FunctionBuilder()
    x = b.input("x", (n, 4))
    result = b.while_("goes_on", "turn", [Constant(np.array(0)), x], TupleType((COUNT, rows(n))))
    main = b.function(b.op("negative", b.get(result, 1)), b.get(result, 0))
    return IRModule({"main": main, "goes_on": condition, "turn": body})


def growing() -> IRModule:
    """main(x, turns) = exp of x stacked upon itself `turns` times: its length is known only after the loop."""
    n, k, s = symbol("n"), symbol("k"), symbol("s")
    b = FunctionBuilder()
    turns = b.input("turns", (), "int64")
    b.input("stack", (k, 4))
    b.input("x", (n, 4))
    condition = b.function(b.op("greater", turns, 0), attrs=PRIVATE)
    b = FunctionBuilder()
    turns, stack, x = b.input("turns", (), "int64"), b.input("stack", (k, 4)), b.input("x", (n, 4))
    body = b.function(b.op("subtract", turns, 1), b.op("concat", stack, x, axis=0), x, attrs=PRIVATE)
    b = FunctionBuilder()
    x, turns = b.input("x", (n, 4)), b.input("turns", (), "int64")
    result = b.while_("goes_on", "turn", [turns, x, x], TupleType((COUNT, rows(s), rows(n))))
    main = b.function(b.op("exp", b.get(result, 1)))
    return IRModule({"main": main, "goes_on": condition, "turn": body})


def collecting() -> IRModule:
    """main(x, turns) = x doubled `turns` times, and the doubles of all turns in a stack."""
    n, s = symbol("n"), symbol("s")
    b = FunctionBuilder()
    turns = b.input("turns", (), "int64")
    b.input("x", (n, 4))
    condition = b.function(b.op("greater", turns, 0), attrs=PRIVATE)
    b = FunctionBuilder()
    turns, x = b.input("turns", (), "int64"), b.input("x", (n, 4))
    twice = b.op("add", x, x)
    body = b.function(b.op("subtract", turns, 1), twice, twice, attrs=PRIVATE)
    b = FunctionBuilder()
    x, turns = b.input("x", (n, 4)), b.input("turns", (), "int64")
    type_ = TupleType((COUNT, rows(n), TensorType((s - 1, n, 4), "float32")))
    result = b.while_("goes_on", "turn", [turns, x], type_, collected=1)
    main = b.function(b.get(result, 1), b.op("exp", b.get(result, 2)))
    return IRModule({"main": main, "goes_on": condition, "turn": body})
