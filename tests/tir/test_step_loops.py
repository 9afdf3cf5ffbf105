"""Loops over steps: blocks that share a step axis are run in order for each of its values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scalar_interpreter import evaluate_scalar

from kernelyard import dims
from kernelyard.errors import VerifyError
from kernelyard.ir import TensorType
from kernelyard.tir import PrimFunc, parse_primfunc, print_primfunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.common_loops import with_common_axes
from kernelyard.tir.expr import index
from kernelyard.tir.inline import inline_locals
from kernelyard.tir.interpreter import evaluate
from kernelyard.tir.op_pattern import OPAQUE, classify
from kernelyard.tir.stages import make_stages
from kernelyard.tir.verify import verify

N = dims.symbol("n")


def powers(steps: dims.Dim, reverse: bool = False) -> PrimFunc:
    """x, x W, x W^2, ...: a row for each step, from the last one on in reverse; and the last of them times W."""
    b = PrimFuncBuilder()
    x, w = b.input("x", TensorType((3,), "float32")), b.input("w", TensorType((3, 3), "float32"))
    state = b.compute((3,), lambda i: x[i], "state")
    rows = b.buffer((steps, 3), "float32", "rows")
    with b.steps(steps) as step:
        row = index(steps) - 1 - step if reverse else step
        b.store(rows, (3,), lambda i: (row, i), lambda i: state[i])
        product = b.reduce("sum", (3,), (3,), lambda at, p: state[p[0]] * w[p[0], at[0]], name="product")
        b.store(state, (3,), lambda i: (i,), lambda i: product[i])
    return b.finish((rows, state))


def expected(x: np.ndarray, w: np.ndarray, steps: int, reverse: bool) -> list[np.ndarray]:
    rows = [x]
    for _ in range(steps):
        rows.append(rows[-1] @ w)
    track = np.array(rows[:steps][::-1] if reverse else rows[:steps], np.float32).reshape(steps, 3)
    return [track, rows[-1]]


@given(steps=st.integers(0, 5), reverse=st.booleans(), is_open=st.booleans())
def test_each_step_reads_what_the_one_before_wrote(steps: int, reverse: bool, is_open: bool):
    function = powers(N if is_open else steps, reverse)
    verify(function)
    rng = np.random.default_rng(steps)
    x, w = rng.standard_normal(3, np.float32), rng.standard_normal((3, 3), np.float32)
    values = {"n": steps}
    wanted = expected(x, w, steps, reverse)
    scalars = evaluate_scalar(function, [x.tolist(), w.ravel().tolist()], values)
    for found, plain, result in zip(evaluate(function, [x, w], values), scalars, wanted, strict=True):
        np.testing.assert_allclose(found, result, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.reshape(plain, result.shape), result, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [4, N])
def test_text_has_the_step_axis(steps: dims.Dim):
    function = powers(steps)
    text = print_primfunc(function)
    assert "block product(step step: " in text
    assert parse_primfunc(text) == function


def test_stages_end_where_a_loop_does():
    function = powers(4)
    stages = make_stages(map(with_common_axes, function.blocks), function.locals, moves=True)
    assert [stage.step is not None for stage in stages] == [False, *[True] * (len(stages) - 1)]


def test_a_recurrence_is_neither_fused_nor_inlined():
    function = powers(4)
    assert classify(function) == OPAQUE
    assert inline_locals(function) == function


def test_a_block_has_one_step_axis_at_most():
    text = """input x: Tensor[(4,), float32]
output out: Tensor[(4,), float32]
block out(step a: 2, step b: 2, i: 4) {
  out[i] = x[i]
}
"""
    with pytest.raises(VerifyError, match="several step axes"):
        verify(parse_primfunc(text))
