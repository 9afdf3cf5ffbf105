"""Weight-only quantization: what is stored, its errors, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from kernelyard.errors import PassError
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.testing import evaluate
from kernelyard.transform.quantization.quantize_weights import GROUP, LEAST_ELEMENTS, QuantizeWeights, quantize_matrix

K, N = 256, 320


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def product(weight: np.ndarray, is_transposed: bool = False) -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (3, weight.shape[1 if is_transposed else 0]))
    right = b.op("permute_dims", weight, axes=(1, 0)) if is_transposed else weight
    return IRModule({"main": b.function(b.op("matmul", x, right))})


def ops(module: IRModule) -> list[str]:
    return [binding.value.op_name for binding in module["main"].bindings]


def restored(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return (codes * scales).reshape(-1, codes.shape[-1])


@pytest.mark.parametrize("is_transposed", [False, True])
def test_eight_bits_have_a_scale_for_each_column(is_transposed: bool) -> None:
    weight = numbers(K, N)
    after = verify(QuantizeWeights(8)(product(weight.T.copy() if is_transposed else weight, is_transposed)))
    assert ops(after)[-2:] == ["dequantize", "matmul"]
    x = numbers(3, K, seed=1)
    codes, scales = quantize_matrix(weight, 8)
    np.testing.assert_allclose(evaluate(after, [x])[0], x @ restored(codes, scales), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("k", [K, K + 5])
def test_four_bits_have_a_scale_for_each_group(k: int) -> None:
    weight = numbers(k, N)
    after = verify(QuantizeWeights(4)(product(weight)))
    assert "dequantize" not in ops(after)
    x = numbers(3, k, seed=1)
    codes, scales = quantize_matrix(weight, 4)
    assert codes.shape == (-(-k // GROUP), GROUP, N)
    np.testing.assert_allclose(evaluate(after, [x])[0], x @ restored(codes, scales)[:k], rtol=1e-5, atol=1e-4)


@given(
    rows=strategies.integers(1, 70),
    columns=strategies.integers(1, 5),
    seed=strategies.integers(0, 99),
    size=strategies.sampled_from([1e-30, 1.0, 1e30]),
)
@settings(max_examples=60, deadline=None)
def test_errors_are_bounded(rows: int, columns: int, seed: int, size: float) -> None:
    weight = numbers(rows, columns, seed=seed) * np.float32(size)
    weight[:, 0] *= seed % 2  # columns of zeros
    codes, scales = quantize_matrix(weight, 8)
    extreme = np.abs(weight).max(axis=0)
    # Half a quantum, and what float32 rounds: the scale, the quotient of up to 127, and the restored product.
    roundings = 3 * 254 * np.finfo(np.float32).eps / 2
    assert np.all(np.abs(restored(codes, scales) - weight) <= extreme / 254 * (1 + roundings))

    codes, scales = quantize_matrix(weight, 4)
    assert codes.min() >= -8
    assert codes.max() <= 7
    padded = np.zeros((len(codes) * GROUP, columns), np.float32)
    padded[:rows] = weight
    groups = padded.reshape(codes.shape).astype(np.float64)
    mean_square = np.square(codes * scales.astype(np.float64) - groups).mean(axis=1)
    assert np.all(mean_square <= np.square(np.abs(groups).max(axis=1) / 14 * 1.01))


def test_small_weights_and_those_of_no_finite_size_stay() -> None:
    small = numbers(64, LEAST_ELEMENTS // 64 - 1)
    endless = numbers(K, N)
    endless[3, 5] = np.inf
    for weight in (small, endless, numbers(2, 3, K, N)):
        b = FunctionBuilder()
        module = IRModule({"main": b.function(b.op("matmul", b.input("x", (3, weight.shape[-2])), weight))})
        assert QuantizeWeights(8)(module) is module


def test_what_else_reads_a_weight_keeps_it_and_products_share_what_is_stored() -> None:
    weight = numbers(K, N)
    b = FunctionBuilder()
    x, y = b.input("x", (3, K)), b.input("y", (K,))
    taken = b.op("take", weight, np.array([1, 2]), axis=0)
    module = IRModule({"main": b.function(b.op("matmul", x, weight), b.op("matmul", y, weight), taken)})
    after = verify(QuantizeWeights(8)(module))
    decoded = [binding.value for binding in after["main"].bindings if binding.value.op_name == "dequantize"]
    assert len(decoded) == 2
    assert decoded[0].args[0] is decoded[1].args[0]
    feeds = [numbers(3, K), numbers(K)]
    np.testing.assert_array_equal(evaluate(after, feeds)[2], weight[[1, 2]])


def test_bits_are_four_or_eight() -> None:
    with pytest.raises(PassError, match="4 or 8"):
        QuantizeWeights(3)
