"""Scalar expressions: value equality, dtypes, checked construction."""

from __future__ import annotations

import pytest

from kernelyard import dims
from kernelyard.errors import IRError
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    binary,
    cast,
    const,
    equal,
    maximum,
    select,
    unary,
)
from kernelyard.tir.primfunc import neutral_element, walk
from kernelyard.tir.visitor import ExprRewriter, substitute_axes

i = Axis("i")
X = Buffer("x", (4,), "float32")


def test_expressions_compare_by_value():
    assert X[i] * 2.0 == X[i] * 2.0
    assert hash(X[i] * 2.0) == hash(X[i] * 2.0)
    assert X[i] * 2.0 != X[i] * 3.0


def test_zero_and_negative_zero_are_different_literals():
    assert Const(0.0, "float32") != Const(-0.0, "float32")
    assert Const(float("nan"), "float32") == Const(float("nan"), "float32")


def test_dtypes_follow_from_operands():
    assert (X[i] < 1.0).dtype == "bool"
    assert equal(X[i], 0.0).dtype == "bool"
    assert unary("isnan", X[i]).dtype == "bool"
    assert cast(X[i], "int32").dtype == "int32"
    assert maximum(X[i], 0).dtype == "float32"
    assert (i + dims.symbol("n")).dtype == "int64"


def test_literals_are_rounded_to_their_dtype():
    literal = const(0.1, "float32")
    assert isinstance(literal, Const)
    assert literal.value == 0.10000000149011612


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: X[i] + i, "operands have different dtypes"),
        (lambda: binary("and", X[i], X[i]), "and does not take float32"),
        (lambda: unary("exp", i), "exp does not take int64"),
        (lambda: unary("expo", X[i]), "no scalar operator is called 'expo'"),
        (lambda: X[i, i], "has the wrong number of indices"),
        (lambda: select(X[i], 1.0, X[i]), "a condition is a bool"),
    ],
)
def test_wrong_operands_are_refused(build, message: str):
    with pytest.raises(IRError, match=message):
        build()


def test_shared_parts_are_visited_once():
    """As a tree this has 2 ** 60 nodes."""
    expr: Expr = X[i]
    for _ in range(60):
        expr = Binary("add", expr, expr)
    assert len(list(walk(expr))) == 62
    assert expr.size > 2**60
    moved = substitute_axes(expr, {"i": i + 1})
    assert len(list(walk(moved))) == 64
    seen = []
    ExprRewriter(lambda e: seen.append(e) or e)(expr)
    assert len(seen) == 62


def test_neutral_elements():
    assert neutral_element("sum", "float32") == Const(0.0, "float32")
    assert neutral_element("prod", "int64") == Const(1, "int64")
    assert neutral_element("max", "float16") == Const(float("-inf"), "float16")
    assert neutral_element("min", "uint8") == Const(255, "uint8")
    assert neutral_element("all", "bool") == Const(True, "bool")
    with pytest.raises(IRError, match="no reducer"):
        neutral_element("mean", "float32")


def test_strides_are_row_major():
    n = dims.symbol("n")
    assert Buffer("b", (2, n, 3), "int8").strides == (n * 3, 3, 1)
