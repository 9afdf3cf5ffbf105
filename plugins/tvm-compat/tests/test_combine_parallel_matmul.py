"""Products of one left operand."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder
from kernelyard_tvm_compat.combine_parallel_matmul import CombineParallelMatmul

N = dims.symbol("n")
COMBINED = ["concat", "matmul", "split"]


def weight(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def parallel(b, x, count, bias=None, activation=None):
    """Products with weights of different widths."""
    outs = []
    for i in range(count):
        y = b.op("matmul", x, weight(6, i + 2, seed=i))
        y = b.op("add", y, weight(i + 2)) if bias and i in bias else y
        outs.append(b.op(activation[i], y) if activation else y)
    return outs


def function_of(shape, *args, **kwargs):
    b = FunctionBuilder()
    return b.function(*parallel(b, b.input("x", shape), *args, **kwargs))


@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 6), (6,), (N, 6)])
@pytest.mark.parametrize("count", [2, 3])
def test_simple(check, shape, count):
    assert check.ops(check(CombineParallelMatmul(), function_of(shape, count))) == COMBINED


def test_bias(check):
    after = check(CombineParallelMatmul(), function_of((4, 6), 3, bias={0, 1, 2}))
    assert check.ops(after) == ["concat", "matmul", "concat", "add", "split"]


def test_bias_of_some_stays_outside(check):
    after = check(CombineParallelMatmul(), function_of((4, 6), 3, bias={0, 2}))
    assert check.ops(after) == [*COMBINED, "add", "add"]


def test_bias_and_activation(check):
    after = check(CombineParallelMatmul(), function_of((4, 6), 2, bias={0, 1}, activation=["nn.relu"] * 2))
    assert check.ops(after) == ["concat", "matmul", "concat", "add", "nn.relu", "split"]


def test_different_activations_stay_outside(check):
    after = check(CombineParallelMatmul(), function_of((4, 6), 2, bias={0, 1}, activation=["nn.relu", "nn.gelu"]))
    assert check.ops(after) == ["concat", "matmul", "concat", "add", "split", "nn.relu", "nn.gelu"]


def test_an_intermediate_that_is_read_elsewhere_stops_the_epilogue(check):
    b = FunctionBuilder()
    x = b.input("x", (4, 6))
    first, second = parallel(b, x, 2)
    outs = [b.op("nn.relu", first), b.op("nn.relu", second)]
    assert check.ops(check(CombineParallelMatmul(), b.function(*outs, first))) == [*COMBINED, "nn.relu", "nn.relu"]


def test_rhs_batched(check):
    b = FunctionBuilder()
    x = b.input("x", (2, 4, 6))
    outs = [b.op("matmul", x, b.input(f"w{i}", (2, 6, 3))) for i in range(2)]
    other = b.op("matmul", x, b.input("w2", (6, 3)))
    assert check.ops(check(CombineParallelMatmul(), b.function(*outs, other))) == [*COMBINED, "matmul"]


def test_a_check_decides(check):
    function = function_of((4, 6), 3)
    seen = []

    def few(products):
        seen.append([product.tensor_type.shape for product in products])
        return len(products) < 3

    assert check(CombineParallelMatmul(few), function) is function
    assert seen == [[(4, 2), (4, 3), (4, 4)]]


def test_operands_that_come_later_are_left_alone(check):
    """Guards against wrong order of definitions (TVM's combine_matmul_emit_order)."""
    b = FunctionBuilder()
    x = b.input("x", (6, 6))
    first = b.op("matmul", x, weight(6, 6))
    second = b.op("matmul", x, weight(6, 3, seed=1))
    third = b.op("matmul", x, b.op("tanh", first))
    assert check.ops(check(CombineParallelMatmul(), b.function(second, third))) == [*COMBINED, "tanh", "matmul"]


def test_a_product_that_feeds_another_of_the_same_operand(check):
    b = FunctionBuilder()
    x = b.input("x", (6, 6))
    first = b.op("matmul", x, weight(6, 6))
    function = b.function(b.op("matmul", x, first))
    assert check(CombineParallelMatmul(), function) is function


def test_two_groups(check):
    b = FunctionBuilder()
    x = b.input("x", (4, 6))
    left = parallel(b, x, 2)
    right = parallel(b, b.op("tanh", x), 2)
    after = check(CombineParallelMatmul(), b.function(*left, *right))
    assert check.ops(after) == [*COMBINED, "tanh", *COMBINED]


def test_one_product_alone_is_no_group(check):
    function = function_of((4, 6), 1)
    assert check(CombineParallelMatmul(), function) is function


def test_dtypes_keep_apart(check):
    b = FunctionBuilder()
    x, y = b.input("x", (4, 6)), b.input("y", (4, 6), "float64")
    outs = [b.op("matmul", x, weight(6, 3)), b.op("matmul", y, weight(6, 3).astype(np.float64))]
    function = b.function(*outs)
    assert check(CombineParallelMatmul(), function) is function


SCENARIOS = {
    "CombineParallelMatmul: simple": test_simple,
    "CombineParallelMatmul: bias": test_bias,
    "CombineParallelMatmul: bias_and_activation": test_bias_and_activation,
    "CombineParallelMatmul: rhs_batched": test_rhs_batched,
    "CombineParallelMatmul: a check decides": test_a_check_decides,
}
