"""Constants whose elements are computed when they are first read."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401
from kernelyard.ir import Constant, FunctionBuilder, IRModule, TensorType, to_text
from kernelyard.ir.deferred_constant import DeferredConstant
from kernelyard.ir.hash_ahead import LARGE, hash_ahead


def deferred(data: np.ndarray, calls: list[int]) -> DeferredConstant:
    """A constant of these elements, which notes its calls."""

    def compute() -> np.ndarray:
        calls.append(data.size)
        return data.copy()

    return DeferredConstant(TensorType(data.shape, str(data.dtype)), compute)


def test_it_is_the_constant_of_these_elements() -> None:
    calls: list[int] = []
    data = np.arange(6, dtype=np.int32).reshape(2, 3)
    constant = deferred(data, calls)
    assert repr(constant) == repr(Constant(data))
    assert calls == [], "the type is known without them"
    assert constant.digest == Constant(data).digest
    np.testing.assert_array_equal(constant.data, data)
    assert not constant.data.flags.writeable
    assert calls == [6]


@pytest.mark.parametrize("count", [8, LARGE])
def test_it_is_computed_for_its_digest(count: int) -> None:
    calls: list[int] = []
    data = np.arange(count, dtype=np.float32)
    constant = deferred(data, calls)
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("negative", constant))})
    hash_ahead(module)
    assert constant.digest == Constant(data).digest
    assert calls == [count]
    assert "negative" in to_text(module)


def test_threads_compute_it_once() -> None:
    calls: list[int] = []
    constant = deferred(np.zeros(1 << 16, np.float32), calls)
    with ThreadPoolExecutor(8) as executor:
        arrays = list(executor.map(lambda _: constant.data, range(8)))
    assert calls == [1 << 16]
    assert all(array is arrays[0] for array in arrays)


def test_what_it_is_computed_from_is_released() -> None:
    source = np.arange(4, dtype=np.float32)
    reference = weakref.ref(source)
    constant = DeferredConstant(TensorType((4,), "float32"), lambda held=source: held[::-1].copy())
    del source
    assert reference() is not None
    assert constant.data.tolist() == [3, 2, 1, 0]
    assert reference() is None


def test_an_error_stays_one() -> None:
    def fail() -> np.ndarray:
        raise MemoryError("no room")

    constant = DeferredConstant(TensorType((4,), "float32"), fail)
    for _ in range(2):
        with pytest.raises(MemoryError, match="no room"):
            _ = constant.data
