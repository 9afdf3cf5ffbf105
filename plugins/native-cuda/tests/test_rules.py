"""Schedule rules: what each takes, and that its kernels give what the interpreter gives at sizes that fit no tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  (declares the vocabulary)
from kernelyard import dims, dtypes, legalize
from kernelyard.ir import FunctionBuilder, IRModule, TensorType, get_op
from kernelyard.tir import PrimFunc
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_native_cuda.schedule.elementwise import elementwise
from kernelyard_native_cuda.schedule.fallback import fallback
from kernelyard_native_cuda.schedule.general_reduction import general_reduction
from kernelyard_native_cuda.schedule.low_batch_gemv import low_batch_gemv
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE
from kernelyard_native_cuda.schedule.matmul import matmul
from kernelyard_native_cuda.schedule.reduction import reduction
from kernelyard_native_cuda.schedule.rules import schedule
from kernelyard_native_cuda.schedule.scan import scan
from kernelyard_native_cuda.schedule.transpose import transpose

N = dims.symbol("n")
RANDOM = np.random.default_rng(0)


def lower(name: str, *types: TensorType, **attributes: Any) -> PrimFunc:
    op = get_op(name)
    attrs = op.check_attributes(attributes)
    return legalize.legalize_call(name, list(types), attrs, op.infer_type(list(types), attrs))


def fused(build: Callable[[FunctionBuilder], Any]) -> PrimFunc:
    """The one function that a graph becomes."""
    b = FunctionBuilder()
    module = get_pipeline("legalize")(IRModule({"main": b.function(build(b))}))
    (function,) = [f for f in module.functions.values() if isinstance(f, PrimFunc)]
    return function


def f32(*shape: dims.Dim) -> TensorType:
    return TensorType(shape, "float32")


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def whole(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Small whole numbers: sums of their products are exact in any order."""
    return RANDOM.integers(-4, 5, shape).astype(dtypes.to_numpy(dtype))


def rules_of(function: PrimFunc) -> list[str]:
    """The rules that schedule a function, in order."""
    return [choice[-1][0] for choice in schedule(function, "kernel", ANY_MACHINE).choices]


CHAINS: Mapping[str, Any] = {
    "softmax": lambda b: b.op("nn.softmax", b.input("x", (5, 300)), axis=1),
    "softmax of any rows": lambda b: b.op("nn.softmax", b.input("x", (N, 77)), axis=1),
    "log_softmax": lambda b: b.op("nn.log_softmax", b.input("x", (2, 3, 40)), axis=2),
}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lower("add", f32(N, 7), f32(N, 7)), [elementwise]),
        (lower("add", f32(N, 7), f32(7)), [fallback]),
        (lower("sum", f32(6, 100), axes=(1,)), [reduction]),
        (lower("sum", f32(6, 100), axes=(0,)), [fallback]),
        (lower("sum", f32(6, 8), axes=(1,)), [fallback]),
        (lower("matmul", f32(70, 33), f32(33, 41)), [matmul]),
        (lower("matmul", f32(2, N, 33), f32(2, 33, 41)), [low_batch_gemv]),
        (lower("matmul", f32(2, N + 8, 33), f32(2, 33, 41)), [matmul]),
        (lower("permute_dims", f32(40, 50), axes=(1, 0)), [transpose]),
        (lower("permute_dims", f32(N, 3, 50, 9), axes=(0, 2, 3, 1)), [fallback]),
        (lower("cumsum", f32(4, 9), axis=1), [fallback]),
        (lower("cumsum", f32(4, 90), axis=1), [scan]),
        (lower("argmax", f32(4, 90), axis=1), [reduction]),
        *((fused(build), [general_reduction]) for build in CHAINS.values()),
    ],
)
def test_the_first_rule_that_applies_wins(function, expected):
    assert rules_of(function) == [rule.__name__ for rule in expected]


@pytest.mark.parametrize("shape", [(1,), (4,), (1023,), (5, 7), (3, 256, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
def test_elementwise_at_every_length(check, shape, dtype):
    a, b = ((RANDOM.standard_normal(shape) * 9).astype(dtype) for _ in "ab")
    type_ = TensorType(shape, dtype)
    check(lower("maximum" if dtype != "bool" else "logical_xor", type_, type_), a, b)


def test_elementwise_reads_one_number_for_all(check):
    function = fused(lambda b: b.op("multiply", b.op("exp", b.input("x", (3, N))), b.input("y", (1, 1))))
    check(function, random(3, 21), random(1, 1), symbols={"n": 21})


@pytest.mark.parametrize("extent", [32, 33, 100, 1025])
@pytest.mark.parametrize("name", ["sum", "max", "prod", "mean"])
def test_reduction(check, name, extent):
    check(lower(name, f32(3, extent), axes=(1,)), random(3, extent) * 0.1 + 1)


def test_reduction_of_any_size(check):
    function = lower("sum", f32(3, N), axes=(1,))
    for size in (1, 31, 128, 500):
        check(function, random(3, size), symbols={"n": size})


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 2), (16, 16, 16), (65, 17, 33), (2, 100, 130), (64, 64, 64)])
def test_matmul(check, m, k, n):
    check(lower("matmul", f32(m, k), f32(k, n)), whole(m, k), whole(k, n))


def test_matmul_of_any_size_in_batches(check):
    function = lower("matmul", f32(2, N, 20), f32(2, 20, N + 3))
    for size in (2, 40, 70):
        check(function, whole(2, size, 20), whole(2, 20, size + 3), symbols={"n": size})


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int8"])
def test_matmul_of_other_dtypes(check, dtype):
    a, b = ((RANDOM.standard_normal(shape) * 3).astype(dtype) for shape in ((20, 30), (30, 18)))
    check(lower("matmul", TensorType(a.shape, dtype), TensorType(b.shape, dtype)), a, b)


def test_a_convolution_is_one_kernel_with_its_padding_bias_and_activation(check):
    weight, bias = random(5, 3, 3, 3), random(1, 5, 1, 1)

    def build(b: FunctionBuilder) -> Any:
        x, w, c = b.input("x", (2, 3, 9, 8)), b.input("w", weight.shape), b.input("c", bias.shape)
        product = b.op("nn.conv2d", x, w, strides=(2, 1), padding=(1, 1, 1, 1))
        return b.op("nn.relu", b.op("add", product, c))

    function = fused(build)
    assert rules_of(function) == ["conv"]
    check(function, random(2, 3, 9, 8), weight, bias)


@pytest.mark.parametrize(
    ("shape", "axes"), [((40, 50), (1, 0)), ((8, 33), (1, 0)), ((3, 65, 9), (0, 2, 1)), ((2, 3, 70, 10), (3, 1, 0, 2))]
)
def test_transpose(check, shape, axes):
    function = lower("permute_dims", f32(*shape), axes=axes)
    assert rules_of(function) == ["transpose"]
    check(function, random(*shape))


def test_transpose_of_any_size_with_what_follows(check):
    def build(b: FunctionBuilder) -> Any:
        transposed = b.op("permute_dims", b.input("x", (N, 40)), axes=(1, 0))
        return b.op("add", b.op("tanh", transposed), b.input("y", (40, N)))

    for size in (1, 33, 64):
        check(fused(build), random(size, 40), random(40, size), symbols={"n": size})


@pytest.mark.parametrize("build", CHAINS.values(), ids=CHAINS)
def test_chains_are_one_kernel(check, build):
    function = fused(build)
    shape = [dim if isinstance(dim, int) else 6 for dim in function.inputs[0].shape]
    module = check(function, random(*shape), symbols={"n": 6})
    assert len(module.function("kernel").launches) == 1


@pytest.mark.parametrize("name", ["nn.layer_norm", "nn.rms_norm"])
@pytest.mark.parametrize("shape", [(4, 64), (2, 3, 5000)])
def test_norms_are_one_kernel(check, name, shape):
    width = shape[-1]
    inputs = [f32(*shape), f32(width)] + [f32(width)] * (name == "nn.layer_norm")
    function = lower(name, *inputs, axes=(len(shape) - 1,), epsilon=1e-5)
    module = check(function, random(*shape), *(random(width) for _ in inputs[1:]))
    assert len(module.function("kernel").launches) == 1
