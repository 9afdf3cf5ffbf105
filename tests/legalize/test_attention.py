"""Rules of attention where sizes are known of some operands alone."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.pipelines import get_pipeline

N = symbol("n")


@pytest.mark.parametrize("batches", [(N, 2, 2), (2, N, 2), (2, 2, N), (N, N, 2), (N, N, N)], ids=str)
def test_a_batch_that_is_known_of_one_operand_is_known(batches: tuple[object, ...]) -> None:
    b = FunctionBuilder()
    shapes = [(4, 4, 3), (6, 2, 3), (6, 2, 5)]
    operands = [b.input(name, (n, *rest)) for name, n, rest in zip("qkv", batches, shapes, strict=True)]
    module = IRModule({"main": b.function(b.op("nn.attention", *operands))})
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((2, *rest)).astype(np.float32) for rest in shapes]
    assert_same_meaning(module, get_pipeline("legalize")(module), inputs)
