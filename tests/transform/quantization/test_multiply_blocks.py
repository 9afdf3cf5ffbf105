"""Products of what is rounded to int8 by blocks, and weights that are quantized by the same: integers are multiplied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from kernelyard import dims
from kernelyard.ir import Call, Constant, Expr, FunctionBuilder, IRModule, verify
from kernelyard.testing import evaluate
from kernelyard.tir import PrimFunc
from kernelyard.transform.quantization.multiply_blocks import COLUMNS, MultiplyBlocks
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

RNG = np.random.default_rng(5)
FORMS = ("symmetric", "zeros", "minima")


def weight(b: FunctionBuilder, k: int, n: int, bits: int, block: int, form: str) -> Expr:
    """Codes (blocks, block, n) with a scale for each block and column; zeros and minima as the form says."""
    blocks, half = -(-k // block), 2 ** (bits - 1)
    low, high = (0, 2 * half) if form == "minima" and bits == 4 else (-half, half)
    scales = RNG.uniform(0.5, 1.5, (blocks, 1, n)).astype(np.float32)
    real = b.op("astype", RNG.integers(low, high, (blocks, block, n)).astype(np.int8), dtype="float32")
    if form == "zeros":
        real = b.op("subtract", real, RNG.integers(-3, 4, (blocks, 1, n)).astype(np.float32))
    real = b.op("multiply", real, scales)
    if form == "minima":
        real = b.op("add", real, RNG.uniform(-9, 9, (blocks, 1, n)).astype(np.float32))
    flat = b.op("reshape", real, shape=(blocks * block, n))
    return flat if blocks * block == k else b.op("strided_slice", flat, axes=(0,), begin=(0,), end=(k,), strides=(1,))


def product(
    left: tuple[Any, ...], k: int, n: int, bits: int = 4, block: int = 32, form: str = "symmetric", of_rows: int = 8
) -> IRModule:
    b = FunctionBuilder()
    x = b.op("fake_quantize", b.input("x", (*left, k)), block=block, bits=of_rows)
    return verify(IRModule({"main": b.function(b.op("matmul", x, weight(b, k, n, bits, block, form)))}))


def multiplied(module: IRModule) -> IRModule:
    return verify(DeadCodeElimination()(MultiplyBlocks()(module)))


def calls_of(module: IRModule) -> list[Call]:
    values = (binding.value for binding in module["main"].bindings)
    return [value for value in values if isinstance(value, Call)]


def assert_same(before: IRModule, after: IRModule, x: np.ndarray) -> None:
    """But for roundings of sums in another order, whose parts are up to 255 * 1.5 + 9 times an element of x."""
    bound = 2.0**-23 * (x.shape[-1] + 8) * 400 * np.abs(x).sum(-1).max()
    np.testing.assert_allclose(evaluate(after, [x])[0], evaluate(before, [x])[0], rtol=0, atol=bound)


@given(
    form=strategies.sampled_from(FORMS),
    bits=strategies.sampled_from([4, 8]),
    block=strategies.sampled_from([8, 16, 32, 64]),
    left=strategies.sampled_from([(), (1,), (3,), (2, 3)]),
    k=strategies.integers(65, 200),
    n=strategies.integers(1, 70),
    of_rows=strategies.sampled_from([8, 16]),
)
@settings(max_examples=50, deadline=None)
def test_the_meaning_stays(
    form: str, bits: int, block: int, left: tuple[int, ...], k: int, n: int, of_rows: int
) -> None:
    module = product(left, k, n, bits, block, form, of_rows)
    after = multiplied(module)
    assert [call.op_name for call in calls_of(after)] == ["call_tir", "call_tir"]
    assert_same(module, after, RNG.standard_normal((*left, k), dtype=np.float32))


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_stay_as_they_are_stored(bits: int) -> None:
    k, n = 128, 2 * COLUMNS
    (_, call) = calls_of(multiplied(product((2,), k, n, bits)))
    stored = [arg.data for arg in call.args if isinstance(arg, Constant)]
    assert [(each.dtype.name, each.shape) for each in stored] == [
        ("int32", (k * bits // 32, n)),
        ("float32", (k // 32, n)),
    ]


def test_one_block_for_a_whole_column() -> None:
    b = FunctionBuilder()
    x = b.op("fake_quantize", b.input("x", (3, 96)), block=96)
    stored = RNG.integers(-128, 128, (96, 40)).astype(np.int8)
    columns = b.op("dequantize", stored, RNG.uniform(0.5, 1.5, 40).astype(np.float32), np.int8(0), axis=1)
    module = IRModule({"main": b.function(b.op("matmul", x, columns))})
    after = multiplied(module)
    assert [call.op_name for call in calls_of(after)] == ["call_tir", "call_tir"]
    assert_same(module, after, RNG.standard_normal((3, 96), dtype=np.float32))


def test_numbers_of_one_tensor_are_rounded_once_for_all_its_products() -> None:
    b = FunctionBuilder()
    x = b.op("fake_quantize", b.input("x", (2, 64)))
    results = [b.op("matmul", x, weight(b, 64, n, 4, 32, "minima")) for n in (8, 8, 24)]
    after = multiplied(IRModule({"main": b.function(*results)}))
    names = [call.args[0].name for call in calls_of(after)]
    assert len(names) == 4
    assert len(set(names)) == 3  # of two products of one size, one function


def test_any_number_of_rows() -> None:
    module = product((dims.symbol("m"),), 70, 33, form="zeros")
    after = multiplied(module)
    assert all(isinstance(after[call.args[0].name], PrimFunc) for call in calls_of(after))
    assert_same(module, after, RNG.standard_normal((5, 70), dtype=np.float32))


def test_blocks_of_zeros_and_of_tiny_numbers() -> None:
    module = product((4,), 64, 16)
    x = RNG.standard_normal((4, 64), dtype=np.float32)
    x[0], x[1], x[2, :32] = 0, 1e-40, 0
    found = evaluate(multiplied(module), [x])[0]
    assert not found[:2].any()
    assert_same(module, multiplied(module), x)


def test_rows_of_16_bits_are_almost_what_they_were() -> None:
    x, b = RNG.standard_normal((4, 256), dtype=np.float32), FunctionBuilder()
    codes = b.op("fake_quantize", b.input("x", x.shape), bits=16)
    (found,) = evaluate(IRModule({"main": b.function(codes)}), [x])
    largest = np.abs(x).reshape(4, -1, 32).max(-1).repeat(32, 1)
    assert (np.abs(found - x) <= largest / 32639 * 0.51).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_spoils_its_row_alone(number: float) -> None:
    x = RNG.standard_normal((3, 64), dtype=np.float32)
    x[1, 5] = number
    (found,) = evaluate(multiplied(product((3,), 64, 16)), [x])
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


def test_other_products_stay() -> None:
    b = FunctionBuilder()
    x, long = b.input("x", (2, 64)), b.input("long", (2, 1024))
    rounded = b.op("fake_quantize", x)
    results = [
        b.op("matmul", x, weight(b, 64, 8, 4, 32, "symmetric")),  # not rounded
        b.op("matmul", rounded, weight(b, 64, 8, 4, 16, "symmetric")),  # other blocks
        b.op("matmul", rounded, RNG.standard_normal((64, 8), dtype=np.float32)),  # not quantized
        b.op("matmul", b.op("fake_quantize", x, block=4), weight(b, 64, 8, 4, 4, "symmetric")),  # no whole words
        # More than an int32 holds.
        b.op("matmul", b.op("fake_quantize", long, block=512, bits=16), weight(b, 1024, 8, 8, 512, "symmetric")),
    ]
    module = IRModule({"main": b.function(*results)})
    assert MultiplyBlocks()(module) is module


def test_entry_functions_share_what_they_multiply_by() -> None:
    """Weights that several functions read are recovered and packed once, and multiplied by one kernel."""
    function = product((3,), 96, 40)["main"]
    after = multiplied(IRModule({"main": function, "again": function}))
    (first, second) = (
        next(b.value for b in after[name].bindings if isinstance(b.value, Call) and len(b.value.args) > 3)
        for name in ("main", "again")
    )
    assert first.args[0].name == second.args[0].name == "block_matmul"
    weights = [[arg for arg in call.args if isinstance(arg, Constant)] for call in (first, second)]
    assert weights[0]
    assert all(one is other for one, other in zip(*weights, strict=True))


def test_rows_of_16_bits_are_left_where_digits_do_not_pay() -> None:
    wide, narrow = product((3,), 128, 64, of_rows=16), product((3,), 128, 64)
    for digits in ((), (8,)):
        assert MultiplyBlocks(digits)(wide) is wide
        assert [call.op_name for call in calls_of(MultiplyBlocks(digits)(narrow))][-1] == "call_tir"
    assert [call.op_name for call in calls_of(MultiplyBlocks((4,))(wide))][-1] == "call_tir"
