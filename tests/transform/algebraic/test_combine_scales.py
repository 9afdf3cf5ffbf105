"""Numbers that operands of a matrix product are multiplied by."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.algebraic.combine_scales import CombineScales
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

PASS = Sequential([CombineScales(), DeadCodeElimination()])
N = dims.symbol("n")


class Product:
    """A product of two inputs, multiplied by numbers first."""

    def __init__(self, left, right, a=None, b=None, dtype="float32"):
        self.b = FunctionBuilder()
        self.operands = [self.b.input("x", left, dtype), self.b.input("y", right, dtype)]
        self.scaled = [self._scaled(x, number) for x, number in zip(self.operands, (a, b), strict=True)]

    def _scaled(self, x, number):
        if number is None:
            return x
        return self.b.op("multiply", x, np.asarray(number, x.tensor_type.dtype))

    def after(self, *more):
        module = verify(IRModule({"main": self.b.function(self.b.op("matmul", *self.scaled), *more)}))
        after = verify(PASS(module))
        rng = np.random.default_rng(0)
        shapes = [[dims.evaluate(dim, {"n": 5}) for dim in x.tensor_type.shape] for x in self.operands]
        inputs = [
            rng.integers(-4, 5, s).astype(x.tensor_type.dtype) for s, x in zip(shapes, self.operands, strict=True)
        ]
        assert_same_meaning(module, after, inputs)
        return after["main"]

    def places(self):
        """Which operands are multiplied by what, after the pass."""
        bindings = self.after().bindings
        names = {binding.var: binding.value for binding in bindings}
        found = {}
        for position, operand in enumerate(bindings[-1].value.args):
            if operand in names:
                found[position] = float(names[operand].args[1].data)
        return found


@pytest.mark.parametrize(
    ("left", "right", "a", "b", "places"),
    [
        ((2, 4, 8), (2, 8, 4), 0.5, 0.5, {0: 0.25}),
        ((4, 8), (8, 6), 0.5, 3.0, {0: 1.5}),
        ((9, 8), (8, 6), 0.5, 3.0, {1: 1.5}),
        ((9, 8), (8, 6), 0.5, None, {1: 0.5}),
        ((4, 8), (8, 6), None, 0.5, {0: 0.5}),
        ((N, 8), (8, N), 0.5, 0.25, {0: 0.125}),
    ],
)
def test_they_meet_on_the_smaller_operand(left, right, a, b, places):
    assert Product(left, right, a, b).places() == places


@pytest.mark.parametrize(
    ("left", "right", "a", "b", "places"),
    [
        ((4, 8), (8, 6), 0.5, None, {0: 0.5}),
        ((4, 8), (8, 4), None, 0.5, {1: 0.5}),
        ((N, 8), (8, 6), None, 0.5, {1: 0.5}),
        ((4, 8), (8, 6), 1e-30, 1e-20, {0: 1e-30, 1: 1e-20}),
        ((4, 8), (8, 6), 1e30, 1e30, {0: 1e30, 1: 1e30}),
        ((4, 8), (8, 6), 0.0, 2.0, {0: 0.0, 1: 2.0}),
    ],
)
def test_they_stay(left, right, a, b, places):
    assert Product(left, right, a, b).places() == pytest.approx(places)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_16_bits_stay(dtype):
    assert Product((4, 8), (8, 6), 0.5, 0.5, dtype).places() == {0: 0.5, 1: 0.5}


def test_integers_stay():
    assert Product((4, 8), (8, 6), 2, 3, "int32").places() == {0: 2, 1: 3}


def test_what_is_read_elsewhere_stays():
    product = Product((4, 8), (8, 6), 0.5, 0.5)
    function = product.after(product.scaled[1])
    assert [binding.value.op_name for binding in function.bindings] == ["multiply", "multiply", "matmul"]


def test_one_operand_taken_twice():
    product = Product((4, 4), (4, 4), 0.5)
    product.scaled[1] = product.scaled[0]
    product.after()


def test_a_vector_of_factors_stays():
    b = FunctionBuilder()
    x, y = b.input("x", (4, 8)), b.input("y", (8, 6))
    scaled = b.op("multiply", y, np.arange(6, dtype=np.float32))
    module = IRModule({"main": b.function(b.op("matmul", x, scaled))})
    assert CombineScales()(module) is module


def test_scales_of_weights_of_few_bits_stay():
    b = FunctionBuilder()
    x = b.op("multiply", b.input("x", (2, 8)), np.float32(0.5))
    codes = np.arange(-24, 24, dtype=np.int8).reshape(8, 6)
    weight = b.op("multiply", b.op("astype", codes, dtype="float32"), np.float32(0.01))
    module = IRModule({"main": b.function(b.op("matmul", x, weight))})
    assert CombineScales()(module) is module
