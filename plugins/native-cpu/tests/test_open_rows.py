"""Sums of products over rows of which the number is open: versions for few rows, and all of them right."""

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
from kernelyard.transform.layout.pack_constants import PackConstants
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_native_cpu.machine import Machine, features_of_level
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.packing import choose_packings
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules import make_plan

RNG = np.random.default_rng(8)
N = dims.symbol("n")
COUNTS = (1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 29)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def dense(columns: int = 64, *, outer: bool = False) -> tuple[IRModule, tuple[int | dims.Dim, ...]]:
    """outer: each row is a matrix of its own, as where sequences lie before the batch, which has one."""
    b = FunctionBuilder()
    shape = (N, 1, 96) if outer else (N, 96)
    product = b.op("matmul", b.input("x", shape), normal(96, columns) / 8)
    return IRModule({"main": b.function(b.op("nn.relu", b.op("add", product, normal(columns))))}), shape


def dot_products() -> tuple[IRModule, tuple[int | dims.Dim, ...]]:
    """Rows that overlap by rows of a matrix whose length no vector divides."""
    b = FunctionBuilder()
    x = b.input("x", (1, 1, N * 32 + 32))
    return IRModule({"main": b.function(b.op("nn.conv1d", x, normal(34, 1, 64) / 8, strides=(32,)))}), (
        1,
        1,
        N * 32 + 32,
    )


def convolution() -> tuple[IRModule, tuple[int | dims.Dim, ...]]:
    b = FunctionBuilder()
    y = b.op("nn.conv1d", b.input("x", (1, 24, N)), normal(64, 24, 3) / 8, strides=(1,), padding=(1, 1))
    return IRModule({"main": b.function(b.op("nn.relu", y))}), (1, 24, N)


def filter_bank() -> tuple[IRModule, tuple[int | dims.Dim, ...]]:
    """Windows of a signal that end behind it: one row of the result for each filter."""
    b = FunctionBuilder()
    shape = (1, 1, 1, N * 97 + 2)
    y = b.op("nn.conv2d", b.input("x", shape), normal(128, 1, 1, 99) / 8, strides=(1, 97), padding=(0, 4, 0, 93))
    return IRModule({"main": b.function(b.op("nn.relu", y))}), shape


def plan_of(module: IRModule, level: str, is_packed: bool = False) -> Plan:
    """The plan of the sum of products."""
    machine = Machine("x86_64", features_of_level(level))
    module = get_pipeline("legalize")(module)
    if is_packed:
        module = PackConstants(lambda function, inputs: choose_packings(function, inputs, machine))(module)
    function = next(f for f in module.functions.values() if isinstance(f, PrimFunc))
    stages = [stage for group in make_groups(function) for stage in group.stages]
    (product,) = (stage for stage in stages if stage.is_contraction)
    return make_plan(product, frozenset(), {}, machine)


@pytest.mark.parametrize("level", ["x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize("outer", [False, True])
def test_there_are_versions_down_to_a_single_row(level: str, outer: bool) -> None:
    plan = plan_of(dense(outer=outer)[0], level)
    heights = [dict(each.tiles) for each in (plan, *plan.for_fewer_rows)]
    assert len(heights) == 3
    (rows,) = heights[0]
    assert heights[0][rows] > heights[1][rows] > heights[2][rows] == 1
    assert plan.least() > plan.for_fewer_rows[0].least() > plan.for_fewer_rows[1].least() == 0
    assert plan.measured == rows


def test_tiles_of_as_many_rows_as_they_have_are_transposed() -> None:
    """What lies along the rows is stored by vectors; fewer rows than the tile has are stored one by one."""
    plan = plan_of(filter_bank()[0], "x86-64-v4", is_packed=True)
    ((rows, height),) = plan.tiles
    assert (plan.transposed_axis, plan.least()) == (rows, height)
    assert [fewer.tile_scratch for fewer in plan.for_fewer_rows] == [None, None]


def test_columns_that_no_vector_divides_are_padded() -> None:
    """201 bins of a spectrum, 64 KiB of weights and more: 13 vectors, which kernels read one after another."""
    plan = plan_of(dense(201)[0], "x86-64-v4", is_packed=True)
    assert plan.panel is None
    assert plan.vector is not None
    assert plan.extents[plan.vector] % plan.lanes == 0


def test_rows_whose_number_is_known_need_none() -> None:
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("matmul", b.input("x", (32, 96)), normal(96, 64)))})
    assert not plan_of(module, "x86-64-v4").for_fewer_rows


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize(
    "make",
    [dense, dot_products, convolution, filter_bank, lambda: dense(50), lambda: dense(201), lambda: dense(outer=True)],
)
def test_any_number_of_rows_is_right(make, mcpu: str | None) -> None:
    module, shape = make()
    exe = ky.compile(module, backends=[], target=Target("cpu", mcpu=mcpu))
    for count in COUNTS:
        x = normal(*(dims.evaluate(dim, {"n": count}) for dim in shape))
        np.testing.assert_allclose(exe(x), run(module, [x])[0], rtol=1e-4, atol=1e-4)
