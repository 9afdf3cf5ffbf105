"""Fusion: what is grouped with what, and that the meaning stays."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import HealthCheck, given, settings

from kernelyard import dims
from kernelyard.ir import Call, FunctionBuilder, GlobalVar, IRModule, verify
from kernelyard.ops.interpreter import run
from kernelyard.testing.strategies import RandomProgram, modules
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.verify import verify as verify_primfunc
from kernelyard.transform.fusion.fuse_ops import FuseOps
from kernelyard.transform.fusion.fuse_tir import FuseTIR
from kernelyard.transform.lowering.annotate_tir_op_pattern import AnnotateTIROpPattern
from kernelyard.transform.lowering.legalize_ops import LegalizeOps
from kernelyard.transform.pass_infra.pass_base import PassContext, Sequential

FUSION = Sequential([LegalizeOps(), AnnotateTIROpPattern(), FuseOps(), FuseTIR()], "fusion")


def fused(builder: FunctionBuilder, *results) -> IRModule:
    module = FUSION(IRModule({"main": builder.function(*results)}))
    verify(module)
    return module


def kernels(module: IRModule) -> list[tuple[str, ...]]:
    """The ops of each kernel that main calls, in order."""
    return [
        module[callee.name].attrs["ops"]
        for binding in module.graph_functions()["main"].bindings
        if isinstance(binding.value, Call)
        for callee in binding.value.args[:1]
        if isinstance(callee, GlobalVar)
    ]


def primfunc(module: IRModule) -> PrimFunc:
    (found,) = (f for f in module.functions.values() if isinstance(f, PrimFunc))
    return found


def close(module: IRModule, other: IRModule, inputs: list[np.ndarray]) -> None:
    for actual, expected in zip(run(module, inputs), run(other, inputs), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_elementwise_chain_is_one_block_without_locals():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    module = fused(b, b.op("nn.relu", b.op("add", b.op("multiply", x, 2.0), np.ones(8, np.float32))))
    function = primfunc(module)
    assert kernels(module) == [("multiply", "add", "nn.relu")]
    assert len(function.blocks) == 1
    assert function.locals == ()


def test_nothing_is_fused_into_a_call_with_several_results():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    halves = b.op("split", b.op("nn.relu", x), axis=1, sections=(4, 4))
    result = b.op("add", b.get(halves, 0), b.get(halves, 1))
    original = IRModule({"main": b.function(result)})
    module = FUSION(original)
    verify(module)
    assert [set(ops) for ops in kernels(module)] == [{"nn.relu"}, {"split"}, {"add"}]
    close(module, original, [np.arange(-16, 16, dtype=np.float32).reshape(4, 8)])


def test_diamond_is_one_kernel():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    y = b.op("exp", x)
    module = fused(b, b.op("add", b.op("sin", y), b.op("cos", y)))
    assert kernels(module) == [("exp", "sin", "cos", "add")]
    assert len(primfunc(module).blocks) == 1


def test_value_that_is_returned_is_not_fused_away():
    b = FunctionBuilder()
    x = b.input("x", (4,))
    y = b.op("exp", x)
    assert kernels(fused(b, y, b.op("sin", y))) == [("exp",), ("sin",)]


def test_matmul_takes_its_epilogue_but_no_second_matmul():
    b = FunctionBuilder()
    x, w = b.input("x", (4, 8)), np.ones((8, 8), np.float32)
    y = b.op("nn.relu", b.op("add", b.op("matmul", x, w), np.ones(8, np.float32)))
    module = fused(b, b.op("tanh", b.op("matmul", y, w)))
    assert kernels(module) == [("matmul", "add", "nn.relu"), ("matmul", "tanh")]


def test_only_one_of_two_matmuls_takes_the_sum():
    b = FunctionBuilder()
    x, w = b.input("x", (4, 8)), np.ones((8, 8), np.float32)
    module = fused(b, b.op("add", b.op("matmul", x, w), b.op("matmul", b.op("exp", x), w)))
    assert sorted(kernels(module)) == [("exp",), ("matmul",), ("matmul", "add")]


def test_rows_are_normalised_in_one_kernel():
    b = FunctionBuilder()
    x = b.op("tanh", b.input("x", (4, 8)))
    centred = b.op("subtract", x, b.op("mean", x, axes=(1,), keepdims=True))
    spread = b.op("sqrt", b.op("add", b.op("mean", b.op("square", centred), axes=(1,), keepdims=True), 1e-5))
    module = fused(b, b.op("divide", centred, spread))
    assert len(kernels(module)) == 1


def test_columns_are_not_mixed_with_rows():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    module = fused(b, b.op("subtract", x, b.op("max", x, axes=(0,), keepdims=True)))
    assert len(kernels(module)) == 2


def test_rows_that_are_reduced_are_transposed_first():
    b = FunctionBuilder()
    x, parameter = b.input("x", (2, 6, 4, 5)), np.ones(6, np.float32)
    rows = b.op("add", b.op("permute_dims", x, axes=(0, 2, 3, 1)), 1.0)
    module = IRModule({"main": b.function(b.op("nn.layer_norm", rows, parameter, parameter, axes=(3,), epsilon=1e-5))})
    lowered = FUSION(module)
    assert kernels(lowered) == [("permute_dims",), ("add", "nn.layer_norm")]
    close(lowered, module, [np.random.default_rng(0).standard_normal((2, 6, 4, 5), np.float32)])


def test_permutations_that_keep_rows_in_one_piece_are_fused():
    b = FunctionBuilder()
    x = b.input("x", (2, 6, 4, 8))
    module = fused(b, b.op("nn.softmax", b.op("permute_dims", x, axes=(0, 2, 1, 3)), axis=3))
    assert kernels(module) == [("permute_dims", "nn.softmax")]


def test_columns_that_are_reduced_are_read_where_they_are():
    b = FunctionBuilder()
    x = b.input("x", (2, 6, 40))
    module = fused(b, b.op("sum", b.op("permute_dims", x, axes=(0, 2, 1)), axes=(1,)))
    assert kernels(module) == [("permute_dims", "sum")]


def test_expensive_function_is_not_recomputed_for_every_row():
    b = FunctionBuilder()
    x, bias = b.input("x", (64, 8)), b.input("bias", (8,))
    assert len(kernels(fused(b, b.op("add", x, b.op("exp", bias))))) == 2


def test_cheap_function_is():
    b = FunctionBuilder()
    x, bias = b.input("x", (64, 8)), b.input("bias", (8,))
    assert len(kernels(fused(b, b.op("add", x, b.op("negative", bias))))) == 1


def test_repeated_work_stays_cheap_along_a_chain():
    """A pooling window reads each element several times: what is repeated may cost so much altogether."""
    b = FunctionBuilder()
    y = b.input("x", (1, 2, 9, 9))
    for _ in range(4):
        y = b.op("multiply", y, 2.0)
    module = fused(b, b.op("nn.max_pool2d", y, pool_size=(3, 3)))
    assert kernels(module) == [("multiply",) * 2, ("multiply", "multiply", "nn.max_pool2d")]


def test_producers_go_into_a_concatenation():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    module = fused(b, b.op("concat", b.op("exp", x), b.op("sin", x), axis=1))
    assert kernels(module) == [("exp", "sin", "concat")]
    assert primfunc(module).locals == ()


def test_scalar_constants_become_literals():
    b = FunctionBuilder()
    x = b.input("x", (4,))
    function = primfunc(fused(b, b.op("add", x, np.full((1, 1), 3, np.float32))))
    assert [buffer.name for buffer in function.inputs] == ["in0"]


def test_equal_calls_share_a_function():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    w = np.ones((8, 8), np.float32)
    y = x
    for _ in range(3):
        y = b.op("nn.relu", b.op("matmul", y, w))
    module = fused(b, y)
    assert len(kernels(module)) == 3
    assert sum(isinstance(f, PrimFunc) for f in module.functions.values()) == 1


def test_symbolic_broadcast_keeps_its_choice():
    b = FunctionBuilder()
    n, m = dims.symbol("n"), dims.symbol("m")
    x, y = b.input("x", (n, 3)), b.input("y", (m, 3))
    before = IRModule({"main": b.function(b.op("tanh", b.op("add", x, y)))})
    after = FUSION(before)
    for rows in ((4, 4), (1, 4), (4, 1)):
        close(after, before, [np.random.default_rng(0).random((r, 3), np.float32) for r in rows])


def test_depth_is_limited():
    b = FunctionBuilder()
    y = b.input("x", (4,))
    for _ in range(40):
        y = b.op("sin", y)
    with PassContext(options={"fuse_ops.max_depth": 16}):
        module = fused(b, y)
    assert [len(ops) for ops in kernels(module)] == [8, 16, 16]


def test_repeated_use_does_not_blow_up():
    """Each step reads its operand twice: as a tree the body would double every time."""
    b = FunctionBuilder()
    y = b.input("x", (4,))
    for _ in range(30):
        y = b.op("multiply", b.op("sigmoid", y), y)
    before = IRModule({"main": b.function(y)})
    after = FUSION(before)
    close(after, before, [np.linspace(-2, 2, 4, dtype=np.float32)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=modules(max_ops=10, symbolic=True))
def test_fusion_keeps_the_meaning(program: RandomProgram):
    module = FUSION(program.module)
    verify(module)
    for name, function in module.functions.items():
        if isinstance(function, PrimFunc):
            verify_primfunc(function, name)
    close(module, program.module, program.inputs)


def test_time_grows_with_the_size_of_the_graph():
    def seconds(layers: int) -> float:
        b = FunctionBuilder()
        y = b.input("x", (4, 8))
        for _ in range(layers):
            y = b.op("add", b.op("nn.relu", b.op("matmul", y, np.ones((8, 8), np.float32))), y)
        module = IRModule({"main": b.function(y)})
        start = time.process_time()
        FUSION(module)
        return time.process_time() - start

    seconds(10)
    small, large = seconds(100), seconds(800)
    assert large < small * 8 * 4
