"""FuseTIR: groups become PrimFuncs, and what is worth storing in between is stored."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from kernelyard import dims
from kernelyard.ir import Call, FunctionBuilder, GlobalVar, IRModule, parse_module, to_text, verify
from kernelyard.ops.interpreter import run
from kernelyard.testing.strategies import RandomProgram, modules
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.fusion import fuse_tir
from kernelyard.transform.fusion.fuse_ops import FuseOps
from kernelyard.transform.fusion.fuse_tir import FuseTIR, fuse
from kernelyard.transform.fusion.kernel_groups import is_primitive
from kernelyard.transform.lowering.annotate_tir_op_pattern import AnnotateTIROpPattern
from kernelyard.transform.lowering.legalize_ops import LegalizeOps
from kernelyard.transform.pass_infra.pass_base import Sequential

GROUPING = Sequential([LegalizeOps(), AnnotateTIROpPattern(), FuseOps()], "grouping")


def grouped(builder: FunctionBuilder, *results) -> IRModule:
    return GROUPING(IRModule({"main": builder.function(*results)}))


def only_function(module: IRModule) -> PrimFunc:
    (found,) = (f for f in module.functions.values() if isinstance(f, PrimFunc))
    return found


def attention_scores() -> tuple[FunctionBuilder, object]:
    b = FunctionBuilder()
    n = dims.symbol("n")
    scores, mask = b.input("scores", (2, n, n)), b.input("mask", (2, 1, n))
    return b, b.op("nn.softmax", b.op("add", b.op("multiply", scores, 0.125), mask), axis=2)


def test_groups_are_functions_of_the_module_in_between():
    b, y = attention_scores()
    module = grouped(b, y)
    verify(module)
    groups = [name for name, f in module.functions.items() if is_primitive(f)]
    assert groups == ["fused_multiply_add_softmax"]
    assert to_text(parse_module(to_text(module))) == to_text(module)


def test_group_becomes_one_function_and_its_parts_go():
    b, y = attention_scores()
    module = FuseTIR()(grouped(b, y))
    verify(module)
    assert list(module.functions) == ["main", "fused_multiply_add_softmax"]
    function = only_function(module)
    assert function.attrs["ops"] == ("multiply", "add", "nn.softmax")
    assert function.attrs["op_pattern"] == "reduction"
    (binding,) = module.graph_functions()["main"].bindings
    assert isinstance(binding.value, Call)
    assert isinstance(binding.value.args[0], GlobalVar)


def test_cheap_parts_are_computed_where_they_are_read():
    b, y = attention_scores()
    function = only_function(FuseTIR()(grouped(b, y)))
    names = [buffer.name.rpartition("_")[2] for buffer in function.locals]
    assert names == ["largest", "powers", "total"]


def test_text_of_a_fused_function(golden):
    b, y = attention_scores()
    golden.check(to_text(FuseTIR()(grouped(b, y))))


def test_nothing_to_fuse_is_no_change():
    b = FunctionBuilder()
    module = grouped(b, b.op("exp", b.input("x", (4,))))
    assert FuseTIR()(module) is module


def test_equal_groups_share_one_function():
    b = FunctionBuilder()
    y = b.input("x", (4, 8))
    for seed in range(3):
        weight = np.random.default_rng(seed).random((8, 8), np.float32)
        y = b.op("nn.relu", b.op("add", b.op("matmul", y, weight), np.full(8, seed, np.float32)))
    module = FuseTIR()(grouped(b, y))
    assert len(only_function(module).params) == 4


def test_operand_used_twice_is_one_parameter():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    function = only_function(FuseTIR()(grouped(b, b.op("multiply", b.op("exp", x), x))))
    assert [buffer.name for buffer in function.params] == ["p0", "out0"]


def test_large_constants_stay_arguments():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    function = only_function(FuseTIR()(grouped(b, b.op("exp", b.op("add", x, np.ones(8, np.float32))))))
    assert len(function.inputs) == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_after_every_op(dtype: str):
    b = FunctionBuilder()
    x = b.input("x", (64,), dtype)
    before = IRModule({"main": b.function(b.op("exp", b.op("sin", b.op("multiply", x, 1.7))))})
    after = FuseTIR()(GROUPING(before))
    numpy_dtype = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    array = np.linspace(-3, 3, 64).astype(numpy_dtype)
    np.testing.assert_array_equal(run(after, [array])[0].astype(np.float32), run(before, [array])[0].astype(np.float32))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=modules(max_ops=10))
def test_both_steps_keep_the_meaning(program: RandomProgram):
    expected = run(program.module, program.inputs)
    between = GROUPING(program.module)
    verify(between)
    for module in (between, FuseTIR()(between)):
        for found, wanted in zip(run(module, program.inputs), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_equal_groups_are_fused_once(monkeypatch):
    """Networks repeat their layers, and the chains of small operators between them."""
    b = FunctionBuilder()
    grouped_module = grouped(b, *(b.op("exp", b.op("negative", b.input(name, (4, 8)))) for name in "xy"))
    fused: list[object] = []

    def count(group, module):
        fused.append(group)
        return fuse(group, module)

    monkeypatch.setattr(fuse_tir, "fuse", count)
    module = FuseTIR()(grouped_module)
    assert len(fused) == 1
    assert [f for f in grouped_module.functions.values() if is_primitive(f)][:1] == fused
    x, y = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 4, 8)
    for found, wanted in zip(run(module, [x, y]), (np.exp(-x), np.exp(-y)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
