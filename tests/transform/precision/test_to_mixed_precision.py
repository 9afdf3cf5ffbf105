"""Which operators become narrow, and how far the results move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from kernelyard import dims
from kernelyard.errors import PassError
from kernelyard.ir import Call, FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import evaluate
from kernelyard.testing.strategies import modules
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.precision.to_mixed_precision import ToMixedPrecision

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 6), dtype=np.float32)
W = RNG.standard_normal((6, 6), dtype=np.float32)
ROUNDING = {"float16": 2e-2, "bfloat16": 1e-1}


def narrowed(function, dtype="float16", keep=(), inputs=(X,)):
    """Ops and dtypes after the pass; parameters, results and, roughly, values stay."""
    before = verify(IRModule({"main": function}))
    after = verify(get_pipeline("clean")(verify(ToMixedPrecision(dtype, keep)(before))))
    new = after["main"]
    assert [p.type for p in new.params] == [p.type for p in function.params]
    assert new.result_type == function.result_type
    for one, other in zip(evaluate(before, list(inputs)), evaluate(after, list(inputs)), strict=True):
        np.testing.assert_allclose(other, one, rtol=ROUNDING[dtype], atol=5 * ROUNDING[dtype])
    values = [binding.value for binding in new.bindings if isinstance(binding.value, Call)]
    return [(value.op_name, value.args[0].tensor_type.dtype) for value in values]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_chain_is_cast_once_in_and_once_out(dtype):
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("add", b.op("matmul", b.input("x", X.shape), W), W[0]))
    ops = narrowed(b.function(b.op("matmul", y, W)), dtype)
    assert ops == [
        ("astype", "float32"),
        *((op, dtype) for op in ("matmul", "add", "nn.relu", "matmul")),
        ("astype", dtype),
    ]


def test_what_is_delicate_stays_wide():
    b = FunctionBuilder()
    y = b.op("exp", b.op("matmul", b.input("x", X.shape), W))
    y = b.op("divide", y, b.op("sum", y, axes=(1,), keepdims=True))
    ops = narrowed(b.function(b.op("matmul", y, W)))
    assert {op: dtype for op, dtype in ops if op in ("exp", "sum", "divide")} == dict.fromkeys(
        ("exp", "sum", "divide"), "float32"
    )
    assert [op for op, _ in ops].count("astype") == 4


@pytest.mark.parametrize("op", ["nn.softmax", "nn.layer_norm", "mean"])
def test_rows_of_narrow_operands_are_narrow(op):
    """They compute wider than their operands and results are."""
    b = FunctionBuilder()
    y = b.op("matmul", b.input("x", X.shape), W)
    given = {"nn.softmax": {"axis": 1}, "nn.layer_norm": {"axes": (1,), "epsilon": 1e-5}, "mean": {"axes": (0,)}}
    vectors = (W[0], W[1]) if op == "nn.layer_norm" else ()
    assert (op, "float16") in narrowed(b.function(b.op(op, y, *vectors, **given[op])))


def test_operators_without_a_narrow_operand_stay_wide():
    b = FunctionBuilder()
    function = b.function(b.op("nn.relu", b.input("x", X.shape)))
    assert ToMixedPrecision()(IRModule({"main": function}))["main"] is function


def test_a_wide_operand_keeps_an_addition_wide():
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    ops = narrowed(b.function(b.op("add", b.op("matmul", x, W), b.op("exp", x))))
    assert ("add", "float32") in ops


@pytest.mark.parametrize(("channels", "dtype"), [(1, "float32"), (2, "float16")])
def test_convolutions_of_one_channel_stay_wide(channels, dtype):
    b = FunctionBuilder()
    w = RNG.standard_normal((4, channels, 3), dtype=np.float32)
    feed = RNG.standard_normal((2, channels, 8), dtype=np.float32)
    ops = narrowed(b.function(b.op("nn.conv1d", b.input("x", feed.shape), w)), inputs=(feed,))
    assert ("nn.conv1d", dtype) in ops


def test_operators_to_keep():
    b = FunctionBuilder()
    y = b.op("nn.gelu", b.op("matmul", b.input("x", X.shape), W))
    assert ("nn.gelu", "float32") in narrowed(b.function(y), keep=["nn.gelu"])
    assert ("nn.gelu", "float16") in narrowed(b.function(y))


def test_constants_are_rounded_at_once_and_overflow_keeps_the_op():
    b = FunctionBuilder()
    y = b.op("matmul", b.input("x", X.shape), W)
    ops = narrowed(b.function(b.op("multiply", y, np.full((1,), 1e-3, np.float32))))
    assert ("multiply", "float16") in ops
    huge = FunctionBuilder()
    z = huge.op("matmul", huge.input("x", X.shape), np.full((6, 6), 1e6, np.float32))
    assert narrowed(huge.function(z)) == [("matmul", "float32")]


def test_parts_of_a_narrow_tensor_are_narrow():
    b = FunctionBuilder()
    parts = b.op("split", b.op("matmul", b.input("x", X.shape), W), axis=1, sections=(2, 4))
    ops = narrowed(b.function(b.op("nn.relu", b.get(parts, 0)), b.get(parts, 1)))
    assert ("split", "float16") in ops
    assert ("nn.relu", "float16") in ops


def test_indices_and_conditions_keep_their_dtype():
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    y = b.op("matmul", x, W)
    picked = b.op("take", y, np.array([2, 0]), axis=0)
    chosen = b.op("where", b.op("greater", y, b.op("exp", x)), y, b.op("nn.relu", y))
    ops = narrowed(b.function(picked, chosen))
    assert ("take", "float16") in ops
    assert ("where", "bool") in ops


def test_other_floats_and_symbolic_sizes():
    b = FunctionBuilder()
    x = b.input("x", (dims.symbol("n"), 6), "float64")
    y = b.input("y", (dims.symbol("n"), 6))
    function = b.function(b.op("matmul", x, W.astype(np.float64)), b.op("matmul", y, W))
    ops = narrowed(function, inputs=(X.astype(np.float64), X))
    assert ("matmul", "float64") in ops
    assert ("matmul", "float16") in ops


def test_a_wide_dtype_is_refused():
    with pytest.raises(PassError, match="narrow float"):
        ToMixedPrecision("float64")


@settings(max_examples=30, deadline=None)
@given(modules(symbolic=True))
def test_random_modules_stay_well_formed(program):
    after = verify(ToMixedPrecision("bfloat16")(program.module))
    assert after["main"].result_type == program.module["main"].result_type
    evaluate(after, program.inputs)
