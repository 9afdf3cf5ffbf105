"""Blocks that sort: both interpreters, the verifier, the text form, and which points share a sorted row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scalar_interpreter import evaluate_scalar

from kernelyard import dims, dtypes
from kernelyard.errors import ExecutionError, VerifyError
from kernelyard.ir import TensorType, get_op
from kernelyard.tir import PrimFunc, parse_primfunc, print_primfunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import Axis, Expr, index
from kernelyard.tir.interpreter import evaluate
from kernelyard.tir.sorting import position_axis, positions_used, rows_of, work_of
from kernelyard.tir.verify import verify

N = dims.symbol("n")
NAN, INF = float("nan"), float("inf")


def argsort(count: dims.Dim, dtype: str = "float32", *, descending: bool = False, axis: int = 1) -> PrimFunc:
    """The first `count` places of each row of a (3, n) tensor, or of each column of an (n, 3) one."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, N) if axis else (N, 3), dtype))
    reducer = "argsort_descending" if descending else "argsort"
    shape = (3, count) if axis else (count, 3)

    def body(at: tuple[Axis, ...], point: tuple[Axis, ...]) -> Expr:
        return x[at[0], point[0]] if axis else x[point[0], at[1]]

    places = b.reduce(reducer, shape, (N,), body, arg=lambda at, _: at[axis])
    function = b.finish((places,))
    verify(function)
    return function


@pytest.mark.parametrize(("descending", "expected"), [(False, [3, 1, 2, 5, 0, 4, 6]), (True, [4, 6, 0, 2, 5, 1, 3])])
def test_ties_keep_their_order_and_nan_is_the_greatest(descending, expected):
    row = np.array([INF, -1, -0.0, -INF, NAN, 0.0, NAN], np.float32)
    x = np.stack([row, row, row])
    (found,) = evaluate(argsort(7, descending=descending), [x])
    np.testing.assert_array_equal(found, [expected] * 3)
    (scalar,) = evaluate_scalar(argsort(7, descending=descending), [x.ravel().tolist()], {"n": 7})
    assert scalar == expected * 3


@pytest.mark.parametrize("dtype", dtypes.FLOATS)
def test_nan_of_each_dtype(dtype):
    x = np.array([[NAN, 1, NAN, -1]] * 3).astype(dtypes.to_numpy(dtype))
    assert evaluate(argsort(4, dtype), [x])[0].tolist() == [[3, 1, 0, 2]] * 3
    values, places = get_op("topk").reference(x, k=4, axis=1, largest=True, sorted=True)
    assert places.tolist() == [[0, 2, 1, 3]] * 3
    assert values.astype(np.float64)[0, 2:].tolist() == [1, -1]


@given(st.data())
def test_both_interpreters_agree(data):
    dtype = data.draw(st.sampled_from(dtypes.DTYPES))
    axis, descending = data.draw(st.integers(0, 1)), data.draw(st.booleans())
    size = data.draw(st.integers(0, 9))
    count = data.draw(st.integers(0, size))
    values = data.draw(st.lists(st.sampled_from([0, 1, 2, 100]), min_size=3 * size, max_size=3 * size))
    x = np.array(values, dtypes.to_numpy(dtype)).reshape((3, size) if axis else (size, 3))
    function = argsort(count, dtype, descending=descending, axis=axis)
    (found,) = evaluate(function, [x])
    assert [found.ravel().tolist()] == evaluate_scalar(function, [x.ravel().tolist()], {"n": size})


def test_points_of_the_position_axis_share_a_row():
    (block,) = argsort(2, axis=0).blocks
    assert position_axis(block) == block.spatial_axes[0]
    assert rows_of(block) == block.spatial_axes[1:]
    assert (positions_used(block), work_of(block)) == (2, 3 * N)


def test_a_fixed_position_gives_each_point_a_row():
    (block,) = argsort(1).blocks
    block = replace(block, arg=index(4))
    assert position_axis(block) is None
    assert rows_of(block) == block.spatial_axes
    assert positions_used(block) == 5
    assert positions_used(replace(block, arg=Axis("i0") + 1)) == N


def test_the_body_may_use_the_position():
    """Each point then sorts a row of its own."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((4, 4), "int32"))
    places = b.reduce("argsort", (4,), (4,), lambda at, p: x[at[0], p[0]], arg=lambda at, _: at[0])
    function = b.finish((places,))
    data = np.array([[3, 1, 2, 0]] * 4, np.int32)
    (found,) = evaluate(function, [data])
    assert position_axis(function.blocks[0]) is None
    assert found.tolist() == [3, 1, 2, 0]
    assert [found.tolist()] == evaluate_scalar(function, [data.ravel().tolist()], {})


def test_text_form():
    function = argsort(2, descending=True)
    assert "reducer argsort_descending" in print_primfunc(function)
    assert parse_primfunc(print_primfunc(function)) == function


@pytest.mark.parametrize("run", [evaluate, lambda f, x: evaluate_scalar(f, [x[0].ravel().tolist()], {"n": 2})])
def test_a_position_beyond_the_row_is_refused(run):
    with pytest.raises(ExecutionError, match="a position is outside the sorted row"):
        run(argsort(3), [np.ones((3, 2), np.float32)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arg": None}, "argsort takes arg and no init"),
        ({"arg": Axis("k0")}, "a reduce axis is used outside the body"),
        ({"reduce": 2}, "argsort needs one reduce axis"),
    ],
)
def test_faults(change, message):
    function = argsort(2)
    (block,) = function.blocks
    if change.pop("reduce", None):
        change["axes"] = (*block.axes, replace(block.reduce_axes[0], name="k1"))
    with pytest.raises(VerifyError, match=message):
        verify(function.with_blocks((replace(block, **change),)))
