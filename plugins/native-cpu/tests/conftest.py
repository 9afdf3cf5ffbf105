"""What the tests of native-cpu share: running a PrimFunc as a kernel, beside the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kernelyard.runtime import memory
from kernelyard.runtime.call_table import CallTable
from kernelyard.runtime.module import BindContext, BoundTensor
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.tir.interpreter import evaluate
from kernelyard_native_cpu.generator import NativeCpuGenerator
from kernelyard_native_cpu.runtime import NativeCpuModule

Runner = Callable[..., list[np.ndarray]]


def compile_one(function: PrimFunc, mcpu: str | None = None) -> NativeCpuModule:
    module = NativeCpuGenerator().generate({"kernel": function}, Target("cpu", mcpu=mcpu), {})
    assert isinstance(module, NativeCpuModule)
    return module


def run_module(
    module: NativeCpuModule,
    symbol: str,
    inputs: Sequence[np.ndarray],
    symbols: dict[str, int] | None = None,
    threads: int = 1,
) -> list[np.ndarray]:
    """Bind and run; outputs start as bytes that make their use visible."""
    values = dict(symbols or {})
    signature = module.signature(symbol)
    held = [memory.aligned_copy(np.asarray(array)) for array in inputs]
    outputs = []
    for spec in signature.outputs:
        array = memory.aligned_empty(spec.evaluate(values), spec.dtype)
        array.reshape(-1).view(np.uint8)[...] = 0xC3
        outputs.append(array)
    tensors = [*held, *outputs]
    specs = signature.tensors
    args = [BoundTensor(memory.address_of(a), a.shape, s.dtype) for a, s in zip(tensors, specs, strict=True)]
    workspace = memory.Workspace()
    call = module.bind(symbol, args, values, BindContext(threads, workspace))
    CallTable(call.steps).run()
    return outputs


@pytest.fixture(scope="session")
def call_kernel() -> Runner:
    """`call_kernel(module, symbol, inputs, symbols={}, threads=1)`: what a kernel of a module gives."""
    return run_module


@pytest.fixture(scope="session")
def compile_function() -> Callable[..., NativeCpuModule]:
    """`compile_function(function, mcpu=None)`: a module with the one kernel "kernel"."""
    return compile_one


@pytest.fixture
def run() -> Runner:
    """`run(function, *inputs, symbols={}, threads=1, mcpu=None)`: what the kernel gives."""

    def runner(function: PrimFunc, *inputs: np.ndarray, symbols=None, threads: int = 1, mcpu: str | None = None):
        return run_module(compile_one(function, mcpu), "kernel", inputs, symbols, threads)

    return runner


@pytest.fixture
def check(run: Runner) -> Callable[..., None]:
    """`check(function, *inputs, ...)`: the kernel gives what the interpreter gives."""

    def checker(function: PrimFunc, *inputs: np.ndarray, symbols=None, rtol: float = 1e-5, atol: float = 1e-6, **how):
        found = run(function, *inputs, symbols=symbols, **how)
        wanted = evaluate(function, list(inputs), symbols or {})
        for actual, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(
                actual.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True
            )

    return checker
