"""Which axes expressions depend on, how far apart the elements lie that they read, and which loads always happen."""

from __future__ import annotations

import pytest

from kernelyard import dims
from kernelyard.tir import Axis, Buffer, Load, Select
from kernelyard.tir.analysis import (
    affine_of,
    axes_of,
    offset_of,
    step_along,
    unconditional_loads,
    used_as_values,
)
from kernelyard.tir.expr import index

ROW, COLUMN = Axis("i"), Axis("j")
N = dims.symbol("n")
X = Buffer("x", (4, 8), "float32")
PLACES = Buffer("places", (4,), "int64")


def test_axes_are_found_in_indices_too():
    assert axes_of(Load(X, (ROW, COLUMN + 1))) == {"i", "j"}
    assert axes_of(index(N)) == frozenset()


def test_sums_have_one_coefficient_for_each_axis():
    found = affine_of(ROW * 3 + COLUMN - ROW + 5)
    assert (found.coefficient("i"), found.coefficient("j"), found.coefficient("k")) == (2, 1, 0)
    assert found.constant == 5


def test_an_axis_that_cancels_out_is_gone():
    assert affine_of(ROW - ROW).terms == ()


def test_sizes_may_be_coefficients():
    assert affine_of(ROW * index(N)).coefficient("i") == N


@pytest.mark.parametrize("expr", [ROW // 2, ROW % 2, ROW * COLUMN, Load(PLACES, (ROW,))])
def test_what_is_no_sum_has_no_coefficient(expr):
    found = affine_of(expr + COLUMN)
    assert found.coefficient("i") is None
    assert found.coefficient("k") == 0


def test_an_atom_is_replaced():
    atom = ROW // 2
    assert affine_of(atom * 4 + COLUMN).with_atom(atom, affine_of(ROW + 1)) == affine_of(COLUMN + ROW * 4 + 4)


def test_offsets_count_elements():
    found = offset_of(X, (ROW, COLUMN + 2))
    assert (found.coefficient("i"), found.coefficient("j"), found.constant) == (8, 1, 2)
    assert offset_of(X, (ROW, COLUMN), dropped=1).coefficient("i") == 0


def test_steps_between_neighbours():
    load = Load(X, (ROW, COLUMN // 2))
    assert [step_along(load, name) for name in ("i", "j", "k")] == [8, None, 0]


def test_loads_behind_a_condition_are_left_out():
    guard, inner = Load(PLACES, (ROW,)), Load(X, (ROW, COLUMN))
    assert unconditional_loads(Select(guard < 3, inner, inner * 2)) == [guard]
    assert unconditional_loads(inner + inner) == [inner]


def test_loads_in_indices_are_asked_for():
    place = Load(PLACES, (ROW,))
    gathered = Load(X, (place, COLUMN))
    assert unconditional_loads(gathered) == [gathered]
    assert unconditional_loads(gathered, in_indices=True) == [gathered, place]


def test_axes_as_numbers():
    assert used_as_values([Select(ROW < 3, Load(X, (ROW, COLUMN)), Load(X, (COLUMN, COLUMN)))]) == {"i"}
