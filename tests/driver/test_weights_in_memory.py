"""A compile holds the weights of a model that nobody else holds once, beside those that are just being packed."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.driver.session.session import CompileSession
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing.reference import evaluate
from kernelyard.tir.packing import Packing

LAYERS = 4


def layers(seed: int = 0) -> IRModule:
    """Products with small weights, which no thread beside the compile's takes, and a nonlinear function of each."""
    numbers = np.random.default_rng(seed)
    b = FunctionBuilder()
    x = b.input("x", (4, 64))
    for _ in range(LAYERS):
        x = b.op("tanh", b.op("matmul", x, numbers.standard_normal((64, 64), np.float32)))
    return IRModule({"main": b.function(x)})


class Sources:
    """Arrays that were packed so far; how many of them were still in use whenever the next one was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packed: list[weakref.ref[np.ndarray]] = []
        self.in_use: list[int] = []
        apply = Packing.apply

        def count(packing: Packing, array: np.ndarray) -> np.ndarray:
            self.in_use.append(self.count())
            self.packed.append(weakref.ref(array))
            return apply(packing, array)

        monkeypatch.setattr(Packing, "apply", count)

    def count(self) -> int:
        return sum(each() is not None for each in self.packed)


@pytest.mark.parametrize("backends", [[], ["dnnl"]], ids=str)
def test_weights_are_released_one_by_one_as_they_are_packed(monkeypatch, backends) -> None:
    monkeypatch.setattr(CompileSession, "import_model", lambda session, model: layers())
    sources = Sources(monkeypatch)
    gc.disable()  # what only the collector finds would be there for long
    try:
        exe = ky.compile(IRModule(), backends=backends, exclude_patterns=[f"{each}.matmul" for each in backends])
    finally:
        gc.enable()
    assert {region.backend for region in exe.report.regions} == set(backends), "a library has its share"
    assert sources.in_use == [0] * LAYERS
    assert sources.count() == 0
    x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(4, 64)
    (expected,) = evaluate(layers(), [x])
    np.testing.assert_allclose(exe(x).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_weights_that_the_caller_holds_stay(monkeypatch) -> None:
    module = layers()
    sources = Sources(monkeypatch)
    ky.compile(module, backends=[])
    assert sources.in_use == list(range(LAYERS))
    assert sources.count() == LAYERS
