"""Rows that do not fit in registers, or begin anywhere in memory: 16 bytes at a time, right, without races."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelyard import dtypes
from kernelyard.ir import TensorType
from kernelyard.tir.interpreter import evaluate
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE
from kernelyard_native_cuda.schedule.rules import schedule

from .conftest import assert_close, generate, run_on
from .test_register_rows import OPS, rows_of
from .test_register_rows import racing as racing
from .test_rules import N, fused, lower, random


def text_of(function: Any) -> str:
    return "\n".join(kernel.text for kernel in schedule(function, "f", ANY_MACHINE).kernels)


@pytest.mark.parametrize(
    ("size", "dtype"), [(1001, "float16"), (1031, "bfloat16"), (2051, "float32"), (33000, "float16")]
)
@pytest.mark.parametrize("op", OPS)
def test_rows_that_begin_anywhere(racing, op, size, dtype):
    """Each stage reads 16 bytes at a time, and nothing is written but the result."""
    function = rows_of(op, size, dtype)
    text = text_of(function)
    lanes = 16 // dtypes.itemsize(dtype)
    assert text.count("in_rounds<") >= 2
    assert text.count(f"put_pack<{lanes}, ") == 1
    assert text.count("GLOBAL(") - text.count("GLOBAL(const ") == 1
    rows = 3 if size < 10000 else 1
    shapes = [(rows, size), *[(size,)] * (len(function.inputs) - 1)]
    inputs = [random(*shape).astype(dtypes.to_numpy(dtype)) for shape in shapes]
    (found,) = run_on(racing, generate({"f": function}), "f", inputs, {"n": rows})
    assert_close(found, evaluate(function, inputs, {"n": rows})[0], dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_of_any_length(racing, dtype):
    function = lower("nn.softmax", TensorType((3, N), dtype), axis=1)
    module = generate({"f": function})
    for size in (1, 7, 8, 515, 1032):
        x = random(3, size).astype(dtype)
        (found,) = run_on(racing, module, "f", [x], {"n": size})
        assert_close(found, evaluate(function, [x], {"n": size})[0], dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("op", ["sum", "max", "argmax", "argmin"])
def test_reductions_of_rows_that_begin_anywhere(racing, op, dtype):
    axes = {"axis": 1} if op.startswith("arg") else {"axes": (1,)}
    function = lower(op, TensorType((N, 1003), dtype), **axes)
    assert "in_rounds<" in text_of(function)
    x = (random(3, 1003) * 40).astype(dtype)
    x[1, 500:] = x[1].max()  # several extremes: the first of them
    (found,) = run_on(racing, generate({"f": function}), "f", [x], {"n": 3})
    wanted = evaluate(function, [x], {"n": 3})[0]
    assert_close(found, wanted, "float16" if dtype == "float16" else "float32")
    assert op in ("sum", "max") or (found == wanted).all()


def test_rows_gathered_by_different_ids_begin_at_different_places(racing):
    def build(b: Any) -> Any:
        table, ids, others = (
            b.input("table", (5, 1001)),
            b.input("ids", (3,), "int64"),
            b.input("others", (3,), "int64"),
        )
        rows = (b.op("take", table, each, axis=0) for each in (ids, others))
        return b.op("nn.softmax", b.op("add", *rows), axis=1)

    function = fused(build)
    inputs = [random(5, 1001), np.int64([0, 3, 4]), np.int64([1, 1, 2])]
    (found,) = run_on(racing, generate({"f": function}), "f", inputs)
    assert_close(found, evaluate(function, inputs)[0], "float32")
