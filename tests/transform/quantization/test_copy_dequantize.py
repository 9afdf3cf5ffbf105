"""CopyDequantize: every reader of a dequantized tensor has a dequantize of its own."""

from __future__ import annotations

import numpy as np

import kernelyard.ops  # noqa: F401
from kernelyard.ir import FunctionBuilder, IRModule, TensorType, verify
from kernelyard.testing import assert_same_meaning
from kernelyard.transform.quantization.copy_dequantize import CopyDequantize


def shared() -> IRModule:
    b = FunctionBuilder()
    x = b.parameter(TensorType((3, 4), "uint8"), "x")
    y = b.op("dequantize", x, np.float32(0.5), np.uint8(3))
    total = b.op("add", b.op("tanh", y), b.op("multiply", y, y))
    return IRModule({"main": b.function(total)})


def names(module: IRModule) -> list[str]:
    return [binding.value.op_name for binding in module["main"].bindings]


def test_each_reader_has_its_own() -> None:
    before = shared()
    after = verify(CopyDequantize()(before))
    assert names(after) == ["dequantize", "tanh", "dequantize", "multiply", "add"]
    product = after["main"].bindings[3].value
    assert product.args[0] is product.args[1]
    assert_same_meaning(before, after, [np.arange(12, dtype=np.uint8).reshape(3, 4)])
    assert CopyDequantize()(after) is after


def test_a_result_keeps_its_own() -> None:
    b = FunctionBuilder()
    y = b.op("dequantize", b.parameter(TensorType((3,), "int8"), "x"), np.float32(0.5), np.int8(3))
    b.op("tanh", y)
    before = IRModule({"main": b.function(y)})
    after = CopyDequantize()(before)
    assert names(after) == ["dequantize", "dequantize", "tanh"]
    assert after["main"].result is after["main"].bindings[0].var


def test_what_has_one_reader_stays_as_it_is() -> None:
    b = FunctionBuilder()
    y = b.op("dequantize", b.parameter(TensorType((3,), "int8"), "x"), np.float32(0.5), np.int8(3))
    before = IRModule({"main": b.function(b.op("tanh", y))})
    assert CopyDequantize()(before) is before


def test_what_is_stored_in_16_bits_is_dequantized_once() -> None:
    b = FunctionBuilder()
    y = b.op("dequantize", b.parameter(TensorType((3, 4), "int16"), "x"), np.float32(0.5), np.int16(3))
    before = IRModule({"main": b.function(b.op("add", b.op("tanh", y), b.op("exp", y)))})
    assert CopyDequantize()(before) is before
