"""Weights too large for sums in 16 bits are cut, and what is left of them is multiplied by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.testing import evaluate
from kernelyard.tir import PrimFunc
from kernelyard.transform.pipelines import integer_products
from kernelyard.transform.quantization.outliers import MOST_OUTLIERS, split_outliers

RNG = np.random.default_rng(7)
MOST = 128
COLUMNS = 400


def weights(depth: int, outliers: int) -> np.ndarray:
    """Return weights of 7 bits, some pairs aside."""
    codes = RNG.integers(-64, 65, (depth, COLUMNS)).astype(np.int8)
    places = RNG.choice(depth // 2 * COLUMNS, outliers, replace=False)
    pairs = codes.reshape(-1, 2, COLUMNS)
    pairs[places // COLUMNS, :, places % COLUMNS] = RNG.choice(
        np.array([[127, 127], [-128, -128], [2, 127], [-127, -2], [-128, -1]], np.int8), outliers
    )
    return codes


@given(depth=strategies.sampled_from([16, 20, 64]), share=strategies.floats(0.01, 1))
@settings(max_examples=30, deadline=None)
def test_both_parts_add_up_to_the_weights(depth: int, share: float) -> None:
    codes = weights(depth, max(1, int(share * MOST_OUTLIERS * depth // 2 * COLUMNS)))
    found = split_outliers(codes, MOST)
    assert found is not None
    cut, left = found
    pairs = cut.astype(np.int64).reshape(-1, 2, COLUMNS)
    assert max(np.maximum(sign * pairs, 0).sum(1).max() for sign in (1, -1)) <= MOST
    whole = cut.astype(np.int64)
    np.add.at(whole, (left.rows.data, left.columns.data), left.numbers.data)
    np.testing.assert_array_equal(whole, codes)


def test_none_or_too_many_are_not_cut() -> None:
    limit = int(MOST_OUTLIERS * 32 * COLUMNS)
    assert split_outliers(weights(64, 0), MOST) is None
    assert split_outliers(weights(64, limit), MOST) is not None
    assert split_outliers(weights(64, limit + 1), MOST) is None


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("left", [(3,), (2, 2), (dims.symbol("m"),)], ids=str)
def test_products_are_exact(left: tuple[Dim, ...], dtype: str) -> None:
    b, depth = FunctionBuilder(), 38  # the last two rows are of no word
    limits = np.iinfo(dtype)
    x = b.op("dequantize", b.input("x", (*left, depth), dtype), np.float32(1), np.array(limits.min + 7, dtype))
    weight = b.op("dequantize", weights(depth, 9), np.ones(COLUMNS, np.float32), np.int8(0), axis=1)
    module = verify(IRModule({"main": b.function(b.op("matmul", x, weight))}))
    after = verify(integer_products(sums_in_16_bits=True)(module))
    texts = {name: str(f) for name, f in after.functions.items() if isinstance(f, PrimFunc)}
    assert "outliers" in texts
    assert "int16" in texts["integer_matmul"]
    shape = tuple(size if isinstance(size, int) else 5 for size in (*left, depth))
    feeds = [RNG.choice(np.array([limits.min, limits.max], dtype), shape)]
    np.testing.assert_array_equal(evaluate(after, feeds)[0], evaluate(module, feeds)[0])
