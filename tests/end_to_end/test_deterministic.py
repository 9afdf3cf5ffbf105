"""`Target("cpu", deterministic=True)`: the same bits in every run, with any number of threads and callers."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from small_models import convolution, feeds_of, perceptron

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime import load
from kernelyard.runtime.abi import threads
from kernelyard.runtime.export.tables import write_tables
from kernelyard.testing import assert_offloaded

BACKENDS = pytest.mark.parametrize("backends", [[], ["dnnl"]], ids=["native-cpu", "dnnl"])
TARGET = ky.Target("cpu", deterministic=True)
THREADS = (1, 2, 3, 4)


@pytest.fixture(autouse=True)
def _four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has no more threads than there are processors: here there are enough for all."""
    monkeypatch.setattr(threads, "processors", lambda: max(THREADS))


def long_sums() -> IRModule:
    """A product and a sum over an axis so long that threads could share it."""
    b = FunctionBuilder()
    weight = np.random.default_rng(0).standard_normal((50_000, 8), dtype=np.float32)
    product = b.op("matmul", b.input("x", (3, 50_000)), weight)
    return IRModule({"main": b.function(b.op("nn.softmax", product, axis=1))})


def test_a_target_says_it() -> None:
    assert str(TARGET) == "cpu deterministic=True"
    assert str(ky.Target("cpu")) == "cpu"
    assert str(ky.Target("cpu", mcpu="x86-64-v3", deterministic=True)) == "cpu mcpu=x86-64-v3 deterministic=True"


@BACKENDS
def test_bits_do_not_depend_on_threads_callers_or_where_feeds_lie(backends: list[str]) -> None:
    x = np.random.default_rng(1).standard_normal((3, 50_000), dtype=np.float32)
    anywhere = np.empty(x.size + 1, np.float32)[1:].reshape(x.shape)
    anywhere[...] = x
    cases = [
        (long_sums(), [{"x": x}, {"x": anywhere}]),
        (perceptron("n"), [feeds_of(perceptron("n"), 40)] * 2),
        (convolution(), [feeds_of(convolution())] * 2),
    ]
    for model, all_feeds in cases:
        exe = ky.compile(model, target=TARGET, backends=backends)
        if backends:
            assert_offloaded(exe, "dnnl")
        found = set()
        for count in THREADS:
            exe.threads = count
            for feeds in all_feeds:
                with ThreadPoolExecutor(3) as pool:
                    runs = list(pool.map(lambda _: exe.run(feeds), range(3)))  # noqa: B023  done before feeds change
                found |= {b"".join(tensor.numpy().tobytes() for tensor in run.values()) for run in runs}
        assert len(found) == 1


@BACKENDS
def test_modules_without_the_promise_get_one_thread(
    backends: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is saved with the artifact, and a target without it leaves the threads alone."""
    for target, expected in ((TARGET, 1 if backends else 3), (ky.Target("cpu"), 3)):
        compiled = ky.compile(perceptron(), target=target, backends=backends)
        compiled.save(tmp_path / "m.kyar")
        exe = load(tmp_path / "m.kyar", threads=3)
        assert exe.is_deterministic == compiled.is_deterministic == target.deterministic
        (module,) = exe.modules
        given: list[int] = []
        bind, native_kernel = module.bind, module.native_kernel

        def noted(symbol, args, values, context, bind=bind, given=given):
            given.append(context.threads)
            return bind(symbol, args, values, context)

        def noted_kernel(symbol, native_kernel=native_kernel, given=given):
            kernel = native_kernel(symbol)
            if kernel is None:
                return None

            def evaluate(values, threads):
                given.append(threads)
                return kernel.evaluate(values, threads)

            return kernel._replace(evaluate=evaluate)

        monkeypatch.setattr(module, "bind", noted)
        monkeypatch.setattr(module, "native_kernel", noted_kernel)
        exe.run(feeds_of(perceptron()))
        assert set(given) == {expected}


def test_exported_libraries_keep_the_promise(tmp_path: Path) -> None:
    """In the tables that C programs run: oneDNN's kernels are prepared, bound and run with one thread."""
    for target, expected in ((TARGET, "1"), (ky.Target("cpu"), "0")):
        exe = ky.compile(perceptron(), target=target, backends=["dnnl"], options={"dnnl": {"codegen": "c"}})
        exe.save(tmp_path / "m.kyar")
        (unit,) = [unit for module in exe.modules if (unit := module.native_unit()) is not None]
        tables = write_tables(exe, {0: unit}, tmp_path / "m.kyar", {})
        (kernel,) = re.findall(r"\{[^{}]*_release, (\d), ", tables)
        assert kernel == expected
