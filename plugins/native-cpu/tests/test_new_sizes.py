"""New sizes: the kernels of a program are bound together, with the addresses and numbers of each set of sizes."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard as ky
import kernelyard.ops  # declares the operators
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard_native_cpu.runtime import NativeCpuModule

RNG = np.random.default_rng(5)
WEIGHT = RNG.standard_normal((24, 24)).astype(np.float32)
N, M = symbol("n"), symbol("m")


@pytest.fixture(scope="module")
def exe() -> ky.Executable:
    """Two layers that are alike, a cache that grows, and a result of fixed size."""
    b = FunctionBuilder()
    x, cache = b.input("x", (N, 24)), b.input("cache", (M, 24))
    for _ in range(2):
        x = b.op("nn.softmax", b.op("matmul", x, WEIGHT), axis=1)
    grown = b.op("concat", cache, x, axis=0)
    total = b.op("sum", b.op("matmul", x, b.op("permute_dims", grown, axes=(1, 0))), axes=(0, 1), keepdims=False)
    exe = ky.compile(IRModule({"main": b.function(grown, total)}), backends=[])
    exe.threads = 2
    return exe


def expected(x: np.ndarray, cache: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    for _ in range(2):
        powers = np.exp(x @ WEIGHT - (x @ WEIGHT).max(1, keepdims=True))
        x = powers / powers.sum(1, keepdims=True)
    grown = np.concatenate([cache, x])
    return grown, (x @ grown.T).sum()


def check(exe: ky.Executable, n: int, m: int) -> None:
    feeds = [RNG.standard_normal((rows, 24)).astype(np.float32) for rows in (n, m)]
    for _ in range(3):  # the first, the one that makes the quick way, and that
        for found, right in zip(exe(*feeds), expected(*feeds), strict=True):
            np.testing.assert_allclose(found.numpy(), right, rtol=1e-4, atol=1e-4)


def test_no_kernel_is_bound_by_itself(exe: ky.Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> NoReturn:
        raise AssertionError("bound by itself")

    monkeypatch.setattr(NativeCpuModule, "bind", fail)
    for n, m in ((1, 1), (3, 50), (1, 2), (3000, 7), (1, 1)):
        check(exe, n, m)


def test_a_cache_that_grows_is_right_at_each_length(exe: ky.Executable) -> None:
    cache = np.zeros((1, 24), np.float32)
    for _ in range(60):
        row = RNG.standard_normal((1, 24)).astype(np.float32)
        grown, total = exe(row, cache)
        right, right_total = expected(row, cache)
        np.testing.assert_allclose(grown.numpy(), right, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(total.numpy(), right_total, rtol=1e-4, atol=1e-4)
        cache = grown.numpy()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=4))
def test_any_sizes_after_any_others(exe: ky.Executable, sizes: list[tuple[int, int]]) -> None:
    for n, m in sizes:
        check(exe, n, m)


def test_many_sizes_take_no_more_memory(exe: ky.Executable) -> None:
    for m in RNG.integers(1, 2000, 300):
        exe(np.ones((2, 24), np.float32), np.ones((int(m), 24), np.float32))
    known = exe.cache_info()["bound programs"]
    for m in RNG.integers(1, 2000, 300):
        exe(np.ones((2, 24), np.float32), np.ones((int(m), 24), np.float32))
    info = exe.cache_info()["bound programs"]
    assert info.entries == info.capacity
    assert info.nbytes == known.nbytes
