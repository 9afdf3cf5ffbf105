"""What an emitter writes is compiled and run; equal instructions are written once, invariants outside their loops."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kernelyard.runtime.abi.memory import address_of
from kernelyard.runtime.jit.linking import Code, compile_text
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value, float_literal, int_literal, literal_int

PARAMETERS = (Value("%place", "ptr"), Value("%last", "i64"))


def emitter() -> FunctionEmitter:
    return FunctionEmitter(PARAMETERS, set())


def run(e: FunctionEmitter, array: np.ndarray, last: int) -> None:
    attributes = ("attributes #0 = { nounwind }", "attributes #1 = { nounwind willreturn memory(none) }")
    code = compile_text("\n".join((e.finish("kernel"), *sorted(e.declarations), *attributes)), {}, ("kernel",))
    assert isinstance(code, Code)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(code.addresses["kernel"])(address_of(array), last)


def element(e: FunctionEmitter, index: Value) -> Value:
    return e.pure(f"getelementptr float, ptr %place, {index.typed}", "ptr", 1, [index])


@pytest.mark.parametrize("last", [0, 1, 5])
def test_a_loop_runs_as_often_as_it_says(last):
    e = emitter()

    def body(index: Value, carried: list[Value]) -> list[Value]:
        place = element(e, index)
        total = e.add(carried[0], e.here(f"load float, ptr {place.ref}", "float"))
        e.line(f"store {total.typed}, ptr {place.ref}")
        return [total]

    e.loop(int_literal(0), PARAMETERS[1], body, [float_literal(0.0)])
    array = np.ones(5, np.float32)
    run(e, array, last)
    assert array.tolist() == [*range(1, last + 1), *[1] * (5 - last)]


@pytest.mark.parametrize("last", [1, 3])
def test_a_branch_gives_what_was_chosen(last):
    e = emitter()
    is_one = e.compare("eq", PARAMETERS[1], int_literal(1))
    (chosen,) = e.branch(is_one, lambda: [float_literal(2.0)], lambda: [float_literal(4.0)])
    e.line(f"store {chosen.typed}, ptr %place")
    array = np.zeros(1, np.float32)
    run(e, array, last)
    assert array[0] == (2.0 if last == 1 else 4.0)


def test_a_square_is_transposed():
    e = emitter()
    rows = [
        e.here(f"load <4 x float>, ptr {element(e, int_literal(4 * n)).ref}, align 4", "float", 4) for n in range(4)
    ]
    for n, column in enumerate(e.transpose(rows)):
        e.line(f"store {column.typed}, ptr {element(e, int_literal(4 * n)).ref}, align 4")
    array = np.arange(16, dtype=np.float32).reshape(4, 4)
    wanted = array.T.copy()
    run(e, array, 0)
    np.testing.assert_array_equal(array, wanted)


def test_equal_instructions_are_written_once_and_outside_of_loops():
    e = emitter()

    def body(index: Value, carried: list[Value]) -> list[Value]:
        double = e.mul(PARAMETERS[1], int_literal(2))
        assert double == e.mul(PARAMETERS[1], int_literal(2))
        assert double.depth == 0
        assert e.add(index, double).depth == 1
        return []

    e.loop(int_literal(0), PARAMETERS[1], body)
    text = e.finish("kernel")
    assert text.count("mul i64") == 1
    assert text.index("mul i64") < text.index("phi i64")


@pytest.mark.parametrize(("op", "a", "b", "wanted"), [("add", 3, 4, 7), ("sub", 3, 4, -1), ("mul", 3, 4, 12)])
def test_literals_are_folded(op, a, b, wanted):
    assert literal_int(emitter().binary(op, int_literal(a), int_literal(b))) == wanted
