"""Weight-only quantized matmul reads its weights as they are stored, whatever operators dequantize them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from kernelyard import dims
from kernelyard.ir import Constant, Expr, FunctionBuilder, IRModule, verify
from kernelyard.testing import evaluate
from kernelyard.tir import PrimFunc
from kernelyard.transform.quantization.fuse_dequantize_matmul import COLUMNS, FuseDequantizeMatmul
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

RNG = np.random.default_rng(3)
Build = Callable[[FunctionBuilder, int, int], Expr]


def integers(low: int, high: int, *shape: int, dtype: str = "int8") -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def scales(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def per_column(b: FunctionBuilder, k: int, n: int) -> Expr:
    return b.op("dequantize", integers(-128, 128, k, n), scales(n), np.int8(0), axis=1)


def one_scale(b: FunctionBuilder, k: int, n: int) -> Expr:
    return b.op("dequantize", integers(-128, 128, k, n), np.float32(0.25), np.int8(3))


def zero_points(b: FunctionBuilder, k: int, n: int) -> Expr:
    stored, zero = integers(0, 256, k, n, dtype="uint8"), integers(100, 150, n, dtype="uint8")
    return b.op("dequantize", stored, scales(n), zero, axis=1)


def per_row_of_the_transpose(b: FunctionBuilder, k: int, n: int) -> Expr:
    decoded = b.op("dequantize", integers(-128, 128, n, k), scales(n), np.int8(0), axis=0)
    return b.op("permute_dims", decoded, axes=(1, 0))


def groups_of_four_bits(b: FunctionBuilder, k: int, n: int) -> Expr:
    groups = -(-k // 32)
    wide = b.op("astype", integers(-8, 8, groups, 32, n), dtype="float32")
    flat = b.op("reshape", b.op("multiply", wide, scales(groups, 1, n)), shape=(groups * 32, n))
    return b.op("strided_slice", flat, axes=(0,), begin=(0,), end=(k,), strides=(1,))


def blocks_with_minima(b: FunctionBuilder, k: int, n: int, dtype: str = "float16") -> Expr:
    """As GGUF's Q4_1 has them: numbers from 0 to 15, and what is added to them; some blocks are all alike."""
    groups = -(-k // 32)
    scale, minimum = (RNG.uniform(-1.5, 1.5, (groups, 1, n)).astype(dtype) for _ in range(2))
    scale[RNG.uniform(size=scale.shape) < 0.1] = 0
    parts = integers(0, 16, groups, 32, n), scale, minimum
    wide, scale_, minimum_ = (b.op("astype", part, dtype="float32") for part in parts)
    real = b.op("add", b.op("multiply", wide, scale_), minimum_)
    flat = b.op("reshape", real, shape=(groups * 32, n))
    return flat if groups * 32 == k else b.op("strided_slice", flat, axes=(0,), begin=(0,), end=(k,), strides=(1,))


def two_in_a_byte(b: FunctionBuilder, k: int, n: int) -> Expr:
    """As com.microsoft.MatMulNBits has them, with zero points."""
    groups = -(-k // 16)
    packed = integers(0, 256, n, groups, 8, 1, dtype="uint8")
    parts = b.op("right_shift", packed, np.array([0, 4], np.uint8))
    stored = b.op("reshape", b.op("bitwise_and", parts, np.array(15, np.uint8)), shape=(n, groups, 16))
    zero = integers(0, 16, n, groups, 1).astype(np.float32)
    real = b.op("multiply", b.op("subtract", b.op("astype", stored, dtype="float32"), zero), scales(n, groups, 1))
    flat = b.op("reshape", real, shape=(n, groups * 16))
    cut = b.op("strided_slice", flat, axes=(1,), begin=(0,), end=(k,), strides=(1,))
    return b.op("permute_dims", cut, axes=(1, 0))


def half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def _with_minima(b: FunctionBuilder, stored: np.ndarray, k: int) -> Expr:
    """Integers (columns, groups, 32) times half scales, some of them 0, plus half minima."""
    wide = b.op("astype", stored, dtype="float32")
    scale = half(scales(*stored.shape[:2], 1)) * integers(0, 4, *stored.shape[:2], 1).clip(0, 1)
    real = b.op("add", b.op("multiply", wide, scale), half(-7 * scales(*stored.shape[:2], 1)))
    flat = b.op("reshape", real, shape=(stored.shape[0], stored.shape[1] * 32))
    cut = b.op("strided_slice", flat, axes=(1,), begin=(0,), end=(k,), strides=(1,))
    return b.op("permute_dims", cut, axes=(1, 0))


def four_bits_with_minima(b: FunctionBuilder, k: int, n: int) -> Expr:
    """As GGUF's Q4_1 has them."""
    return _with_minima(b, integers(0, 16, n, -(-k // 32), 32, dtype="uint8"), k)


def bytes_with_minima(b: FunctionBuilder, k: int, n: int) -> Expr:
    return _with_minima(b, integers(0, 256, n, -(-k // 32), 32, dtype="uint8"), k)


def blocks_of_zeros(b: FunctionBuilder, k: int, n: int) -> Expr:
    """As GGUF's Q8_0 has them: a block of zeros has the scale 0."""
    groups = -(-k // 32)
    is_used = integers(0, 2, groups, 1, n)
    wide = b.op("astype", integers(-127, 128, groups, 32, n) * is_used, dtype="float32")
    real = b.op("multiply", wide, half(scales(groups, 1, n)) * is_used)
    flat = b.op("reshape", real, shape=(groups * 32, n))
    return b.op("strided_slice", flat, axes=(0,), begin=(0,), end=(k,), strides=(1,))


FORMS = (
    *(per_column, one_scale, zero_points, per_row_of_the_transpose, groups_of_four_bits, two_in_a_byte),
    *(four_bits_with_minima, bytes_with_minima, blocks_of_zeros),
)


def product(form: Build, left: tuple, k: int, n: int) -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (*left, k))
    return verify(IRModule({"main": b.function(b.op("matmul", x, form(b, k, n)))}))


def fused(module: IRModule) -> IRModule:
    return verify(DeadCodeElimination()(FuseDequantizeMatmul()(module)))


def assert_same(before: IRModule, after: IRModule, x: np.ndarray) -> None:
    """But for the order of sums, whose parts are up to 192 times an element of `x`."""
    np.testing.assert_allclose(evaluate(after, [x]), evaluate(before, [x]), atol=2e-4 * np.abs(x).sum(-1).max())


@given(
    form=strategies.sampled_from(FORMS),
    left=strategies.sampled_from([(), (1,), (3,), (2, 3)]),
    k=strategies.integers(1, 100),
    n=strategies.integers(1, 70),
)
@settings(max_examples=60, deadline=None)
def test_the_meaning_stays_for_every_spelling_and_size(form: Build, left: tuple, k: int, n: int) -> None:
    module = product(form, left, k, n)
    after = fused(module)
    assert_same(module, after, RNG.standard_normal((*left, k), dtype=np.float32))
    (binding,) = after["main"].bindings
    assert binding.value.op_name == "call_tir"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_is_stored_is_read(form: Build) -> None:
    k, n = 128, 2 * COLUMNS
    after = fused(product(form, (2,), k, n))
    (binding,) = after["main"].bindings
    function = after[binding.value.args[0].name]
    assert isinstance(function, PrimFunc)
    stored = [arg for arg in binding.value.args if isinstance(arg, Constant)]
    bits = 4 if form in (groups_of_four_bits, two_in_a_byte, four_bits_with_minima) else 8
    assert max(constant.data.nbytes for constant in stored) == k * n * bits // 8


@pytest.mark.parametrize("form", [four_bits_with_minima, blocks_of_zeros], ids=lambda form: form.__name__)
def test_half_scales_stay_half(form: Build) -> None:
    (binding,) = fused(product(form, (2,), 128, 64))["main"].bindings
    stored = [arg.data for arg in binding.value.args if isinstance(arg, Constant)]
    assert [each.dtype.name for each in stored[1:]] == ["float16"] * (len(stored) - 1)
    assert {each.shape for each in stored[1:]} == {(4, 64)}


@pytest.mark.parametrize(("k", "n"), [(32, 8), (64, 70), (1024, 3)])
@pytest.mark.parametrize("rows", [1, 5])
def test_blocks_with_minima(k: int, n: int, rows: int) -> None:
    module = product(blocks_with_minima, (rows,), k, n)
    after = fused(module)
    assert_same(module, after, RNG.standard_normal((rows, k), dtype=np.float32))
    (binding,) = after["main"].bindings
    assert binding.value.op_name == "call_tir"
    types = {arg.tensor_type.dtype for arg in binding.value.args if isinstance(arg, Constant)}
    assert types == {"int32", "float16"}  # words, and scales and minima as they are stored


def test_symbolic_rows() -> None:
    module = product(groups_of_four_bits, (dims.symbol("m"),), 70, 33)
    assert_same(module, fused(module), RNG.standard_normal((5, 70), dtype=np.float32))


def test_products_share_what_is_stored_and_equal_ones_a_function() -> None:
    b = FunctionBuilder()
    x, y = b.input("x", (2, 64)), b.input("y", (2, 64))
    weight = groups_of_four_bits(b, 64, 64)
    after = fused(IRModule({"main": b.function(b.op("matmul", x, weight), b.op("matmul", y, weight))}))
    first, second = (binding.value for binding in after["main"].bindings)
    assert first.args[0].name == second.args[0].name
    assert all(one is other for one, other in zip(first.args[2:], second.args[2:], strict=True))


def test_other_right_sides_stay() -> None:
    b = FunctionBuilder()
    x, stored = b.input("x", (2, 8)), b.input("w", (8, 4), "int8")
    given_per_call = b.op("dequantize", stored, np.float32(0.5), np.int8(0))
    irregular = b.op("multiply", b.op("astype", integers(-9, 9, 8, 4), dtype="float32"), scales(8, 4))
    batch = b.op("dequantize", integers(-9, 9, 3, 8, 4), np.float32(0.5), np.int8(0))
    float64 = b.op("dequantize", integers(-9, 9, 8, 4), np.float32(0.5), np.int8(0), dtype="float64")
    wide = b.op("astype", x, dtype="float64")
    products = [b.op("matmul", x, w) for w in (given_per_call, irregular, batch, scales(8, 4))]
    module = IRModule({"main": b.function(*products, b.op("matmul", wide, float64))})
    assert FuseDequantizeMatmul()(module) is module


def test_entry_functions_share_what_they_multiply_by() -> None:
    """Weights that several functions read are recovered and packed once, and multiplied by one kernel."""
    b = FunctionBuilder()
    weight = groups_of_four_bits(b, 96, 40)
    function = b.function(b.op("matmul", b.input("x", (3, 96)), weight))
    module = FuseDequantizeMatmul()(IRModule({"main": function, "again": function}))
    assert [type(each) for each in module.functions.values()].count(PrimFunc) == 1
    calls = [module[name].bindings[-1].value for name in ("main", "again")]
    (first, second) = ([arg for arg in call.args if isinstance(arg, Constant)] for call in calls)
    assert len(first) == 2
    assert all(one is other for one, other in zip(first, second, strict=True))
