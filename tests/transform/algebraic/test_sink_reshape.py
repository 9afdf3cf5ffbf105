"""Epilogues of matrix products with a reshape between: they come to stand next to the product."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.algebraic.sink_reshape import SinkReshape
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

PASS = Sequential([SinkReshape(), DeadCodeElimination()])
W = np.random.default_rng(0).standard_normal((8, 6), dtype=np.float32)
BIAS = np.arange(6, dtype=np.float32)
N = dims.symbol("n")


def ops(module):
    return [binding.value.op_name for binding in module["main"].bindings]


def check(epilogue, *expected, shape=(2, 3, 6), rows=6, inputs=()):
    """`epilogue` of a reshaped product becomes the operators `expected`, and means the same."""
    b = FunctionBuilder()
    x = b.input("x", (rows, 8))
    others = [b.input(f"y{i}", each) for i, each in enumerate(inputs)]
    product = b.op("reshape", b.op("matmul", x, W), shape=shape)
    module = verify(IRModule({"main": b.function(epilogue(b, product, *others))}))
    after = verify(PASS(module))
    assert ops(after) == list(expected)
    rng = np.random.default_rng(1)
    sizes = [[dims.evaluate(dim, {"n": 2}) for dim in param.tensor_type.shape] for param in module["main"].params]
    assert_same_meaning(module, after, [rng.standard_normal(size, dtype=np.float32) for size in sizes])
    return after


@pytest.mark.parametrize("bias", [BIAS, BIAS.reshape(1, 1, 6), BIAS[:1], np.float32(2)], ids=lambda b: str(b.shape))
@pytest.mark.parametrize("first", ["product", "bias"])
def test_a_bias_and_an_activation(bias, first):
    def epilogue(b, y):
        return b.op("nn.gelu", b.op("add", *((y, bias) if first == "product" else (bias, y))))

    after = check(epilogue, "matmul", "add", "nn.gelu", "reshape")
    assert after["main"].bindings[1].var.tensor_type.shape == (6, 6)


def test_a_bias_that_is_a_parameter():
    check(lambda b, y, bias: b.op("add", y, bias), "matmul", "add", "reshape", inputs=[(6,)])
    check(lambda b, y, bias: b.op("add", y, bias), "matmul", "reshape", "add", "reshape", inputs=[(1, 1, 6)])


def test_a_residual_is_reshaped_the_other_way():
    after = check(lambda b, y, r: b.op("nn.relu", b.op("add", y, r)), "matmul", "reshape", "add", "nn.relu", "reshape", inputs=[(2, 3, 6)])  # fmt: skip
    assert after["main"].bindings[1].value.args[0] is after["main"].params[1]


def test_two_products():
    def epilogue(b, y, z):
        other = b.op("reshape", b.op("matmul", z, W), shape=(2, 3, 6))
        return b.op("multiply", y, b.op("sigmoid", other))

    check(epilogue, "matmul", "matmul", "sigmoid", "multiply", "reshape", inputs=[(6, 8)])


def test_symbolic_sizes():
    check(lambda b, y: b.op("nn.relu", b.op("add", y, BIAS)), "matmul", "add", "nn.relu", "reshape", shape=(N, 1, 6), rows=N)  # fmt: skip


def test_a_function_with_another_dtype():
    check(lambda b, y: b.op("astype", b.op("nn.relu", y), dtype="float16"), "matmul", "nn.relu", "astype", "reshape")


@pytest.mark.parametrize(
    ("epilogue", "expected", "shape"),
    [
        (lambda b, y: b.op("add", y, np.arange(3, dtype=np.float32).reshape(3, 1)), ("reshape", "add"), (2, 3, 6)),
        (lambda b, y: b.op("add", y, np.arange(3, dtype=np.float32)), ("reshape", "add"), (6, 2, 3)),
        (lambda b, y: b.op("add", y, np.ones((4, 2, 3, 6), np.float32)), ("reshape", "add"), (2, 3, 6)),
        (lambda b, y: b.op("add", b.op("sin", y), y), ("reshape", "sin", "add"), (2, 3, 6)),
        (lambda b, y: b.op("nn.softmax", y, axis=2), ("reshape", "nn.softmax"), (2, 3, 6)),
    ],
    ids=["one for each row", "columns that are split", "a result that is larger", "read twice", "not elementwise"],
)
def test_what_cannot_change_places(epilogue, expected, shape):
    check(epilogue, "matmul", *expected, shape=shape)


def test_values_that_are_needed_elsewhere_stay():
    for count in (1, 2):
        b = FunctionBuilder()
        product = b.op("matmul", b.input("x", (6, 8)), W)
        reshaped = b.op("reshape", product, shape=(2, 3, 6))
        module = IRModule({"main": b.function(b.op("nn.relu", reshaped), (product, reshaped)[count - 1])})
        assert SinkReshape()(module) is module


def test_reshapes_of_other_things_stay():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.relu", b.op("reshape", b.input("x", (6, 8)), shape=(48,))))})
    assert SinkReshape()(module) is module
