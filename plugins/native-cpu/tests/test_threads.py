"""Threads share a group's tasks: all are done, whoever of the pool does them, and in whatever order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, TensorType, Tuple
from kernelyard.ops.interpreter import run as interpret
from kernelyard.runtime.api import ALONE_IF_ASLEEP
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import unary
from kernelyard_native_cpu import _native

from .conftest import kernels

MEMBER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
NUMBER = ctypes.CFUNCTYPE(ctypes.c_int)
COLUMNS = 257
Order = Callable[[int], Iterable[int]]


class Pool:
    """Runs the members of a team one after another, those and in the order that `order` says."""

    def __init__(self) -> None:
        self.order: Order = range
        self.teams: list[int] = []
        self.flags: list[int] = []
        self._number = 0
        self._callbacks = (PARALLEL(self._parallel), NUMBER(lambda: self.teams[-1]), NUMBER(lambda: self._number))

    def _parallel(self, member: int, context: int, count: int, flags: int) -> None:
        self.teams.append(count)
        self.flags.append(flags)
        for number in self.order(count):
            self._number = number
            MEMBER(member)(context)

    @property
    def functions(self) -> dict[str, int]:
        names = ("GOMP_parallel", "omp_get_num_threads", "omp_get_thread_num")
        addresses = (ctypes.cast(each, ctypes.c_void_p).value for each in self._callbacks)
        return {name: address for name, address in zip(names, addresses, strict=True) if address is not None}


@pytest.fixture
def pool(monkeypatch) -> Pool:
    pool = Pool()
    monkeypatch.setattr(_native, "openmp", lambda: pool.functions)
    return pool


@pytest.fixture
def softmax(compile_function):
    b = PrimFuncBuilder()
    n = dims.symbol("n")
    x = b.input("x", TensorType((n, COLUMNS), "float32"))
    largest = b.reduce("max", (n,), (COLUMNS,), lambda s, r: x[s[0], r[0]])
    powers = b.compute((n, COLUMNS), lambda i, j: unary("exp", x[i, j] - largest[i]))
    total = b.reduce("sum", (n,), (COLUMNS,), lambda s, r: powers[s[0], r[0]])
    return compile_function(b.finish((b.compute((n, COLUMNS), lambda i, j: powers[i, j] / total[i]),)))


def _check(module, call_kernel, rows: int, threads: int) -> None:
    x = np.random.default_rng(rows).random((rows, COLUMNS), np.float32)
    powers = np.exp(x)
    found = call_kernel(module, "kernel", [x], {"n": rows}, threads=threads)[0]
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1000, 3000), st.integers(2, 9), st.permutations(range(9)))
def test_every_order_of_threads_does_all_tasks(softmax, call_kernel, pool, rows, threads, order):
    pool.order = lambda count: [number for number in order if number < count]
    pool.teams.clear()
    _check(softmax, call_kernel, rows, threads)
    assert pool.teams
    assert all(1 < count <= threads for count in pool.teams)


@pytest.mark.parametrize("awake", range(4))
def test_one_thread_does_the_tasks_of_those_that_sleep(softmax, call_kernel, pool, awake):
    pool.order = lambda _: (awake,)
    _check(softmax, call_kernel, 1000, 4)
    assert pool.teams == [4]


def _two_directions(steps: int, hidden: int) -> tuple[IRModule, list[np.ndarray]]:
    b = FunctionBuilder()
    gates, weights = b.input("x", (dims.symbol("t"), 1, hidden)), b.input("w", (hidden, hidden))
    state = b.input("h", (1, hidden))
    layers = [b.get(b.op("nn.rnn", gates, weights, state, reverse=reverse), 0) for reverse in (False, True)]
    rng = np.random.default_rng(steps)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((steps, 1, hidden), (1, hidden))]
    arrays.insert(1, (rng.standard_normal((hidden, hidden)) / hidden).astype(np.float32))
    return IRModule({"main": b.function(Tuple(layers))}), arrays


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (1,)], ids=str)
@pytest.mark.parametrize(("steps", "teams"), [(400, [2]), (2, [])], ids=["long", "short"])
def test_recurrences_run_at_the_same_time(compile_function, call_kernel, pool, steps, teams, order):
    """Each of two loops is a task, as long as the steps of one keep no more threads busy, and are worth a thread."""
    module, arrays = _two_directions(steps, hidden=64)
    (function,) = kernels(module).values()
    pool.order = lambda _: order
    found = call_kernel(compile_function(function), "kernel", arrays, {"t": steps}, threads=4)
    for result, wanted in zip(found, interpret(module, arrays), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
    assert pool.teams == teams


def test_recurrences_run_in_turn_where_more_threads_share_a_step(compile_function, call_kernel, pool):
    module, arrays = _two_directions(3, hidden=600)
    (function,) = kernels(module).values()
    found = call_kernel(compile_function(function), "kernel", arrays, {"t": 3}, threads=4)
    for result, wanted in zip(found, interpret(module, arrays), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
    assert pool.teams
    assert max(pool.teams) > 2


@pytest.mark.parametrize(
    ("rows", "teams", "flags"), [(16, [], []), (2048, [4], [ALONE_IF_ASLEEP]), (8192, [4], [0])], ids=str
)
def test_only_work_that_takes_long_wakes_threads(compile_function, call_kernel, pool, rows, teams, flags):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((rows, 64), "float32"))
    module = compile_function(b.finish((b.compute((rows, 64), lambda i, j: unary("exp", x[i, j])),)))
    data = np.random.default_rng(rows).random((rows, 64), np.float32)
    np.testing.assert_allclose(call_kernel(module, "kernel", [data], {}, threads=4)[0], np.exp(data), rtol=1e-5)
    assert (pool.teams, pool.flags) == (teams, flags)
