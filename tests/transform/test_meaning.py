"""Passes that fit anywhere keep the meaning and the form of random modules, and their text can be read again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from kernelyard.ir import (
    Binding,
    Function,
    FunctionBuilder,
    IRModule,
    Tuple,
    Var,
    operands,
    parse_module,
    to_text,
    verify,
    with_operands,
)
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
    GatherScales,
    HoistStrides,
    InlinePrivateFunctions,
    ReorderPermuteDimsAfterConcat,
    ReorderTakeAfterMatmul,
    SimplifyInference,
    SinkReshape,
)
from kernelyard.transform.pipelines import get_pipeline

PASSES = [
    AdjustMatmulOrder(),
    CanonicalizeBindings(),
    CombineParallelMatmul(),
    ConvertLayout(),
    DecomposeOpsForInference(),
    ExpandMatmulOfSum(),
    FuseTransposeMatmul(),
    GatherScales(),
    ReorderPermuteDimsAfterConcat(),
    ReorderTakeAfterMatmul(),
    HoistStrides(),
    SimplifyInference(),
    SinkReshape(),
]


def branching(module: IRModule) -> IRModule:
    """What the module does, added to what it does again in the branch that is taken; the other one negates it."""
    function = module.public_functions()["main"]
    inner = InlinePrivateFunctions()(module).public_functions()["main"]
    results = function.result.fields if isinstance(function.result, Tuple) else (function.result,)
    b = FunctionBuilder()
    flag = b.input("flag", (), "bool")
    b.params[:0], b.bindings[:0] = function.params, function.bindings
    again = b.if_(flag, "then", "otherwise", function.params, function.result_type)
    sums = []
    for index, result in enumerate(results):
        other = again if function.result is result else b.get(again, index)
        sums.append(b.op("logical_xor" if result.type.dtype == "bool" else "add", result, other))
    private = {"private": True}
    then = Function(inner.params, inner.bindings, inner.result, private)
    main = b.function(*sums) if isinstance(function.result, Tuple) else b.function(sums[0])
    functions = {**module.functions, "main": main, "then": copied(then), "otherwise": copied(then)}
    return verify(IRModule(functions))


def copied(function: Function) -> Function:
    """The function over variables of its own."""
    new: dict = {p: Var(p.name, p.type) for p in function.params}
    bindings = []
    for binding in function.bindings:
        value = with_operands(binding.value, [new.get(o, o) for o in operands(binding.value)])
        new[binding.var] = Var(binding.var.name, binding.var.type)
        bindings.append(Binding(new[binding.var], value))
    result = function.result
    result = new.get(result, result) if not isinstance(result, Tuple) else Tuple([new.get(f, f) for f in result.fields])
    return Function([new[p] for p in function.params], bindings, result, function.attrs)


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
