"""Attention over pages: keys are packed page by page for many queries, and read as they lie for few."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops  # declares the operators
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ops.interpreter import run
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_native_cpu.machine import Machine, features_of_level
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.rules import make_plan

RNG = np.random.default_rng(11)
HEADS, SHARED, SIZE, PAGE = 4, 2, 32, 64
BATCH, ROWS, PAGES, COLUMNS = map(dims.symbol, ("batch", "n", "pages", "columns"))


def attention(dtype: str = "float32", window: int | None = None) -> IRModule:
    b = FunctionBuilder()
    new = [b.input(name, (BATCH, ROWS, heads, SIZE)) for name, heads in (("q", HEADS), ("k", SHARED), ("v", SHARED))]
    pages = [b.input(name, (SHARED, PAGES, PAGE, SIZE), dtype) for name in ("key_pages", "value_pages")]
    where = b.input("tables", (BATCH, COLUMNS), "int32"), b.input("lengths", (BATCH,), "int64")
    scales = [b.input(f"{name}_scales", (SHARED, PAGES, PAGE)) for name in ("key", "value") if dtype == "int8"]
    return IRModule({"main": b.function(b.op("nn.attention_paged", *new, *pages, *where, *scales, window=window))})


def feeds(rows: int, dtype: str) -> list[np.ndarray]:
    new = [RNG.standard_normal((2, rows, heads, SIZE)).astype(np.float32) for heads in (HEADS, SHARED, SHARED)]
    pages = [RNG.standard_normal((SHARED, 6, PAGE, SIZE)) for _ in range(2)]
    pages = [np.round(30 * part).clip(-127, 127) if dtype == "int8" else part for part in pages]
    scales = [RNG.uniform(0.02, 0.04, (SHARED, 6, PAGE)).astype(np.float32) for _ in range(2) if dtype == "int8"]
    where = np.array([[4, 1, 3], [2, 4, 0]], np.int32), np.array([150, 70])
    return [*new, *(part.astype(dtype) for part in pages), *where, *scales]


@pytest.mark.parametrize("level", ["x86-64-v4", "x86-64-v3"])
def test_keys_are_packed_for_many_queries_only(level: str) -> None:
    module = get_pipeline("legalize")(attention())
    function = next(f for f in module.functions.values() if isinstance(f, PrimFunc))
    product = make_groups(function)[0].stages[0]
    plan = make_plan(product, frozenset(), {}, Machine("x86_64", features_of_level(level)))
    assert plan.panel is not None
    assert plan.panel.is_transposed
    assert plan.vector is not None
    assert plan.extents[plan.vector] == PAGE
    assert plan.extents[str(plan.measured)] == ROWS
    assert plan.least() == dict(plan.tiles)[str(plan.measured)] > 1
    assert [(few.panel, few.vector_is_reduced) for few in plan.for_fewer_rows] == [(None, True)]


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_any_number_of_queries_is_right(dtype: str, mcpu: str | None) -> None:
    module = attention(dtype, window=90)
    exe = ky.compile(module, backends=[], strict=True, target=Target("cpu", mcpu=mcpu))
    for rows in (1, 5, 6, 7, 32):
        arrays = feeds(rows, dtype)
        np.testing.assert_allclose(exe(*arrays), run(module, arrays)[0], rtol=1e-4, atol=1e-5)
