"""Digests of large constants that other threads take are those that the constants would take themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401
from kernelyard.ir import Constant, FunctionBuilder, IRModule
from kernelyard.ir.hash_ahead import LARGE, hash_ahead


@pytest.mark.parametrize("count", [1, LARGE // 4, LARGE])
def test_digests_are_the_same(count) -> None:
    arrays = [np.arange(count, dtype=np.float32), np.zeros((count, 1), np.float32), np.zeros((count, 2), np.int8)[:, 0]]
    constants = [Constant(array) for array in arrays]
    b = FunctionBuilder()
    results = [b.op("negative", constant) for constant in constants]
    hash_ahead(IRModule({"main": b.function(*results)}))
    found = [constant.digest for constant in constants]
    assert found == [Constant(array).digest for array in arrays]
    assert len(set(found)) == 3


def test_modules_without_large_constants() -> None:
    b = FunctionBuilder()
    hash_ahead(IRModule({"main": b.function(b.op("negative", b.input("x", (2,))))}))
    hash_ahead(IRModule())


def test_a_digest_is_computed_once() -> None:
    constant = Constant(np.zeros(LARGE, np.int8))
    digest = constant.digest
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    constant.hash_ahead(closed)  # submits nothing, which would be an error
    assert constant.digest == digest
