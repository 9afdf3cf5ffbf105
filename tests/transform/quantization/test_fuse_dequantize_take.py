"""Columns of quantized weights are read in the form in which a product reads these weights."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import Call, Constant, Expr, FunctionBuilder, IRModule, verify
from kernelyard.testing import evaluate
from kernelyard.tir import PrimFunc
from kernelyard.tir.packing import Packing
from kernelyard.transform.layout.pack_constants import PackConstants
from kernelyard.transform.quantization.fuse_dequantize_matmul import FuseDequantizeMatmul
from kernelyard.transform.quantization.fuse_dequantize_take import FuseDequantizeTake
from kernelyard.transform.quantization.multiply_blocks import MultiplyBlocks
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

GROUPS, COLUMNS = 4, 128
PLACES = np.array([[0, 127, -1], [63, 64, 100]])
# The lowest and the largest integer of a block, and whether it has a minimum, as blocks of GGUF; or zero points.
FORMS = {"Q4_0": (-8, 8, False), "Q4_1": (0, 16, True), "Q8_0": (-128, 128, False), "minima": (-128, 128, True)}
ZERO_POINTS = "zero points"


def weight(b: FunctionBuilder, form: str) -> Expr:
    """Return a matrix (K, N), the same one for every function."""
    rng = np.random.default_rng(3)
    if form == ZERO_POINTS:
        stored, zero = rng.integers(0, 256, (GROUPS * 32, COLUMNS)), rng.integers(9, 99, COLUMNS)
        scale = rng.uniform(0.5, 1.5, COLUMNS).astype(np.float32)
        return b.op("dequantize", stored.astype(np.uint8), scale, zero.astype(np.uint8), axis=1)
    low, high, has_minima = FORMS[form]
    codes = rng.integers(low, high, (GROUPS, 32, COLUMNS)).astype(np.int8)
    parts = (codes, *(rng.uniform(0.5, 1.5, (GROUPS, 1, COLUMNS)).astype(np.float16) for _ in range(2)))
    wide, scale, minimum = (b.op("astype", part, dtype="float32") for part in parts)
    real = b.op("multiply", wide, scale)
    real = b.op("add", real, minimum) if has_minima else real
    return b.op("reshape", real, shape=(GROUPS * 32, COLUMNS))


def embedding_and_head(form: str, bits: int | None) -> IRModule:
    """Two functions of one matrix: its columns, and a product. bits: of the product's rows, None for floats."""
    embed, head = FunctionBuilder(), FunctionBuilder()
    places = embed.input("places", (dims.symbol("batch"), dims.symbol("n")), "int64")
    x = head.input("x", (dims.symbol("m"), GROUPS * 32))
    rows = x if bits is None else head.op("fake_quantize", x, block=32, bits=bits)
    return verify(
        IRModule(
            {
                "embed": embed.function(embed.op("take", weight(embed, form), places, axis=1)),
                "head": head.function(head.op("matmul", rows, weight(head, form))),
            }
        )
    )


def fused(module: IRModule) -> IRModule:
    for change in (MultiplyBlocks(), FuseDequantizeMatmul(), FuseDequantizeTake(), DeadCodeElimination()):
        module = verify(change(module))
    return module


def constants_of(module: IRModule, function: str) -> dict[str, Constant]:
    """Return the constants of the function's only call of a loop-level function, by digest."""
    values = (binding.value for binding in module[function].bindings)
    (call,) = (v for v in values if isinstance(v, Call) and any(isinstance(arg, Constant) for arg in v.args))
    assert call.op_name == "call_tir"
    return {arg.digest: arg for arg in call.args if isinstance(arg, Constant)}


@pytest.mark.parametrize("bits", [None, 8, 16])
@pytest.mark.parametrize("form", [*FORMS, ZERO_POINTS])
def test_columns_are_read_in_the_form_of_the_product(form: str, bits: int | None) -> None:
    module = embedding_and_head(form, bits)
    after = fused(module)
    assert constants_of(after, "embed").keys() == constants_of(after, "head").keys()
    found, expected = (evaluate(each, [PLACES], "embed")[0] for each in (after, module))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=3e-4)  # minima are those of other integers


@pytest.mark.parametrize("packing", [Packing(1, 64), Packing(1, 16)])
def test_columns_are_read_as_the_product_has_packed_them(packing: Packing) -> None:
    module = fused(embedding_and_head("Q8_0", 16))

    def choose(function: PrimFunc, positions: Collection[int]) -> dict[int, Packing]:
        return {n: packing for n in positions if "matmul" in function.attrs["ops"]}

    packed = verify(PackConstants(choose)(module))
    assert constants_of(packed, "embed").keys() == constants_of(packed, "head").keys()
    assert {each.data.shape[-1] for each in constants_of(packed, "embed").values()} == {packing.block}
    np.testing.assert_array_equal(evaluate(packed, [PLACES], "embed"), evaluate(module, [PLACES], "embed"))


def test_other_takes_stay() -> None:
    b = FunctionBuilder()
    places = b.input("places", (3,), "int64")
    matrix = weight(b, "Q4_1")
    rows = b.op("take", matrix, places, axis=0)
    of_floats = b.op("take", np.ones((4, 8), np.float32), places, axis=1)
    module = IRModule({"main": b.function(rows, of_floats)})
    assert FuseDequantizeTake()(module) is module
