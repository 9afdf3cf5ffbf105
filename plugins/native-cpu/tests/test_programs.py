"""Whole programs on native-cpu alone: compiled, saved, loaded and run, against the operators' references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing.reference import evaluate
from kernelyard.testing.strategies import RandomProgram, modules

# Derandomised: a random chain may well put `floor` on the edge of an integer, where one rounding decides.
SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def network(symbolic: bool) -> tuple[IRModule, list[np.ndarray]]:
    """Convolution, depthwise convolution, pooling, attention-like products and a softmax."""
    rng = np.random.default_rng(5)
    size = dims.symbol("size") if symbolic else 20
    b = FunctionBuilder()
    x = b.input("image", (1, 3, size, size))
    weight = lambda *shape: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)  # noqa: E731
    y = b.op("nn.conv2d", x, weight(16, 3, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1), dilation=(1, 1), groups=1)
    y = b.op("nn.hard_swish", b.op("add", y, weight(1, 16, 1, 1)))
    z = b.op("nn.conv2d", y, weight(16, 1, 5, 5), strides=(1, 1), padding=(2, 2, 2, 2), dilation=(1, 1), groups=16)
    z = b.op("add", b.op("nn.gelu", z), y)
    pooled = b.op("mean", z, axes=(2, 3))
    scores = b.op("nn.softmax", b.op("matmul", pooled, weight(16, 10)), axis=1)
    up = b.op("nn.conv2d_transpose", z, weight(16, 2, 2, 2), strides=(2, 2), padding=(0, 0, 0, 0), dilation=(1, 1),
              groups=1, output_padding=(0, 0))  # fmt: skip
    return IRModule({"main": b.function(scores, b.op("sigmoid", up))}), [rng.random((1, 3, 20, 20), np.float32)]


def assert_close(found: object, wanted: list[np.ndarray]) -> None:
    results = found if isinstance(found, tuple) else (found,)
    for actual, expected in zip(results, wanted, strict=True):
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("mcpu", [None, "x86-64-v3"])
def test_a_network_runs_without_any_library(symbolic, mcpu, tmp_path):
    module, inputs = network(symbolic)
    exe = ky.compile(module, target=ky.Target("cpu", mcpu=mcpu), backends=[])
    assert exe.report.coverage["native-cpu"]["flops_fraction"] == 1.0
    wanted = evaluate(module, inputs)
    assert_close(exe(*inputs), wanted)
    exe.save(tmp_path / "network.kyar")
    assert_close(ky.load(tmp_path / "network.kyar")(*inputs), wanted)


def test_compiling_twice_gives_the_same_file(tmp_path):
    module, _ = network(symbolic=True)
    for name in ("one", "other"):
        ky.compile(module, backends=[]).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@SETTINGS
@given(modules())
def test_random_programs(program: RandomProgram):
    found = ky.compile(program.module, backends=[])(*program.inputs)
    assert_close(found, evaluate(program.module, program.inputs))


@SETTINGS
@given(modules(symbolic=True))
def test_random_programs_of_symbolic_sizes(program: RandomProgram):
    found = ky.compile(program.module, backends=[])(*program.inputs)
    assert_close(found, evaluate(program.module, program.inputs))
