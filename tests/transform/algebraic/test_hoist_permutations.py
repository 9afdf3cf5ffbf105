"""Rows that are put in order before a matrix product, not after it."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import Function, FunctionBuilder
from kernelyard.transform.algebraic.hoist_permutations import HoistPermutations

RNG = np.random.default_rng(5)
HEADS, SIZE, WIDTH = 2, 4, 6
N = dims.symbol("n")


def projection(
    length: Dim = 7, batch: Dim = 3, bias: bool = False, axes: tuple[int, ...] = (1, 0, 2), reader: str = ""
) -> Function:
    """Return the last product of multi-head attention as PyTorch has it: length before batch, then batch first."""
    b = FunctionBuilder()
    x = b.op("permute_dims", b.input("x", (batch, HEADS, length, SIZE)), axes=(2, 0, 1, 3))
    rows = b.op("reshape", x, shape=(length * batch, HEADS * SIZE))
    product = b.op("matmul", rows, RNG.standard_normal((HEADS * SIZE, WIDTH)).astype(np.float32))
    if bias:
        product = b.op("add", product, RNG.standard_normal(WIDTH).astype(np.float32))
    result = b.op("permute_dims", b.op("reshape", product, shape=(length, batch, WIDTH)), axes=axes)
    return b.function(result, b.op(reader, product)) if reader else b.function(result)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(7, 3), (N, 3), (7, N)])
def test_rows_are_permuted_once_before_the_product(check, sizes, bias) -> None:
    function = check.clean(HoistPermutations(), projection(*sizes, bias=bias))
    assert check.ops(function) == ["permute_dims", "reshape", "matmul"] + ["add"] * bias


def test_columns_that_move_stay(check) -> None:
    function = projection(axes=(1, 2, 0))
    assert check.ops(check(HoistPermutations(), function)) == check.ops(function)


def test_a_product_that_somebody_else_reads_stays(check) -> None:
    function = projection(reader="nn.relu")
    assert check.ops(check(HoistPermutations(), function)) == check.ops(function)


def test_rows_that_nobody_permuted_before_stay(check) -> None:
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (7, 3, 8)), RNG.standard_normal((8, WIDTH)).astype(np.float32))
    function = b.function(b.op("permute_dims", product, axes=(1, 0, 2)))
    assert check.ops(check(HoistPermutations(), function)) == ["matmul", "permute_dims"]
