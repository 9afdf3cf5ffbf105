"""Kernels with several results: one loop nest for maps, one loop over rows for reductions; the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import Expr, FunctionBuilder, IRModule
from kernelyard.testing.reference import evaluate
from kernelyard.tir import PrimFunc
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_native_cpu.schedule.groups import Group, make_groups

N = dims.symbol("n")
Build = Callable[[FunctionBuilder], tuple[Expr, ...]]


def functions_of_one(b: FunctionBuilder) -> tuple[Expr, ...]:
    x = b.input("x", (N, 40))
    return b.op("cos", x), b.op("sin", x), b.op("greater", x, 0.0)


def value_and_its_function(b: FunctionBuilder) -> tuple[Expr, ...]:
    y = b.op("add", b.input("x", (N, 40)), np.linspace(-1, 1, 40, dtype=np.float32))
    return b.op("tanh", y), y


def transposed_alike(b: FunctionBuilder) -> tuple[Expr, ...]:
    return tuple(b.op("permute_dims", b.input(name, (4, N, 40)), axes=(0, 2, 1)) for name in "kv")


def parts(b: FunctionBuilder) -> tuple[Expr, ...]:
    split = b.op("split", b.input("x", (N, 21)), axis=1, sections=(7, 7, 7))
    return b.get(split, 0), b.get(split, 1), b.op("negative", b.get(split, 2))


def mean_and_variance(b: FunctionBuilder) -> tuple[Expr, ...]:
    x = b.input("x", (N, 40))
    mean = b.op("mean", x, axes=(1,), keepdims=True)
    return mean, b.op("mean", b.op("square", b.op("subtract", x, mean)), axes=(1,))


def sum_and_its_norm(b: FunctionBuilder) -> tuple[Expr, ...]:
    y = b.op("add", b.input("x", (N, 40)), b.input("residual", (N, 40)))
    return y, b.op("nn.softmax", y, axis=1)


MAPS: list[Build] = [functions_of_one, value_and_its_function, transposed_alike, parts]
ROWS: list[Build] = [mean_and_variance, sum_and_its_norm]


def module_of(build: Build) -> IRModule:
    b = FunctionBuilder()
    return IRModule({"main": b.function(*build(b))})


def groups_of(build: Build) -> tuple[Group, ...]:
    (function,) = (f for f in get_pipeline("legalize")(module_of(build)).functions.values() if isinstance(f, PrimFunc))
    assert function.num_outputs > 1
    return make_groups(function)


@pytest.mark.parametrize("build", MAPS)
def test_maps_are_one_loop_nest(build: Build):
    (group,) = groups_of(build)
    assert len(group.stages) == 1


@pytest.mark.parametrize("build", ROWS)
def test_reductions_are_one_loop_over_rows(build: Build):
    (group,) = groups_of(build)
    assert group.rows == N


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("build", [*MAPS, *ROWS])
def test_results(build: Build, mcpu: str | None):
    module = module_of(build)
    exe = ky.compile(module, target=ky.Target("cpu", mcpu=mcpu), backends=[], strict=True)
    (step,) = exe.programs["main"].steps
    assert len(step.outputs) == len(module.graph_functions()["main"].result_type.fields)  # pyright: ignore[reportAttributeAccessIssue]
    rng = np.random.default_rng(0)
    for rows in (1, 3, 16, 33):
        feeds = [rng.standard_normal(spec.evaluate({"n": rows})).astype(np.float32) for spec in exe.main.inputs]
        results = exe(*feeds)
        assert isinstance(results, tuple)
        for found, wanted in zip(results, evaluate(module, feeds), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_they_are_shown_as_one_kernel():
    exe = ky.compile(module_of(functions_of_one), backends=[])
    assert [kernel.ops for kernel in exe.report.kernels] == [("cos", "sin", "greater")]
