"""The two interpreters of loop-level code, held to each other: NumPy over whole arrays, and Python element by element."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401  (NumPy then knows the narrow floats)
import numpy as np
import pytest
import scalar_interpreter
from hypothesis import given
from hypothesis import strategies as st
from scalar_interpreter import evaluate_scalar
from scalar_rounding import rounded_to

import kernelyard.ops  # noqa: F401  (declares the vocabulary)
from kernelyard import dims, dtypes, legalize
from kernelyard.errors import ExecutionError
from kernelyard.ir import Op, Sample, TensorType, all_ops
from kernelyard.tir import PrimFunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import select
from kernelyard.tir.interpreter import evaluate

MOST_POINTS = 4000  # of a function's blocks together: a loop in Python is slow
TOLERANCES = {
    "float64": 1e-12,
    "float32": 2e-6,
    "float16": 2e-3,
    "bfloat16": 2e-2,
    "float8_e4m3fn": 0.13,
    "float8_e5m2": 0.26,
}
CASES = {
    f"{op.name}-{n}": (op, sample)
    for op in all_ops()
    if legalize.has_rule(op.name)
    for n, sample in enumerate(op.samples())
}


def lower(op: Op, sample: Sample) -> PrimFunc:
    types = [TensorType(np.shape(a), dtypes.from_numpy(np.asarray(a).dtype)) for a in sample.inputs]
    attrs = op.check_attributes(sample.attributes)
    return legalize.legalize_call(op.name, types, attrs, op.infer_type(types, attrs))


def points(function: PrimFunc) -> int:
    return sum(dims.evaluate(dims.product(axis.extent for axis in block.axes), {}) for block in function.blocks)


SMALL = [name for name, case in CASES.items() if points(lower(*case)) <= MOST_POINTS]


def test_most_samples_are_small_enough():
    assert len(SMALL) > 0.9 * len(CASES)
    left_out = {op.name for op, _ in CASES.values()} - {CASES[name][0].name for name in SMALL}
    assert left_out <= {"nn.conv3d", "nn.conv3d_transpose"}


@pytest.mark.parametrize("name", SMALL)
def test_both_interpreters_agree(name: str):
    op, sample = CASES[name]
    function = lower(op, sample)
    arrays = [np.asarray(array) for array in sample.inputs]
    found = evaluate_scalar(function, [array.ravel().tolist() for array in arrays], {})
    for elements, wanted, buffer in zip(found, evaluate(function, arrays), function.outputs, strict=True):
        actual = np.array(elements, np.float64 if buffer.dtype in TOLERANCES else wanted.dtype)
        tolerance = TOLERANCES.get(buffer.dtype, 0)
        np.testing.assert_allclose(actual, wanted.ravel().astype(actual.dtype), rtol=tolerance, atol=tolerance)


def test_it_runs_without_numpy():
    """Its own file imports none, and computes nothing with it: with arithmetic of NumPy broken it gives the same."""
    program = """
import kernelyard.tir, numpy as np
from kernelyard.ir import TensorType
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import unary
from scalar_interpreter import evaluate_scalar
def broken(*a, **k): raise RuntimeError("NumPy was used")
b = PrimFuncBuilder()
x = b.input("x", TensorType((2, 2), "float32"))
best = b.reduce("max", (2,), (2,), lambda at, p: unary("exp", x[at[0], p[0]]))
function = b.finish((best,))
for name, value in list(vars(np).items()):
    if isinstance(value, np.ufunc) or name in ("array", "asarray", "empty", "iinfo"):
        setattr(np, name, broken)
print(evaluate_scalar(function, [[0.0, -1.0, -1.0, 0.0]], {}))
"""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(Path(scalar_interpreter.__file__).parent)}
    assert subprocess.run(command, check=True, capture_output=True, env=environment).stdout == b"[[1.0, 1.0]]\n"


@pytest.mark.parametrize("dtype", dtypes.FLOATS)
@given(value=st.one_of(st.floats(), st.floats(-70000, 70000), st.floats(-1e-4, 1e-4)))
def test_floats_are_rounded_as_their_dtype_is(dtype: str, value: float):
    with np.errstate(all="ignore"):
        wanted = float(np.float64(value).astype(dtypes.to_numpy(dtype)))
    found = rounded_to(value, dtype)
    assert found == wanted or (math.isnan(found) and math.isnan(wanted))


@pytest.mark.parametrize("dtype", [*dtypes.SIGNED, *dtypes.UNSIGNED])
@given(value=st.integers(-(2**70), 2**70))
def test_integers_wrap(dtype: str, value: int):
    info = np.iinfo(dtypes.to_numpy(dtype))
    assert dtypes.integer_range(dtype) == (info.min, info.max)
    assert (rounded_to(value, dtype) - value) % 2**info.bits == 0
    assert info.min <= rounded_to(value, dtype) <= info.max


def test_faults_are_found():
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3,), "float32"))
    outside = b.finish((b.compute((3,), lambda i: x[i + 1]),))
    with pytest.raises(ExecutionError, match="outside buffer 'x'"):
        evaluate_scalar(outside, [[1.0, 2.0, 3.0]], {})
    b = PrimFuncBuilder()
    target = b.buffer((3,), "float32")
    b.store(target, (2,), lambda i: (i,), lambda i: select(i < 1, target[i + 1], 0.0))
    with pytest.raises(ExecutionError, match="an uninitialized element"):
        evaluate_scalar(b.finish((target,)), [], {})
