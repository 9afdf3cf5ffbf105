"""ShareDequantize: products read one dequantize of the same numbers, elementwise operators their own."""

from __future__ import annotations

import numpy as np

from kernelyard.ir import FunctionBuilder, TensorType
from kernelyard.transform import CopyDequantize, DeadCodeElimination, Sequential, ShareDequantize

PASS = Sequential([CopyDequantize(), ShareDequantize(), DeadCodeElimination()])


def test_products_share(check):
    b = FunctionBuilder()
    x = b.parameter(TensorType((3, 4), "uint8"), "x")
    scale, zero = np.float32(0.5), np.uint8(3)
    read = b.op("dequantize", x, scale, zero)
    products = [b.op("matmul", read, np.full((4, 2), value, np.float32)) for value in (1, 2)]
    function = b.function(*products, b.op("tanh", read), b.op("exp", b.op("dequantize", x, np.float32(2), zero)))
    after = check(PASS, function)
    ops = check.ops(after)
    assert sorted(ops) == sorted(["dequantize", "matmul", "matmul", "dequantize", "tanh", "dequantize", "exp"])
    first, second = (binding.value for binding in after.bindings if binding.value.op_name == "matmul")
    assert first.args[0] is second.args[0]
