"""Passes that fit anywhere keep the meaning and the form of random modules, and their text can be read again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from kernelyard.ir import parse_module, to_text, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard.transform import (
    AdjustMatmulOrder,
    CanonicalizeBindings,
    CombineParallelMatmul,
    ConvertLayout,
    DecomposeOpsForInference,
    ExpandMatmulOfSum,
    FuseTransposeMatmul,
    HoistStrides,
    ReorderPermuteDimsAfterConcat,
    ReorderTakeAfterMatmul,
    SimplifyInference,
    SinkReshape,
)

PASSES = [
    AdjustMatmulOrder(),
    CanonicalizeBindings(),
    CombineParallelMatmul(),
    ConvertLayout(),
    DecomposeOpsForInference(),
    ExpandMatmulOfSum(),
    FuseTransposeMatmul(),
    ReorderPermuteDimsAfterConcat(),
    ReorderTakeAfterMatmul(),
    HoistStrides(),
    SimplifyInference(),
    SinkReshape(),
]


@pytest.mark.parametrize("pass_", PASSES, ids=lambda pass_: pass_.name)
@settings(max_examples=25, deadline=None)
@given(program=modules(symbolic=True))
def test_random_modules(pass_, program):
    after = verify(pass_(program.module))
    assert_same_meaning(program.module, after, program.inputs)
    assert to_text(parse_module(to_text(after))) == to_text(after)
