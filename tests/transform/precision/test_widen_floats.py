"""Narrow floats computed in float32: which operators, where values are rounded, and what stays as it is stored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import kernelyard as ky
from kernelyard.ir import Call, Constant, FunctionBuilder, IRModule, verify
from kernelyard.ir.types import tensors_of
from kernelyard.patterns.dequantized import narrow_weights
from kernelyard.testing.reference import evaluate
from kernelyard.testing.strategies import modules
from kernelyard.transform import DeadCodeElimination, WidenFloats
from kernelyard.transform.pass_infra.pass_base import WhereChanged, module_pass
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.precision.to_mixed_precision import ToMixedPrecision

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 6)).astype(np.float16)
W = RNG.standard_normal((6, 6)).astype(np.float16)


def widened(function, inputs=(X,)):
    """Ops and the dtypes of their results; the signature stays, and the meaning up to roundings."""
    before = verify(IRModule({"main": function}))
    after = verify(DeadCodeElimination()(verify(WidenFloats()(before))))
    new = after["main"]
    assert [p.type for p in new.params] == [p.type for p in function.params]
    assert new.result_type == function.result_type
    for one, other in zip(evaluate(before, list(inputs)), evaluate(after, list(inputs)), strict=True):
        np.testing.assert_allclose(other.astype(np.float64), one.astype(np.float64), rtol=2e-2, atol=2e-2)
    values = [binding.value for binding in new.bindings if isinstance(binding.value, Call)]
    return [(value.op_name, tensors_of(value.type)[0].dtype) for value in values]


def test_a_chain_is_widened_once_and_rounded_once():
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("exp", b.op("sin", b.input("x", X.shape, "float16"))))
    assert widened(b.function(y)) == [
        ("astype", "float32"),
        *((op, "float32") for op in ("sin", "exp", "nn.relu")),
        ("astype", "float16"),
    ]


def test_casts_around_a_delicate_operator_go():
    b = FunctionBuilder()
    y = b.op("astype", b.op("exp", b.input("x", X.shape, "float16")), dtype="float32")
    assert widened(b.function(b.op("nn.softmax", y, axis=1))) == [
        ("astype", "float32"),
        ("exp", "float32"),
        ("nn.softmax", "float32"),
    ]


@pytest.mark.parametrize("op", ["ceil", "floor", "round", "trunc"])
def test_what_jumps_reads_rounded_values(op: str):
    """2048.5 is 2048 in float16, which has no 2049 either: its ceiling is 2048."""
    b = FunctionBuilder()
    x = np.array([[2048]], np.float16)
    y = b.op(op, b.op("add", b.input("x", x.shape, "float16"), np.float16(0.5)))
    function = b.function(y)
    rounding = ("astype", "float16")
    assert widened(function, (x,))[-5:] == [
        ("add", "float32"),
        rounding,
        ("astype", "float32"),
        (op, "float32"),
        rounding,
    ]
    module = WidenFloats()(IRModule({"main": function}))
    assert evaluate(module, [x])[0].tolist() == [[2048]]


def test_the_models_own_rounding_stays():
    b = FunctionBuilder()
    y = b.op("astype", b.input("x", X.shape), dtype="float16")
    ops = widened(b.function(b.op("exp", y)), [X.astype(np.float32) + np.float32(1e-4)])
    assert ops == [("astype", "float16"), ("astype", "float32"), ("exp", "float32"), ("astype", "float16")]


def test_a_table_is_read_as_it_is_stored():
    b = FunctionBuilder()
    rows = b.op("take", X, b.input("i", (3,), "int64"), axis=0)
    ops = widened(b.function(b.op("exp", rows)), [np.array([2, 0, 1])])
    assert ops == [("take", "float16"), ("astype", "float32"), ("exp", "float32"), ("astype", "float16")]


def test_decisions_are_made_of_rounded_numbers():
    b = FunctionBuilder()
    y = b.op("exp", b.input("x", X.shape, "float16"))
    ops = widened(b.function(b.op("argmax", y, axis=1, keepdims=False)))
    assert [op for op in ops if op[0] != "argmax"][-1] == ("astype", "float16")


def test_several_results_are_widened_together():
    b = FunctionBuilder()
    parts = b.op("split", b.op("exp", b.input("x", X.shape, "float16")), sections=(3, 3), axis=1)
    ops = widened(b.function(b.op("add", b.get(parts, 0), b.get(parts, 1))))
    assert [op for op, _ in ops] == ["astype", "exp", "split", "add", "astype"]


def test_other_floats_and_named_dtypes_are_left_alone():
    b = FunctionBuilder()
    function = b.function(b.op("exp", b.input("x", X.shape, "bfloat16")))
    module = IRModule({"main": function})
    assert WidenFloats(["float16"])(module) is module


def test_what_follows_runs_only_where_something_changed():
    ran = []

    @module_pass("note")
    def note(module, context):
        ran.append(module)
        return module

    passes = WhereChanged([WidenFloats(), note])
    for dtype, count in (("float32", 0), ("float16", 1)):
        b = FunctionBuilder()
        passes(IRModule({"main": b.function(b.op("exp", b.input("x", X.shape, dtype)))}))
        assert len(ran) == count


def test_weights_stay_narrow_where_a_kernel_reads_them():
    table = RNG.standard_normal((256, 1024)).astype(np.float16)
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("matmul", b.input("x", (2, 256), "float16"), table))})
    simplified = get_pipeline("widen_floats")(module)
    assert len(narrow_weights(simplified["main"])) == 1
    (product,) = (
        binding.value
        for binding in get_pipeline("legalize")(simplified)["main"].bindings
        if len(binding.value.args) == 2
    )
    assert product.args[1].tensor_type.dtype == "float16"


@pytest.mark.parametrize("backends", [[], "auto"], ids=str)
def test_a_float16_network(backends):
    """Nearer to float32 than with a rounding after each operator; half of the weights' bytes."""
    weights = [(RNG.standard_normal((512, 512)) / 23).astype(np.float16) for _ in range(3)]

    def network(dtype):
        b = FunctionBuilder()
        y = b.input("x", (4, 512), dtype)
        for weight in weights:
            y = b.op("nn.relu", b.op("matmul", y, weight.astype(dtype)))
        return IRModule({"main": b.function(y)})

    x = RNG.standard_normal((4, 512)).astype(np.float16)
    exe = ky.compile(network("float16"), backends=backends)
    result = exe(x).numpy()
    assert result.dtype == np.float16
    (exact,) = evaluate(network("float32"), [x.astype(np.float32)])
    (rounded,) = evaluate(network("float16"), [x])
    assert np.abs(result - exact).max() <= np.abs(rounded - exact).max()
    assert {array.dtype.name for array in exe.constants.values() if array.size >= 512 * 512} == {"float16"}


def test_convolutions_read_float32():
    filters = (RNG.standard_normal((64, 32, 3, 3)) / 17).astype(np.float16)
    b = FunctionBuilder()
    x = b.input("x", (1, 32, 8, 8), "float16")
    module = IRModule({"main": b.function(b.op("nn.conv2d", x, filters, padding=(1, 1, 1, 1)))})
    legalized = get_pipeline("legalize")(get_pipeline("widen_floats")(module))
    constants = [
        arg for binding in legalized["main"].bindings for arg in binding.value.args if isinstance(arg, Constant)
    ]
    assert [constant.data.dtype.name for constant in constants] == ["float32"]


@settings(deadline=None, max_examples=30)
@given(modules())
def test_random_programs_keep_their_meaning(program):
    """Values that mixed precision has made narrow come out as they went in."""
    narrow = get_pipeline("clean")(ToMixedPrecision("bfloat16")(program.module))
    after = verify(get_pipeline("widen_floats")(narrow))
    for one, other in zip(evaluate(program.module, program.inputs), evaluate(after, program.inputs), strict=True):
        if np.isfinite(one).all():
            scale = np.abs(one).max(initial=1)
            np.testing.assert_allclose(other / scale, one / scale, atol=0.2)
