"""Kernels with several results: one launch, and the numbers of the reference on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from random import getrandbits
from typing import Any

import numpy as np
import pytest
from fused_graphs import fused_graphs
from graph_builder import FusedGraph
from hypothesis import HealthCheck, Phase, given, seed, settings

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import evaluate
from kernelyard_native_cuda.runtime import NativeCudaModule

TARGET = ky.Target("cuda")
N = dims.symbol("n")


def functions_of_one(b: FunctionBuilder) -> tuple[Any, ...]:
    x = b.input("x", (N, 40))
    return b.op("cos", x), b.op("sin", x)


def value_and_its_function(b: FunctionBuilder) -> tuple[Any, ...]:
    y = b.op("add", b.input("x", (N, 40)), np.linspace(-1, 1, 40, dtype=np.float32))
    return b.op("tanh", y), y


def transposed_alike(b: FunctionBuilder) -> tuple[Any, ...]:
    return tuple(b.op("permute_dims", b.input(name, (4, N, 40)), axes=(0, 2, 1)) for name in "kv")


def mean_and_variance(b: FunctionBuilder) -> tuple[Any, ...]:
    x = b.input("x", (N, 40))
    mean = b.op("mean", x, axes=(1,), keepdims=True)
    return mean, b.op("mean", b.op("square", b.op("subtract", x, mean)), axes=(1,))


def sum_and_its_softmax(b: FunctionBuilder) -> tuple[Any, ...]:
    y = b.op("add", b.input("x", (N, 40)), b.input("residual", (N, 40)))
    return y, b.op("nn.softmax", y, axis=1)


@pytest.mark.parametrize(
    "build", [functions_of_one, value_and_its_function, transposed_alike, mean_and_variance, sum_and_its_softmax]
)
def test_several_results_of_one_launch(emulator, build: Callable[[FunctionBuilder], tuple[Any, ...]]):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(*build(b))})
    exe = ky.compile(module, target=TARGET, backends=[], strict=True)
    (step,) = exe.programs["main"].steps
    assert len(step.outputs) == 2
    (kernels,) = exe.modules
    assert isinstance(kernels, NativeCudaModule)
    assert len(kernels.function(step.symbol).launches) == 1
    vm = ky.VirtualMachine(exe, ky.cuda("emulator"))
    rng = np.random.default_rng(0)
    for rows in (1, 33):
        feeds = [rng.standard_normal(spec.evaluate({"n": rows})).astype(np.float32) for spec in exe.main.inputs]
        for found, wanted in zip(vm["main"](*feeds), evaluate(module, feeds), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_random_graphs(emulator, campaign):
    @seed(getrandbits(64) if campaign is not None else 7)
    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(fused_graphs(max_ops=8))
    def check(graph: FusedGraph) -> None:
        vm = ky.VirtualMachine(ky.compile(graph.module, target=TARGET, backends=[], strict=True), ky.cuda("emulator"))
        for number, case in enumerate(graph.cases):
            found = vm["main"](*case.inputs)
            graph.check(number, [np.asarray(result) for result in (found if isinstance(found, tuple) else (found,))])

    check()
