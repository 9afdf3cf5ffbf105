"""Functions of one quantized tensor as tables: what becomes one, with the same numbers, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checker import Checker

from kernelyard.ir import Expr, Function, FunctionBuilder, TensorType, Var
from kernelyard.ops.samples import integers
from kernelyard.transform import DeadCodeElimination, Sequential, TabulateQuantized

SCALE, ZERO = np.float32(0.05), 120
PASS = Sequential([TabulateQuantized(), DeadCodeElimination()])
SHAPE = (4, 64)  # 256 elements: every number of eight bits


def read(b: FunctionBuilder, x: Expr, dtype: str = "uint8", scale: np.float32 = SCALE) -> Var:
    return b.op("dequantize", x, scale, np.dtype(dtype).type(ZERO))


def stored(b: FunctionBuilder, y: Expr, dtype: str = "uint8", scale: float = 0.04) -> Var:
    return b.op("quantize", y, np.float32(scale), np.dtype(dtype).type(7), dtype=dtype)


def silu(b: FunctionBuilder, x: Expr) -> Var:
    """As quantizers write it: the sigmoid is stored in between."""
    gate = b.op("dequantize", stored(b, b.op("sigmoid", read(b, x)), scale=1 / 256), np.float32(1 / 256), np.uint8(7))
    return stored(b, b.op("multiply", read(b, x), gate))


def gelu(b: FunctionBuilder, x: Expr) -> Var:
    inner = b.op("erf", b.op("divide", read(b, x), np.float32(2**0.5)))
    whole = b.op("add", read(b, stored(b, inner, scale=0.01)), np.float32(1.0))
    half = b.op("multiply", read(b, x), read(b, stored(b, whole, scale=0.02)))
    return stored(b, b.op("multiply", half, np.array([0.5], np.float32)))


ACTIVATIONS: dict[str, Callable[[FunctionBuilder, Expr], Var]] = {
    "sigmoid": lambda b, x: stored(b, b.op("sigmoid", read(b, x))),
    "hard swish": lambda b, x: stored(b, b.op("nn.hard_swish", read(b, x))),
    "silu": silu,
    "gelu": gelu,
    "another scale": lambda b, x: stored(b, read(b, x)),
    "tanh of a silu": lambda b, x: stored(b, b.op("tanh", read(b, silu(b, x)))),
}


def function_of(build: Callable[[FunctionBuilder, Expr], Expr], dtype: str = "uint8") -> Function:
    b = FunctionBuilder()
    return b.function(build(b, b.parameter(TensorType(SHAPE, dtype), "x")))


def every_number(dtype: str = "uint8") -> list[np.ndarray]:
    return [np.arange(256, dtype=np.uint8).view(dtype).reshape(SHAPE)]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_one_table(name, check):
    after = check(PASS, function_of(ACTIVATIONS[name]), every_number())
    assert check.ops(after) == ["lookup"]


@pytest.mark.parametrize(("source", "target"), [("int8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
def test_signs_of_both_sides(source, target, check):
    def build(b: FunctionBuilder, x: Expr) -> Expr:
        zero = np.dtype(source).type(-3 if source == "int8" else 3)
        return stored(b, b.op("tanh", b.op("dequantize", x, SCALE, zero)), target)

    after = check(PASS, function_of(build, source), every_number(source))
    assert check.ops(after) == ["lookup"]


def test_a_stored_result_that_others_read_stays(check):
    def build(b: FunctionBuilder, x: Expr) -> Expr:
        gate = stored(b, b.op("sigmoid", read(b, x)))
        return b.op("concat", gate, stored(b, b.op("tanh", read(b, gate))), axis=0)

    after = check(PASS, function_of(build), every_number())
    assert check.ops(after) == ["lookup", "lookup", "concat"]


NOT_ONE_TABLE: dict[str, Callable[[FunctionBuilder, Expr], Expr]] = {
    "a scale for each channel": lambda b, x: stored(
        b, b.op("tanh", b.op("dequantize", x, np.full(4, SCALE), np.full(4, 3, np.uint8), axis=0))
    ),
    "a constant for each channel": lambda b, x: stored(b, b.op("tanh", b.op("add", read(b, x), np.ones((4, 1), "f4")))),
    "sums along an axis": lambda b, x: stored(b, b.op("nn.softmax", read(b, x), axis=1)),
    "another shape": lambda b, x: stored(b, b.op("tanh", b.op("sum", read(b, x), axes=(1,), keepdims=True))),
    "16 bits": lambda b, x: b.op("quantize", b.op("tanh", read(b, x)), SCALE, np.int16(0), dtype="int16"),
}


@pytest.mark.parametrize("name", NOT_ONE_TABLE)
def test_what_is_no_function_of_one_byte_stays(name, check):
    before = function_of(NOT_ONE_TABLE[name])
    assert "lookup" not in check.ops(check(PASS, before, every_number()))


def test_functions_of_two_tensors_stay(check):
    b = FunctionBuilder()
    x, y = (b.parameter(TensorType(SHAPE, "uint8"), name) for name in "xy")
    function = b.function(stored(b, b.op("tanh", b.op("add", read(b, x), read(b, y)))))
    after = check(PASS, function, [*every_number(), integers(*SHAPE, dtype="uint8", low=0, high=256)])
    assert "lookup" not in check.ops(after)


def test_a_scale_that_is_given_stays(check):
    b = FunctionBuilder()
    x, scale = b.parameter(TensorType(SHAPE, "uint8"), "x"), b.parameter(TensorType((), "float32"), "scale")
    function = b.function(stored(b, b.op("tanh", b.op("dequantize", x, scale, np.uint8(3)))))
    after = check(PASS, function, [*every_number(), np.array(0.05, np.float32)])
    assert "lookup" not in check.ops(after)


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(["tanh", "sigmoid", "nn.relu", "abs", "exp", "square", "again"]), min_size=1, max_size=6)
)
def test_any_chain_is_one_table(ops):
    def build(b: FunctionBuilder, x: Expr) -> Expr:
        y: Expr = b.op("tanh", read(b, x))
        for op in ops:
            y = read(b, stored(b, y)) if op == "again" else b.op(op, y)
        return stored(b, y)

    assert Checker.ops(Checker()(PASS, function_of(build), every_number())) == ["lookup"]
