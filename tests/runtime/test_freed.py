"""Objects that nobody refers to any more are freed at once, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.ir import Constant, FunctionBuilder, IRModule

X = np.array([[-1, 2], [3, -4]], np.float32)


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def compiled() -> ky.Executable:
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (2, 2)), np.eye(2, dtype=np.float32))
    return ky.compile(IRModule({"main": b.function(b.op("nn.relu", product))}))


def by_name(exe: ky.Executable) -> object:
    return exe.run({"x": X})


def by_position(exe: ky.Executable) -> object:
    return exe(X)


def with_an_instrument(exe: ky.Executable) -> object:
    machine = ky.VirtualMachine(exe)
    steps: list[str] = []
    machine.set_instrument(lambda step, *_: steps.append(step.symbol))
    machine["main"](X)
    assert steps
    return None


@pytest.mark.parametrize("use", [by_name, by_position, with_an_instrument])
def test_an_executable_and_its_modules_are_freed_at_once(use: Callable[[ky.Executable], object]) -> None:
    exe = compiled()
    for _ in range(3):
        results = use(exe)
    freed = [weakref.ref(each) for each in (exe, *exe.modules)]
    assert len(freed) > 1
    del exe
    assert [each() for each in freed] == [None] * len(freed)
    del results


def test_a_function_outlives_its_machine() -> None:
    main = ky.VirtualMachine(compiled())["main"]
    np.testing.assert_array_equal(main(X).numpy(), np.maximum(X, 0))
    np.testing.assert_array_equal(main(X).numpy(), np.maximum(X, 0))


def test_changed_options_reach_the_next_run() -> None:
    exe = compiled()
    exe.run({"x": X})
    exe.threads, exe.max_plans = 1, 3
    exe.run({"x": X})
    assert exe.threads == 1
    assert exe.cache_info()["plans"].capacity == 3


def test_a_compile_leaves_no_constant_behind_but_those_of_the_program() -> None:
    """Weights as they were before they were packed are large."""
    others = [each for each in gc.get_objects() if type(each) is Constant]  # of other tests
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    hidden = b.input("x", (4, 64))
    for _ in range(3):  # groups of several kernels
        hidden = b.op("matmul", hidden, rng.standard_normal((64, 64), dtype=np.float32))
        hidden = b.op("nn.softmax", b.op("nn.relu", b.op("add", hidden, rng.random(64, dtype=np.float32))), axis=1)
    exe = ky.compile(IRModule({"main": b.function(hidden)}), backends=[])
    del b, hidden
    assert len(exe.constants) >= 3
    assert [each for each in gc.get_objects() if type(each) is Constant] == others


def test_a_constant_that_is_moved_is_kept_once() -> None:
    exe = compiled()
    weight = np.empty(5, np.float32)[1:].reshape(2, 2)  # nowhere near a multiple of 64 bytes
    exe.constants["0" * 64] = weight
    weight[...] = X
    original = weakref.ref(weight)
    del weight
    moved = exe.resident("0" * 64)
    assert original() is None
    assert moved.ctypes.data % 64 == 0
    np.testing.assert_array_equal(moved, X)
    assert exe.resident("0" * 64).ctypes.data == moved.ctypes.data
