"""Bound nothing where no kernel rounds: the first of equal numbers, halves, what is stored in powers of two."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard_fuzz.bound import Expected, compute_expected
from kernelyard_fuzz.oracles import RUNS

HALVES = np.float32([[0.5, 1.5, 2.5, 2.5, -0.5]])


def result_of(*steps: tuple, feed: np.ndarray = HALVES) -> Expected:
    """Return what operators of a parameter, one after the other, give: name, other operands, attributes."""
    b = FunctionBuilder()
    x = b.input("x", feed.shape)
    for name, others, attrs in steps:
        x = b.op(name, x, *others, **attrs)
    return compute_expected(IRModule({"main": b.function(x)}), [feed], sum(RUNS))[0]


@pytest.mark.parametrize("is_last", [False, True])
def test_which_of_equal_numbers_is_the_largest_is_certain(is_last: bool) -> None:
    largest = result_of(("argmax", (), {"axis": 1, "select_last_index": is_last}))
    assert largest.worst(np.array([3 if is_last else 2])) == 0
    assert largest.worst(np.array([2 if is_last else 3])) > 1


def test_halves_are_rounded_to_even() -> None:
    rounded = result_of(("nn.relu", (), {}), ("round", (), {}))
    assert rounded.worst(np.float32([[0, 2, 2, 2, 0]])) == 0
    assert rounded.worst(np.float32([[1, 2, 3, 3, 0]])) > 1


@pytest.mark.parametrize(("scale", "is_certain"), [(0.25, True), (0.3, False)])
def test_what_is_stored_in_powers_of_two_is_certain(scale: float, is_certain: bool) -> None:
    feed = (np.float32([[0.5, 1.5, 2.5]]) * np.float32(scale)).astype(np.float32)
    stored = result_of(("quantize", (np.float32(scale), np.int8(0)), {"dtype": "int8"}), feed=feed)
    assert stored.worst(stored.value.astype(np.int8)) == 0
    assert (stored.worst(np.int8([[1, 2, 3]])) > 1) is is_certain


def test_what_is_computed_first_may_be_rounded() -> None:
    """A tie of results is no tie for every kernel."""
    largest = result_of(("exp", (), {}), ("argmax", (), {"axis": 1}))
    assert largest.worst(np.array([3])) <= 1
