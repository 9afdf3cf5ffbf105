"""Passes that fit anywhere keep the meaning and the form of random modules, and their text can be read again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from pass_checker import branching

from kernelyard.ir import parse_module, to_text, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard.transform import (
    CombineScales,
    ConvertLayout,
    CropConvolutions,
    FoldScaleAxis,
    FuseTransposeConv,
    FuseTransposeMatmul,
    HoistPermutations,
    HoistSlices,
    HoistStrides,
    PointwiseToMatmul,
    SimplifyInference,
    SinkReshape,
)
from kernelyard.transform.pipelines import get_pipeline

PASSES = [
    ConvertLayout(),
    CropConvolutions(),
    FoldScaleAxis(),
    FuseTransposeConv(),
    FuseTransposeMatmul(),
    CombineScales(),
    HoistPermutations(),
    HoistSlices(),
    HoistStrides(),
    PointwiseToMatmul(),
    SimplifyInference(),
    SinkReshape(),
]


@pytest.mark.parametrize("pass_", [*PASSES, get_pipeline("simplify"), get_pipeline("legalize")], ids=lambda p: p.name)
@settings(max_examples=15, deadline=None)
@given(program=modules(symbolic=True), flag=strategies.booleans())
def test_random_modules_with_branches(pass_, program, flag):
    before = branching(program.module)
    after = verify(pass_(before))
    assert_same_meaning(before, after, [*program.inputs, np.array(flag)])


@pytest.mark.parametrize("pass_", PASSES, ids=lambda pass_: pass_.name)
@settings(max_examples=25, deadline=None)
@given(program=modules(symbolic=True))
def test_random_modules(pass_, program):
    after = verify(pass_(program.module))
    assert_same_meaning(program.module, after, program.inputs)
    assert to_text(parse_module(to_text(after))) == to_text(after)
