"""bfloat16: products and convolutions with all that follows them, where the processor has instructions for it.

Every test asserts first that everything is oneDNN's. Sums and post-ops are float32 inside of a group, so that results are
nearer to the exact ones than the reference's, which rounds after each operator.
"""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import Constant, FunctionBuilder, IRModule, TensorType
from kernelyard.runtime.c_compiler import COMPILERS
from kernelyard.testing import assert_allclose, assert_declined, evaluate

BF16 = ml_dtypes.bfloat16


def weights(*shape, seed=1, scale=0.2):
    return Constant((np.random.default_rng(seed).standard_normal(shape) * scale).astype(BF16))


def image(*shape):
    return TensorType(shape, "bfloat16")


@pytest.fixture(scope="module", autouse=True)
def _needs_instructions():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("matmul", b.input("x", (32, 32), "bfloat16"), weights(32, 32)))})
    report = ky.explain(module, backends=["dnnl"])
    if not report.regions:
        assert_declined(report, "dnnl", "reference-implementation", "dnnl.matmul")
        pytest.skip("oneDNN has no code for bfloat16 on this processor")


# pattern -> (operator, shape of the data, shape of the weights, shape of a bias, attributes)
LINEAR = {
    "dnnl.matmul": ("matmul", (5, 24), (24, 32), (32,), {}),
    "dnnl.conv1d": ("nn.conv1d", (2, 16, 12), (16, 16, 3), (1, 16, 1), {"padding": (1, 1)}),
    "dnnl.conv2d": (
        "nn.conv2d",
        (1, 16, 7, 6),
        (32, 16, 3, 3),
        (1, 32, 1, 1),
        {"padding": (1,) * 4, "strides": (2, 2)},
    ),
    "dnnl.conv3d": ("nn.conv3d", (1, 16, 4, 5, 6), (16, 16, 3, 3, 3), (1, 16, 1, 1, 1), {}),
    "dnnl.conv2d_transpose": ("nn.conv2d_transpose", (1, 16, 5, 4), (16, 16, 2, 2), (1, 16, 1, 1), {"strides": (2, 2)}),
}


@pytest.mark.parametrize("pattern", LINEAR)
@pytest.mark.parametrize("activation", ["nn.relu", "nn.gelu", "sigmoid", "tanh", "nn.silu"])
def test_bias_and_activation(pattern, activation, offloading):
    op, data, weight, bias, attrs = LINEAR[pattern]

    def build(b, x):
        y = b.op("add", b.op(op, x, weights(*weight), **attrs), weights(*bias, seed=2))
        return b.op(activation, y)

    offloading.taken(pattern, f"{op} add {activation}", build, image(*data))


@pytest.mark.parametrize("pattern", LINEAR)
@pytest.mark.parametrize("residual", ["add", "multiply"])
def test_residual(pattern, residual, offloading):
    op, data, weight, _, attrs = LINEAR[pattern]
    probe = offloading.module(lambda b, x: b.op(op, x, weights(*weight), **attrs), image(*data))

    def build(b, x, r):
        return b.op("nn.relu", b.op(residual, b.op(op, x, weights(*weight), **attrs), r))

    offloading.taken(pattern, f"{op} {residual} nn.relu", build, image(*data), probe["main"].result_type)


def test_transposed_and_batched_products(offloading):
    def build(b, x, k):
        return b.op("matmul", x, b.op("permute_dims", k, axes=(0, 2, 1)))

    offloading.taken("dnnl.transposed_matmul", "permute_dims matmul", build, image(3, 16, 32), image(3, 16, 32))


def test_a_network_is_one_region_and_is_saved_with_narrow_weights(offloading, tmp_path):
    """Convolutions, a pool and a product: nothing is wider in between than it has to be, and a file keeps it so."""

    def build(b, x):
        y = b.op("nn.relu", b.op("nn.conv2d", x, weights(32, 16, 3, 3), padding=(1,) * 4))
        y = b.op("nn.max_pool2d", y, pool_size=(2, 2), strides=(2, 2))
        y = b.op("reshape", b.op("permute_dims", y, axes=(0, 2, 3, 1)), shape=(2 * 4 * 4, 32))
        return b.op("matmul", y, weights(32, 16))

    module = offloading.module(build, image(2, 16, 8, 8))
    exe = ky.compile(module, backends=["dnnl"])
    assert {node.backend for node in exe.report.nodes} <= {"dnnl", "view"}, str(exe.report)
    assert len({region.function for region in exe.report.regions}) == 1
    assert {str(array.dtype) for array in exe.modules[0].constants().values()} == {"bfloat16"}
    exe.save(tmp_path / "narrow.kyar")
    feeds = offloading.feeds(module)
    (expected,) = evaluate(module, feeds)
    for each in (exe, ky.load(tmp_path / "narrow.kyar")):
        assert_allclose(each(*feeds), expected)


def test_symbolic_sizes(offloading):
    n = dims.symbol("n")
    module = offloading.module(
        lambda b, x: b.op("nn.relu", b.op("matmul", x, weights(24, 32))), TensorType((n, 24), "bfloat16")
    )
    exe = ky.compile(module, backends=["dnnl"])
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    for size in (1, 7, 64):
        offloading.right(module, exe, n=size)


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler is installed here")
def test_as_c_the_numbers_are_the_same(offloading, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))

    def build(b, x, r):
        y = b.op("nn.gelu", b.op("add", b.op("matmul", x, weights(24, 32)), weights(32, seed=2)))
        return b.op("add", b.op("matmul", y, weights(32, 16)), r)

    module = offloading.module(build, image(8, 24), image(8, 16))
    graphs, text = (
        ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": form}}) for form in ("json", "c")
    )
    assert {node.backend for node in text.report.nodes} == {"dnnl"}
    feeds = offloading.feeds(module)
    for exe in (graphs, text):
        exe.threads = 1
    np.testing.assert_array_equal(graphs(*feeds).numpy(), text(*feeds).numpy())


@pytest.mark.parametrize("op", ["tanh", "exp", "nn.gelu"])
def test_elementwise_by_itself_is_left_to_kernels(op, offloading):
    offloading.declined("dtype", "dnnl.elementwise", lambda b, x: b.op(op, x), image(4, 32))


def test_norms_stay_wide(offloading):
    def build(b, x):
        return b.op("nn.layer_norm", x, weights(32), weights(32, seed=2), axes=(1,), epsilon=1e-5)

    offloading.declined("dtype", "dnnl.layer_norm", build, image(4, 32))
    offloading.declined("dtype", "dnnl.softmax", lambda b, x: b.op("nn.softmax", x, axis=1), image(4, 32))
