"""Loops inside of one element's expression."""

from __future__ import annotations

import numpy as np
import pytest
from scalar_interpreter import evaluate_scalar

from kernelyard.errors import IRError, ParseError, VerifyError
from kernelyard.ir import TensorType
from kernelyard.tir import Binary, Const, PrimFunc, State, parse_primfunc, print_primfunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import cast, const
from kernelyard.tir.inline import inline_locals
from kernelyard.tir.interpreter import evaluate
from kernelyard.tir.iterate import iterate
from kernelyard.tir.verify import verify

NEXT = np.array([1, 2, 3, 4, 4], np.int32)
STARTS = np.array([0, 3, 4], np.int32)


def walk_down(steps: int) -> PrimFunc:
    b = PrimFuncBuilder()
    starts, following = (b.input(name, TensorType((size,), "int32")) for name, size in (("starts", 3), ("next", 5)))
    body = lambda i: iterate("at", starts[i], steps, lambda s: following[cast(s, "int64")])  # noqa: E731
    return b.finish((b.compute((3,), body),))


@pytest.mark.parametrize(
    ("steps", "reached"), [(0, [0, 3, 4]), (1, [1, 4, 4]), (2, [2, 4, 4]), (9, [4, 4, 4]), (1 << 30, [4, 4, 4])]
)
def test_both_interpreters_take_the_steps(steps, reached):
    function = walk_down(steps)
    verify(function)
    assert evaluate(function, [STARTS, NEXT])[0].tolist() == reached
    assert evaluate_scalar(function, [STARTS.tolist(), NEXT.tolist()], {}) == [reached]


def test_text_is_read_back():
    function = walk_down(3)
    assert "iterate(int32, at, 3, starts[i0], next[cast(int64, at)])" in print_primfunc(function)
    assert parse_primfunc(print_primfunc(function)) == function


def test_walks_are_stored_for_what_sums_them_up():
    b = PrimFuncBuilder()
    starts, following = (b.input(name, TensorType((size,), "int32")) for name, size in (("starts", 3), ("next", 5)))
    reached = b.compute((3,), lambda i: iterate("at", starts[i], 2, lambda s: following[cast(s, "int64")]))
    function = b.finish((b.reduce("sum", (), (3,), lambda at, point: reached[point[0]]),))
    assert inline_locals(function).locals == function.locals


def test_a_state_belongs_to_its_loop():
    b = PrimFuncBuilder()
    b.input("x", TensorType((3,), "int32"))
    function = b.finish((b.compute((3,), lambda i: Binary("add", State("at", "int32"), const(1, "int32"))),))
    with pytest.raises(VerifyError, match="outside of its loop"):
        verify(function)


def test_a_name_is_taken_once():
    text = print_primfunc(walk_down(3)).replace("next[cast(int64, at)]", "iterate(int32, at, 2, at, at)")
    with pytest.raises(ParseError, match="name of another value"):
        parse_primfunc(text)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda s: cast(s, "int64"), "another dtype"),
        (lambda s: iterate("s", s, 1, lambda inner: inner), "same name"),
    ],
)
def test_wrong_bodies_are_refused(body, message):
    with pytest.raises(IRError, match=message):
        iterate("s", Const(0, "int32"), 2, body)


def test_a_negative_number_of_steps_is_refused():
    with pytest.raises(IRError, match="number of steps"):
        iterate("s", Const(0, "int32"), -1, lambda s: s)
