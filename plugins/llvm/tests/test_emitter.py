"""What an emitter writes is compiled and run; equal instructions are written once, invariants outside their loops."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from kernelyard.runtime.abi.memory import address_of
from kernelyard.runtime.jit.linking import Code, compile_text
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.module import module_text
from kernelyard_llvm.values import Value, float_literal, int_literal, literal_int

PLACE, LAST = PARAMETERS = (Value("%place", "ptr"), Value("%last", "i64"))


def emitter() -> FunctionEmitter:
    return FunctionEmitter(PARAMETERS)


def run(e: FunctionEmitter, array: np.ndarray, last: int) -> None:
    code = compile_text(module_text([e.finish("kernel")], e.declarations, 128), {}, ("kernel",))
    assert isinstance(code, Code)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(code.addresses["kernel"])(address_of(array), last)


@pytest.mark.parametrize("last", [0, 1, 5])
def test_a_loop_runs_as_often_as_it_says(last):
    e = emitter()
    with e.loop(0, LAST, [float_literal(0.0)]) as (index, carried):
        place = e.element(PLACE, index)
        carried[0] = e.add(carried[0], e.load(place))
        e.store(carried[0], place)
    array = np.ones(5, np.float32)
    run(e, array, last)
    assert array.tolist() == [*range(1, last + 1), *[1] * (5 - last)]


@pytest.mark.parametrize("last", [1, 3])
def test_a_branch_gives_what_was_chosen(last):
    e = emitter()
    is_one = e.compare("eq", LAST, 1)
    (chosen,) = e.branch(is_one, lambda: [float_literal(2.0)], lambda: [float_literal(4.0)])
    e.store(chosen, PLACE)
    array = np.zeros(1, np.float32)
    run(e, array, last)
    assert array[0] == (2.0 if last == 1 else 4.0)


def test_what_is_done_on_a_condition():
    """for i in 1, 3, 5: place[i] += 1 unless i is 3; nothing where the first is the last."""
    e = emitter()
    with e.loop(1, LAST, step=2) as (i, _), e.when(e.compare("ne", i, 3)):
        place = e.element(PLACE, e.mul(i, 8))
        e.store(e.add(e.load(place, 8), 1), place)
    places = np.zeros((8, 8), np.float32)
    run(e, places, 1)
    assert not places.any()
    run(e, places, 7)
    assert places[:, 0].tolist() == [0, 1, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("used", [0, 3, 8])
def test_lanes_that_a_mask_leaves_out_are_neither_read_nor_written(used):
    e = emitter()
    mask = e.lanes_below(8, LAST)
    e.store(e.add(e.load(PLACE, 8, mask), 1), PLACE, mask)
    places = np.zeros(8, np.float32)
    run(e, places, used)
    assert places.tolist() == [1] * used + [0] * (8 - used)


@pytest.mark.parametrize("value", [0.1, -3.0, 1e39, -1e39, math.inf, math.nan, 1e-45])
def test_numbers_of_any_size(value):
    e = emitter()
    e.store(e.add(e.load(PLACE), value), PLACE)
    place = np.zeros(1, np.float32)
    run(e, place, 0)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(place[0], np.float32(value))


def test_a_square_is_transposed():
    e = emitter()
    rows = [e.load(e.element(PLACE, 4 * n), 4) for n in range(4)]
    for n, column in enumerate(e.transpose(rows)):
        e.store(column, e.element(PLACE, 4 * n))
    array = np.arange(16, dtype=np.float32).reshape(4, 4)
    wanted = array.T.copy()
    run(e, array, 0)
    np.testing.assert_array_equal(array, wanted)


def test_equal_instructions_are_written_once_and_outside_of_loops():
    e = emitter()
    with e.loop(0, LAST) as (index, _):
        double = e.mul(LAST, 2)
        assert double == e.mul(LAST, 2)
        assert double.depth == 0
        assert e.add(index, double).depth == 1
    text = e.finish("kernel")
    assert text.count("mul i64") == 1
    assert text.index("mul i64") < text.index("phi i64")


@pytest.mark.parametrize(("op", "a", "b", "wanted"), [("add", 3, 4, 7), ("sub", 3, 4, -1), ("mul", 3, 4, 12)])
def test_literals_are_folded(op, a, b, wanted):
    assert literal_int(emitter().binary(op, int_literal(a), int_literal(b))) == wanted
