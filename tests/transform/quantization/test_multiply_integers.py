"""Products of quantized values become products of integers, whose sums are scaled once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from kernelyard import dims
from kernelyard.ir import Call, Expr, FunctionBuilder, IRModule, verify
from kernelyard.testing import evaluate
from kernelyard.tir import PrimFunc
from kernelyard.transform.pipelines import get_pipeline, integer_products
from kernelyard.transform.quantization.multiply_integers import LEAST_COLUMNS, LEAST_DEPTH, MOST_DEPTH

RNG = np.random.default_rng(5)
ZERO = {"uint8": 131, "int8": -7}


def numbers(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def scales(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def data(b: FunctionBuilder, shape: tuple, dtype: str) -> Expr:
    return b.op("dequantize", b.input("x", shape, dtype), np.float32(0.25), np.array(ZERO[dtype], dtype))


def matrix(b: FunctionBuilder, k: int, n: int, has_zeros: bool) -> Expr:
    if has_zeros:
        return b.op("dequantize", numbers("uint8", k, n), scales(n), RNG.integers(90, 150, n).astype(np.uint8), axis=1)
    return b.op("dequantize", numbers("int8", k, n), scales(n), np.int8(0), axis=1)


def filters(b: FunctionBuilder, *shape: int) -> Expr:
    return b.op("dequantize", numbers("int8", *shape), scales(shape[0]), np.zeros(shape[0], np.int8), axis=0)


def module_of(b: FunctionBuilder, result: Expr) -> IRModule:
    return verify(IRModule({"main": b.function(result)}))


def ops(module: IRModule) -> list[str]:
    return [b.value.op_name for b in module["main"].bindings if isinstance(b.value, Call)]


def assert_multiplied(module: IRModule, shape: tuple[int, ...], dtype: str) -> None:
    after = verify(get_pipeline("integer_products")(module))
    assert set(ops(after)) == {"call_tir"}, "no float is multiplied before it is summed"
    x = numbers(dtype, *shape)
    (expected,), (found,) = evaluate(module, [x]), evaluate(after, [x])
    np.testing.assert_allclose(found, expected, atol=1e-5 * max(1.0, np.abs(expected).max(initial=0)))


@given(
    left=strategies.sampled_from([(), (1,), (5,), (2, 3)]),
    k=strategies.integers(LEAST_DEPTH, 70),
    n=strategies.integers(LEAST_COLUMNS, 40),
    dtype=strategies.sampled_from(sorted(ZERO)),
    has_zeros=strategies.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_matmul(left: tuple[int, ...], k: int, n: int, dtype: str, has_zeros: bool) -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("matmul", data(b, (*left, k), dtype), matrix(b, k, n, has_zeros)))
    assert_multiplied(module, (*left, k), dtype)


@pytest.mark.parametrize("dtype", sorted(ZERO))
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((2, 16, 5, 6), (8, 16, 1, 1), {}),
        ((1, 5, 9, 8), (7, 5, 3, 3), {"padding": (1, 2, 0, 1)}),
        ((1, 3, 11, 10), (4, 3, 3, 2), {"strides": (2, 3), "dilation": (2, 1), "padding": (1, 1, 1, 1)}),
        ((2, 6, 13), (3, 6, 4), {"padding": (2, 0)}),
        ((1, 4, 4, 5, 6), (5, 4, 2, 3, 1), {}),
    ],
    ids=["1x1", "padded", "strided", "1d", "3d"],
)
def test_convolution(shape: tuple[int, ...], weight: tuple[int, ...], attrs: dict, dtype: str) -> None:
    b = FunctionBuilder()
    rank = len(shape) - 2
    settled = {"strides": (1,) * rank, "dilation": (1,) * rank, "padding": (0,) * 2 * rank, **attrs}
    product = b.op(f"nn.conv{rank}d", data(b, shape, dtype), filters(b, *weight), **settled)
    assert_multiplied(module_of(b, product), shape, dtype)


def test_filters_around_one_zero_point_are_signed() -> None:
    b = FunctionBuilder()
    weight = b.op("dequantize", numbers("uint8", 6, 5, 2, 2), np.float32(0.5), np.uint8(128))
    assert_multiplied(module_of(b, b.op("nn.conv2d", data(b, (1, 5, 6, 7), "uint8"), weight)), (1, 5, 6, 7), "uint8")


def test_scales_of_each_run() -> None:
    b = FunctionBuilder()
    x, scale, zero = b.input("x", (dims.symbol("m"), 24), "uint8"), b.input("s", ()), b.input("z", (), "uint8")
    product = b.op("matmul", b.op("dequantize", x, scale, zero), matrix(b, 24, 9, has_zeros=True))
    module = module_of(b, product)
    after = verify(get_pipeline("integer_products")(module))
    assert set(ops(after)) == {"call_tir"}
    feeds = [numbers("uint8", 6, 24), np.float32(0.125), np.uint8(3)]
    np.testing.assert_allclose(evaluate(after, feeds)[0], evaluate(module, feeds)[0], rtol=1e-5, atol=1e-3)


def test_equal_layers_share_a_function() -> None:
    b = FunctionBuilder()
    x = data(b, (3, 32), "uint8")
    parts = [b.op("matmul", x, matrix(b, 32, 8, has_zeros=False)) for _ in range(2)]
    after = get_pipeline("integer_products")(module_of(b, b.op("add", *parts)))
    assert len([f for f in after.functions.values() if isinstance(f, PrimFunc)]) == 1


def zero_of(dtype: str) -> np.ndarray:
    return np.array(ZERO[dtype], dtype)


def extremes(*shape: int, largest: int) -> np.ndarray:
    return RNG.choice(np.array([-abs(largest), -1, 0, 1, min(abs(largest), 127)], np.int8), shape)


@given(
    largest=strategies.sampled_from([1, 64, 65, 127, -128]),
    k=strategies.integers(LEAST_DEPTH, 70),
    dtype=strategies.sampled_from(sorted(ZERO)),
    has_zeros=strategies.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_sums_in_16_bits_are_exact(largest: int, k: int, dtype: str, has_zeros: bool) -> None:
    """The interpreter wraps what 16 bits do not hold: a product in them would differ."""
    b, n = FunctionBuilder(), 6
    zeros = np.arange(-1, n - 1, dtype=np.int8) if has_zeros else np.zeros(n, np.int8)
    weight = b.op("dequantize", extremes(k, n, largest=largest), np.ones(n, np.float32), zeros, axis=1)
    x = b.op("dequantize", b.input("x", (3, k), dtype), np.float32(1), zero_of(dtype))
    product = b.op("matmul", x, weight)
    module = module_of(b, product)
    after = verify(integer_products(sums_in_16_bits=True)(module))
    assert set(ops(after)) == {"call_tir"}
    limits = np.iinfo(dtype)
    feeds = [RNG.choice(np.array([limits.min, limits.max], dtype), (3, k))]
    np.testing.assert_array_equal(evaluate(after, feeds)[0], evaluate(module, feeds)[0])


@pytest.mark.parametrize("dtype", sorted(ZERO))
@pytest.mark.parametrize("largest", [64, 127, -128])
def test_filters_in_16_bits_are_exact(largest: int, dtype: str) -> None:
    b = FunctionBuilder()
    stored = extremes(5, 6, 3, 3, largest=largest)
    weight = b.op("dequantize", stored, np.ones(5, np.float32), np.zeros(5, np.int8), axis=0)
    x = b.op("dequantize", b.input("x", (1, 6, 5, 7), dtype), np.float32(1), zero_of(dtype))
    module = module_of(b, b.op("nn.conv2d", x, weight, padding=(1, 0, 1, 2)))
    after = verify(integer_products(sums_in_16_bits=True)(module))
    assert set(ops(after)) == {"call_tir"}
    limits = np.iinfo(dtype)
    feeds = [RNG.choice(np.array([limits.min, limits.max], dtype), (1, 6, 5, 7))]
    np.testing.assert_array_equal(evaluate(after, feeds)[0], evaluate(module, feeds)[0])


@pytest.mark.parametrize(
    ("pair", "narrow", "takes_signs"),
    [
        ((64, 64), True, False),
        ((127, 1), True, False),
        ((127, 2), True, True),
        ((127, -127), True, False),
        ((-128, 0), True, False),
        ((-128, -1), False, False),
    ],
    ids=str,
)
def test_what_pairs_of_weights_allow(pair: tuple[int, int], narrow: bool, takes_signs: bool) -> None:
    """255 times their sum has 16 bits; else weights take the signs of the data, which -128 cannot."""
    b = FunctionBuilder()
    codes = np.zeros((32, 8), np.int8)
    codes[14:16, 5] = pair
    weight = b.op("dequantize", codes, scales(8), np.int8(0), axis=1)
    parts = [b.op("matmul", data(b, (3, 32), "uint8"), weight) for _ in range(2)]
    after = integer_products(sums_in_16_bits=True)(module_of(b, b.op("add", *parts)))
    found = {name: f for name, f in after.functions.items() if isinstance(f, PrimFunc)}
    assert any("int16" in str(f) for f in found.values()) == narrow
    assert sum("take_signs" in name for name in found) == takes_signs


def of_row_scales(b: FunctionBuilder) -> Expr:
    left = b.op("dequantize", b.input("x", (4, 32), "uint8"), scales(4), np.zeros(4, np.uint8), axis=0)
    return b.op("matmul", left, matrix(b, 32, 6, has_zeros=False))


def of_floats(b: FunctionBuilder) -> Expr:
    return b.op("matmul", b.input("x", (4, 32)), matrix(b, 32, 6, has_zeros=False))


def of_group_scales(b: FunctionBuilder) -> Expr:
    right = b.op("dequantize", numbers("int8", 2, 16, 6), scales(2), np.int8(0), axis=0)
    return b.op("matmul", data(b, (4, 32), "uint8"), b.op("reshape", right, shape=(32, 6)))


def of_weights_that_are_computed(b: FunctionBuilder) -> Expr:
    right = b.op("dequantize", b.input("w", (32, 6), "int8"), np.float32(0.5), np.int8(0))
    return b.op("matmul", data(b, (4, 32), "uint8"), right)


def of_channels_in_groups(b: FunctionBuilder) -> Expr:
    return b.op("nn.conv2d", data(b, (1, 32, 2, 2), "uint8"), filters(b, 32, 1, 1, 1), groups=32)


def of_filters_far_from_zero_points(b: FunctionBuilder) -> Expr:
    weight = b.op("dequantize", np.full((2, 32, 1, 1), 255, np.uint8), np.float32(0.5), np.uint8(0))
    return b.op("nn.conv2d", data(b, (1, 32, 2, 2), "uint8"), weight)


def of_few_columns(b: FunctionBuilder) -> Expr:
    return b.op("matmul", data(b, (4, 32), "uint8"), matrix(b, 32, LEAST_COLUMNS - 1, has_zeros=False))


OTHERS = (
    of_few_columns,
    of_row_scales,
    of_floats,
    of_group_scales,
    of_weights_that_are_computed,
    of_channels_in_groups,
    of_filters_far_from_zero_points,
)


@pytest.mark.parametrize("product", OTHERS, ids=lambda product: product.__name__)
def test_others_stay_products_of_floats(product: Callable[[FunctionBuilder], Expr]) -> None:
    b = FunctionBuilder()
    after = get_pipeline("integer_products")(module_of(b, product(b)))
    assert any(op in ("matmul", "nn.conv2d") for op in ops(after))


@pytest.mark.parametrize(("depth", "is_taken"), [(LEAST_DEPTH - 1, False), (MOST_DEPTH, True), (MOST_DEPTH + 1, False)])
def test_sums_that_an_int32_may_not_hold_stay_floats(depth: int, is_taken: bool) -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("matmul", data(b, (1, depth), "uint8"), matrix(b, depth, 4, has_zeros=False)))
    assert ("matmul" not in ops(get_pipeline("integer_products")(module))) == is_taken
