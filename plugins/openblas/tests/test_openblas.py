import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.plugins.api import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_conforms, assert_declined, assert_offloaded, evaluate, op_cases

pytest.importorskip("kernelyard_openblas")


def network(dtype="float32"):
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 4), dtype)
    for slope in (0.5, -0.5):
        x = b.op("nn.relu", b.op("add", b.op("matmul", x, np.full((4, 4), slope, dtype)), np.arange(4, dtype=dtype)))
    return IRModule({"main": b.function(x)})


def product(left, right, dtype="float32"):
    b = FunctionBuilder()
    return IRModule({"main": b.function(b.op("matmul", b.input("a", left, dtype), b.input("b", right, dtype)))})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layers_are_offloaded_and_survive_saving(tmp_path, dtype):
    module, x = network(dtype), np.array([[1, 2, 3, 4], [-1, 0, 1, 2]], dtype)
    exe = ky.compile(module, backends=["openblas"], strict=True)
    assert_offloaded(exe, "openblas", "openblas.gemm", count=2)
    exe.save(tmp_path / "network.kyar")
    assert_allclose(ky.load(tmp_path / "network.kyar")(x), evaluate(module, [x])[0])


@pytest.mark.parametrize("left", [(3, 5, 6), (1, 5, 6), (5, 6)])  # the last two serve every batch of the right side
@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_is_one_call(left, threads):
    module = product(left, (3, 6, 7))
    a, b = (np.random.default_rng(0).normal(size=size).astype(np.float32) for size in (left, (3, 6, 7)))
    exe = ky.compile(module, backends=["openblas"], strict=True)
    exe.threads = threads
    assert_offloaded(exe, "openblas", "openblas.gemm")
    assert_allclose(exe(a, b), a @ b)


@pytest.mark.parametrize(
    ("left", "right"), [((0, 4), (4, 3)), ((2, 0), (0, 3)), ((2, 4), (4, 0)), ((0, 2, 4), (0, 4, 3))]
)
def test_empty_products(left, right):
    a, b = np.ones(left, np.float32), np.ones(right, np.float32)
    assert_allclose(ky.compile(product(left, right), backends=["openblas"])(a, b), a @ b)


def test_other_dtypes_are_declined():
    assert_declined(ky.explain(product((2, 3), (3, 2), "int32"), backends=["openblas"]), "openblas", "dtype")


def test_every_sample_of_matmul():
    for case in op_cases(["matmul"]):
        assert_conforms(case, lambda module, inputs: [ky.compile(module, backends=["openblas"])(*inputs)])
