"""The plan of a saved module is kept on disk; who starts with it lowers nothing and computes the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.installed.disk_cache import CACHE_LOOKUPS
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard_dnnl import plan_cache
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitives import winograd_kernel
from kernelyard_dnnl.primitives.winograd_choice import vector_lanes
from kernelyard_dnnl.runtime import DnnlRuntime

FOUND, MISSED = (plan_cache.CACHE.name, True), (plan_cache.CACHE.name, False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, whose look-ups are counted from 0."""
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KERNELYARD_CACHE_MB", raising=False)
    CACHE_LOOKUPS.clear()
    return tmp_path / "cache" / plan_cache.CACHE.name


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the graphs that are lowered from now on."""
    seen: list[str] = []
    run = Lowering.run
    monkeypatch.setattr(Lowering, "run", lambda self, *args: seen.append(self.graph.symbol) or run(self, *args))
    return seen


def network(height: dims.Dim = 16) -> IRModule:
    """Blocked weights, post-ops of each kind, views, a concatenation, and a constant that several read."""
    b, random = FunctionBuilder(), np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (0.3 * random.standard_normal(shape)).astype(np.float32)

    def convolve(data: Any, channels: int, out: int, size: int, groups: int = 1, stride: int = 1) -> Any:
        window = {"strides": (stride, stride), "padding": (size // 2,) * 4, "dilation": (1, 1), "groups": groups}
        return b.op("nn.conv2d", data, weights(out, channels // groups, size, size), **window)

    shared = weights(1, 24, 1, 1)
    x = b.input("x", (2, 8, height, 16))
    y = b.op("nn.relu", b.op("add", convolve(x, 8, 24, 3, stride=2), shared))
    y = b.op("nn.relu", b.op("add", convolve(y, 24, 24, 1), y))
    y = b.op("clip", convolve(b.op("multiply", y, shared), 24, 24, 3, groups=24), min=0.0, max=6.0)
    y = b.op("concat", y, convolve(y, 24, 8, 1), axis=1)
    y = b.op("nn.prelu", y, weights(32, 1, 1))
    y = b.op("mean", b.op("nn.softmax", y, axis=1), axes=(2, 3), keepdims=False)
    return IRModule({"main": b.function(b.op("matmul", y, weights(32, 5)))})


def winograd_network() -> IRModule:
    """Convolutions of 3 x 3 windows, one after the other, which Winograd's algorithm is for; one adds to what it read."""
    b, random = FunctionBuilder(), np.random.default_rng(0)
    window = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}

    def convolve(data: Any) -> Any:
        weights = (0.05 * random.standard_normal((64, 64, 3, 3))).astype(np.float32)
        bias = random.standard_normal((1, 64, 1, 1)).astype(np.float32)
        return b.op("add", b.op("nn.conv2d", data, weights, **window), bias)

    y = b.op("nn.relu", convolve(b.input("x", (1, 64, 28, 28))))
    return IRModule({"main": b.function(b.op("nn.relu", b.op("add", convolve(y), y)))})


@pytest.mark.skipif(not vector_lanes(), reason="no vectors that Winograd's kernels are made for")
def test_kernels_of_winograd_are_made_again(tmp_path, monkeypatch, lowered):
    module = winograd_network()
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", at_least=2)
    exe.save(tmp_path / "m.kyar")
    loaded = load(tmp_path / "m.kyar")
    (symbol,) = loaded.graphs
    names = loaded.plan(symbol, {}, 2).implementations
    assert [name for _, name in names].count("winograd:4x4") == 2
    x = np.random.default_rng(1).standard_normal((1, 64, 28, 28), dtype=np.float32)
    first, second = [], []
    for results in (first, second):
        lowered.clear()
        for threads in (1, 2):
            exe = ky.load(tmp_path / "m.kyar")
            exe.threads = threads
            results.append(np.asarray(exe(x)))
    assert not lowered
    assert load(tmp_path / "m.kyar").plan(symbol, {}, 2).implementations == names
    for one, other in zip(first, second, strict=True):
        assert_allclose(one, evaluate(module, [x])[0])
        assert np.array_equal(one, other)
    monkeypatch.setattr(winograd_kernel, "vector_lanes", lambda: 0)
    assert_allclose(ky.load(tmp_path / "m.kyar")(x), evaluate(module, [x])[0])
    assert lowered


def saved(module: IRModule, path: Path) -> Path:
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", at_least=6)
    exe.save(path)
    return path


def feed(height: int = 16) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, 8, height, 16), dtype=np.float32)


def test_a_module_that_starts_again_lowers_nothing(tmp_path, lowered):
    module = network()
    path, x = saved(module, tmp_path / "m.kyar"), feed()
    lowered.clear()
    first = np.asarray(ky.load(path)(x))
    count = len(lowered)
    assert count
    assert CACHE_LOOKUPS[MISSED] == count
    exe = ky.load(path)
    second = np.asarray(exe(x))
    assert len(lowered) == count
    assert CACHE_LOOKUPS[FOUND] == count
    assert_allclose(first, evaluate(module, [x])[0])
    assert np.array_equal(first, second)
    assert [step.parts for step in exe.profile([x]).steps] == [step.parts for step in ky.load(path).profile([x]).steps]


RUN = """
import sys
import numpy as np
import kernelyard as ky
exe = ky.load(sys.argv[1])
result = exe(np.ones((2, 8, 16, 16), np.float32)).numpy()
print(result.tobytes().hex(), *(name for name in sys.modules if name.startswith("kernelyard_dnnl.")))
"""


def test_a_process_that_starts_again_imports_no_lowering(tmp_path):
    path = saved(network(), tmp_path / "m.kyar")
    command = [sys.executable, "-c", RUN, str(path)]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in "12")
    assert first[0] == second[0]
    assert "kernelyard_dnnl.lowering" in first
    assert not {"kernelyard_dnnl.lowering", "kernelyard_dnnl.speculation", "kernelyard_dnnl.primitives"} & set(second)


def test_symbolic_sizes_begin_with_their_plan_and_go_on_without(tmp_path, lowered):
    module = network(dims.symbol("h"))
    path = saved(module, tmp_path / "m.kyar")
    ky.load(path)(feed(20))
    lowered.clear()
    exe = ky.load(path)
    assert_allclose(exe(feed(20)), evaluate(module, [feed(20)])[0])
    assert not lowered
    for height in (9, 20, 33):
        assert_allclose(exe(feed(height)), evaluate(module, [feed(height)])[0])
    assert lowered
    assert CACHE_LOOKUPS[FOUND] == CACHE_LOOKUPS[MISSED]


def test_plans_belong_to_sizes_threads_and_code(tmp_path, monkeypatch, lowered):
    path = saved(network(dims.symbol("h")), tmp_path / "m.kyar")

    def is_found(height: int, threads: int) -> bool:
        lowered.clear()
        exe = ky.load(path)
        exe.threads = threads
        exe(feed(height))
        return not lowered

    assert [is_found(*each) for each in ((20, 1), (20, 1), (21, 1), (20, 1))] == [False, True, False, True]
    monkeypatch.setattr(plan_cache, "_maker", lambda: "other code")
    assert [is_found(20, 1), is_found(20, 1)] == [False, True]
    monkeypatch.setattr(plan_cache, "_maker", lambda: None)
    assert [is_found(20, 1), is_found(20, 1)] == [False, False]


def test_the_number_of_threads_has_a_plan_of_its_own(tmp_path, lowered):
    path = saved(network(), tmp_path / "m.kyar")
    symbol = next(iter(load(path).graphs))
    lowered.clear()
    plans = [load(path).plan(symbol, {}, threads) for threads in (1, 2, 1, 2)]
    assert lowered == [symbol, symbol]
    for first, again in (plans[0::2], plans[1::2]):
        assert [each.code for each in first.operations] == [each.code for each in again.operations]


def load(path: Path) -> DnnlRuntime:
    (module,) = [each for each in ky.load(path).modules if isinstance(each, DnnlRuntime)]
    return module


def test_a_primitive_that_is_refused_today_is_lowered_anew(tmp_path, monkeypatch, lowered):
    module, x = network(), feed()
    path = saved(module, tmp_path / "m.kyar")
    ky.load(path)(x)
    lowered.clear()
    describe, refused = Primitive.describe, []

    def refuse_once(self: Primitive) -> Any:
        if not refused and self.recipe.kind == "matmul":
            refused.append(self)
            raise StatusError("dnnl_matmul_primitive_desc_create", 3)
        return describe(self)

    monkeypatch.setattr(Primitive, "describe", refuse_once)
    assert_allclose(ky.load(path)(x), evaluate(module, [x])[0])
    assert refused
    assert lowered


def test_a_damaged_entry_is_lowered_anew(tmp_path, cache, lowered):
    module, x = network(), feed()
    path = saved(module, tmp_path / "m.kyar")
    ky.load(path)(x)
    entries = list(cache.iterdir())
    assert entries
    for entry in entries:
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 1
        entry.write_bytes(data)
    lowered.clear()
    assert_allclose(ky.load(path)(x), evaluate(module, [x])[0])
    assert lowered


def test_code_of_ours_is_not_written(tmp_path, cache, lowered):
    """A table of quantized numbers is looked up by our code, which is in no library."""
    b = FunctionBuilder()
    scale, zero = np.array(0.1, np.float32), np.array(128, np.uint8)
    x = b.op("dequantize", b.input("x", (64, 64), "uint8"), scale, zero)
    module = IRModule({"main": b.function(b.op("quantize", b.op("tanh", x), scale / 10, zero))})
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.lookup", at_least=1)
    exe.save(tmp_path / "m.kyar")
    data = np.random.default_rng(0).integers(0, 256, (64, 64)).astype(np.uint8)
    for _ in range(2):
        lowered.clear()
        assert_allclose(ky.load(tmp_path / "m.kyar")(data), evaluate(module, [data])[0])
        assert lowered
    assert not cache.exists() or not list(cache.iterdir())
