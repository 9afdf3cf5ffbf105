"""Norms of each channel of an image: among convolutions they stay channels-last, elsewhere they are not oneDNN's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule

EPSILON = 1e-5
RELU = {"kind": "eltwise", "algorithm": "relu"}


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def normed(x, gamma, beta):
    """The norm in float64."""
    x, per_channel = x.astype(np.float64), (-1, *(1,) * (x.ndim - 2))
    axes = tuple(range(2, x.ndim))
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPSILON) * gamma.reshape(per_channel) + beta.reshape(per_channel)


def norm(builder, x, shape, post_ops=(), **operands):
    return builder.kernel(
        "instance_norm", shape, {"x": x, **operands}, epsilon=EPSILON, post_ops=list(post_ops)
    )  # fmt: skip


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(1, 3),
    st.sampled_from((1, 3, 16, 24, 300)),
    st.sampled_from((0.0, 1000.0)),
    st.integers(0, 2**32 - 1),
)
def test_any_shape(new_builder, space, images, channels, offset, seed):
    """Where all numbers are near one that is large, squares would cancel; differences do not."""
    shape = (images, channels, *space)
    x, gamma, beta = (
        numbers(seed, *shape) + np.float32(offset),
        numbers(seed + 1, channels),
        numbers(seed + 2, channels),
    )
    builder = new_builder()
    result = norm(
        builder, builder.input(shape), shape, [RELU], gamma=builder.constant(gamma), beta=builder.constant(beta)
    )
    (actual,), _ = builder.run([result], x)
    expected = np.maximum(normed(x, gamma, beta), 0)
    # Of numbers near 1000, which are rounded to 6e-5, the deviation is known less well the less there is of it.
    near = np.abs(x).max() * 1e-6 * np.abs(gamma).max()
    deviation = np.sqrt(x.astype(np.float64).var(tuple(range(2, x.ndim)), keepdims=True) + EPSILON)
    assert np.all(np.abs(actual - expected) <= 1e-4 * (1 + np.abs(expected)) + 8 * near / deviation)


def network(b, x, weight, gamma, beta, is_residual=False):
    """Two convolutions with a norm between them."""
    y = b.op("nn.conv2d", x, weight)
    z = b.op("nn.leaky_relu", b.op("nn.instance_norm", y, gamma, beta, epsilon=EPSILON), alpha=0.1)
    return b.op("nn.conv2d", b.op("add", z, y) if is_residual else z, weight)


@pytest.mark.parametrize("channels", [8, 24])
@pytest.mark.parametrize("is_residual", [False, True])
def test_one_region_without_copies(channels, is_residual):
    shape, weight = (2, channels, 12, 10), numbers(0, channels, channels, 1, 1) / channels
    gamma, beta, x = numbers(1, channels), numbers(2, channels), numbers(3, *shape)
    b = FunctionBuilder()
    module = IRModule({"main": b.function(network(b, b.input("x", shape), weight, gamma, beta, is_residual))})
    exe, others = ky.compile(module, backends=["dnnl"], strict=True), ky.compile(module, backends=[])
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    assert "dnnl.instance_norm" in {region.pattern for region in exe.report.regions}
    np.testing.assert_allclose(exe(x).numpy(), others(x).numpy(), rtol=1e-3, atol=1e-4)
    (step,) = [step for step in exe.profile([x], calls=2).steps if step.module == "dnnl"]
    copies = [part for part in step.inside if part.label.startswith("reorder") and part.nbytes >= 2 * x.nbytes]
    assert len(copies) <= 2, "the image comes in row-major, and goes out so"


def test_row_major_images_are_left_to_generated_kernels():
    b = FunctionBuilder()
    y = b.op("nn.instance_norm", b.input("x", (1, 8, 16, 16)), numbers(0, 8), numbers(1, 8), epsilon=EPSILON)
    report = ky.explain(IRModule({"main": b.function(b.op("nn.relu", y))}), backends=["dnnl"])
    (node,) = [node for node in report.nodes if node.op == "nn.instance_norm"]
    assert node.backend != "dnnl"
    assert any("not channels-last" in reason.message for reason in node.reasons)


def test_open_sizes():
    from kernelyard.dims import symbol

    shape, weight = (symbol("n"), 16, symbol("h"), 10), numbers(0, 16, 16, 1, 1) / 16
    gamma, beta = numbers(1, 16), numbers(2, 16)
    b = FunctionBuilder()
    module = IRModule({"main": b.function(network(b, b.input("x", shape), weight, gamma, beta))})
    exe, others = ky.compile(module, backends=["dnnl"]), ky.compile(module, backends=[])
    for sizes in [(1, 16, 12, 10), (3, 16, 7, 10), (0, 16, 7, 10)]:
        x = numbers(3, *sizes)
        np.testing.assert_allclose(exe(x).numpy(), others(x).numpy(), rtol=1e-3, atol=1e-4)
