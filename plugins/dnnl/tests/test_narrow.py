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
from kernelyard.runtime.jit.c_compiler import COMPILERS
from kernelyard.testing import assert_allclose, assert_declined, evaluate, relative_error

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
    if any(node.op == "astype" for node in report.nodes):  # it was widened before anybody was asked
        assert {node.backend for node in report.nodes} == {"dnnl"}, str(report)
        pytest.skip("generated kernels have no arithmetic for bfloat16 on this processor: all is float32")
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


@pytest.mark.parametrize("op", ["tanh", "exp", "nn.gelu", "nn.relu", "sigmoid", "rsqrt"])
def test_elementwise(op, offloading):
    offloading.taken("dnnl.elementwise", op, lambda b, x: b.op(op, x), image(4, 32), positive=True)


def test_only_float32_is_rounded_by_itself(offloading):
    """Where sizes are symbols, oneDNN is not asked: its eltwise rounds float32 alone."""
    n = dims.symbol("n")
    module = offloading.module(lambda b, x: b.op("round", x), image(n, 8))
    exe = ky.compile(module, backends=["dnnl"])
    assert_declined(exe, "dnnl", "dtype", "dnnl.elementwise")
    offloading.right(module, exe, n=3)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "divide"])
@pytest.mark.parametrize("other", [(2, 16, 5, 5), (1, 16, 1, 1), (5,), ()])
def test_binary(op, other, offloading):
    def build(b, x, y):
        return b.op("nn.relu", b.op(op, x, y))

    offloading.taken("dnnl.elementwise", f"{op} nn.relu", build, image(2, 16, 5, 5), image(*other), positive=True)


def test_rows(offloading):
    def layer_norm(b, x, gamma):
        return b.op("nn.layer_norm", x, gamma, weights(32, seed=2), axes=(1,), epsilon=1e-5)

    offloading.taken("dnnl.layer_norm", "nn.layer_norm", layer_norm, image(4, 32), image(32))
    for op in ("nn.softmax", "nn.log_softmax"):
        offloading.taken("dnnl.softmax", op, lambda b, x, op=op: b.op(op, x, axis=1), image(4, 32))


@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize("axes", [(2, 3), (3,)])
def test_reductions(op, axes, offloading):
    build = lambda b, x: b.op(op, x, axes=axes)  # noqa: E731
    offloading.taken("dnnl.reduce", op, build, image(2, 16, 6, 6), positive=True)


@pytest.mark.parametrize("op", ["nn.max_pool2d", "nn.avg_pool2d"])
def test_pools(op, offloading):
    build = lambda b, x: b.op(op, x, pool_size=(3, 3), strides=(2, 2), padding=(1,) * 4)  # noqa: E731
    offloading.taken("dnnl.pool", op, build, image(2, 16, 9, 9))


def test_resize_and_concat(offloading):
    def resize(b, x):
        return b.op(
            "image.resize", x, sizes=(8, 8), scales=(), method="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )  # fmt: skip

    offloading.taken("dnnl.resample", "image.resize", resize, image(1, 16, 4, 4))
    build = lambda b, x, y: b.op("concat", x, y, axis=1)  # noqa: E731
    offloading.taken("dnnl.concat", "concat", build, image(2, 16, 4, 4), image(2, 8, 4, 4))


# --- casts ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pattern", LINEAR)
def test_a_cast_at_the_end_costs_no_rounding(pattern, offloading):
    """The primitive stores its float32 sums as they are: what comes out is far nearer than bfloat16 can say."""
    op, data, weight, bias, attrs = LINEAR[pattern]

    def build(b, x, wide=False):
        constants = weights(*weight), weights(*bias, seed=2)
        w, c = (Constant(each.data.astype(np.float32)) if wide else each for each in constants)
        y = b.op("nn.relu", b.op("add", b.op(op, x, w, **attrs), c))
        return y if wide else b.op("astype", y, dtype="float32")

    exe = ky.compile(offloading.module(build, image(*data)), backends=["dnnl"])
    assert [(region.pattern, " ".join(region.ops)) for region in exe.report.regions] == [
        (pattern, f"{op} add nn.relu astype")
    ]
    exact = offloading.module(lambda b, x: build(b, x, wide=True), data)
    (feed,) = offloading.feeds(exact)
    narrow = feed.astype(BF16)
    (expected,) = evaluate(exact, [narrow.astype(np.float32)])
    assert_allclose(exe(narrow), expected)


def test_a_network_casts_where_it_begins(offloading):
    """An image that lies row-major is cast and laid out in one step."""

    def build(b, x):
        y = b.op("nn.conv2d", b.op("astype", x, dtype="bfloat16"), weights(32, 16, 3, 3), padding=(1,) * 4)
        return b.op("astype", b.op("nn.relu", y), dtype="float32")

    module = offloading.module(build, (1, 16, 8, 8))
    exe = ky.compile(module, backends=["dnnl"])
    assert [region.pattern for region in exe.report.regions] == ["dnnl.cast", "dnnl.conv2d"]
    names = [label.split(" ")[0] for label, _ in offloading.implementations(exe)]
    assert names == ["reorder", "conv", "reorder"]
    feeds = offloading.feeds(module)
    assert relative_error(exe(*feeds), evaluate(module, feeds)[0]) < 1e-2


def test_casts_of_kernels_stay_in_kernels(offloading):
    def build(b, x):
        y = b.op("matmul", b.op("astype", b.op("floor", x), dtype="bfloat16"), weights(32, 16))
        return b.op("floor", b.op("astype", b.op("nn.softmax", y, axis=1), dtype="float32"))

    offloading.declined("neighbours", "dnnl.cast", build, (4, 32))


def test_a_cast_value_is_read_in_several_layouts(offloading):
    def build(b, x):
        narrow = b.op("astype", x, dtype="bfloat16")
        y = b.op("nn.conv2d", narrow, weights(16, 16, 3, 3), padding=(1,) * 4)
        transposed = b.op("permute_dims", narrow, axes=(0, 1, 3, 2))
        return b.op("add", b.op("nn.relu", y), transposed)

    module = offloading.module(build, (1, 16, 8, 8))
    exe = ky.compile(module, backends=["dnnl"])
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    offloading.right(module, exe)


def test_casts_to_other_dtypes_are_declined(offloading):
    def build(b, x):
        return b.op("astype", b.op("matmul", x, weights(32, 16)), dtype="int32")

    offloading.declined("dtype", "dnnl.cast", build, image(4, 32))


@pytest.mark.parametrize("pattern", ["dnnl.matmul", "dnnl.conv2d"])
def test_a_wide_residual_is_added_before_anything_is_rounded(pattern, offloading):
    op, data, weight, _, attrs = LINEAR[pattern]
    probe = offloading.module(lambda b, x: b.op(op, x, weights(*weight), **attrs), image(*data))["main"].result_type

    def build(b, x, r, wide=False):
        w = Constant(weights(*weight).data.astype(np.float32)) if wide else weights(*weight)
        y = b.op(op, x, w, **attrs)
        return b.op("nn.relu", b.op("add", y if wide else b.op("astype", y, dtype="float32"), r))

    exe = ky.compile(offloading.module(build, image(*data), probe.shape), backends=["dnnl"])
    assert [(region.pattern, " ".join(region.ops)) for region in exe.report.regions] == [
        (pattern, f"{op} astype add nn.relu")
    ]
    exact = offloading.module(lambda b, x, r: build(b, x, r, wide=True), data, probe.shape)
    feed, residual = offloading.feeds(exact)
    narrow = feed.astype(BF16)
    assert_allclose(exe(narrow, residual), evaluate(exact, [narrow.astype(np.float32), residual])[0])


def test_rows_are_stored_as_they_are_read(offloading):
    """A norm or a softmax of float32 whose reader is narrow stores its result narrow, and the other way round."""

    def softmax(b, x):
        return b.op("astype", b.op("nn.softmax", x, axis=1), dtype="bfloat16")

    def layer_norm(b, x):
        vectors = (Constant(weights(32, seed=seed).data.astype(np.float32)) for seed in (1, 2))
        return b.op("astype", b.op("nn.layer_norm", x, *vectors, axes=(1,), epsilon=1e-5), dtype="bfloat16")

    offloading.taken("dnnl.softmax", "nn.softmax astype", softmax, (4, 32))
    offloading.taken("dnnl.layer_norm", "nn.layer_norm astype", layer_norm, (4, 32))
