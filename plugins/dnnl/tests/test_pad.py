"""Zeros around images: among convolutions they are written in the image's layout, elsewhere by generated kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import CodegenError
from kernelyard.testing import assert_declined

from .image_networks import assert_right, module_of, weights

CHANNELS = (0, 0, 0, 0, 0, 4, 0, 0)
PADS = {
    "channels": CHANNELS,
    "channels on both sides": (0, 3, 0, 0, 0, 5, 0, 0),
    "space": (0, 0, 1, 0, 0, 0, 2, 3),
    "all axes": (1, 2, 0, 1, 0, 2, 1, 1),
}


def conv(b, x, filters):
    return b.op("nn.conv2d", x, weights(filters, x.type.shape[1]))


def block(b, x, pads, **attrs):
    """A residual block that grows: what passes by is padded with zeros, then added."""
    y = b.op("nn.relu", conv(b, x, 8))
    wide = b.op("pad", y, pads=pads, **attrs)
    grown = conv(b, wide, wide.type.shape[1])
    return conv(b, b.op("nn.relu", b.op("add", grown, wide)), 8)


def pooled_block(b, x):
    """The same after a pooling, beside a convolution with strides."""
    y = conv(b, x, 8)
    small = b.op("nn.max_pool2d", y, pool_size=(2, 2), strides=(2, 2))
    return conv(
        b, b.op("add", b.op("nn.conv2d", y, weights(12, 8), strides=(2, 2)), b.op("pad", small, pads=CHANNELS)), 8
    )


@pytest.mark.parametrize("pads", PADS.values(), ids=PADS)
def test_one_region_in_the_layout_of_convolutions(pads):
    shape = (2, 8, 6, 10)
    module = module_of(block, shape, pads)
    exe = ky.compile(module, backends=["dnnl"], strict=True)
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    assert "dnnl.pad" in {region.pattern for region in exe.report.regions}
    assert len({region.function for region in exe.report.regions}) == 1
    x = assert_right(module, exe, shape)
    (step,) = [step for step in exe.profile([x], calls=2).steps if step.module == "dnnl"]
    copies = [part for part in step.inside if part.label.startswith("reorder") and "pad" not in part.label]
    assert len(copies) <= 2, "the image comes in row-major, and goes out so"


def test_after_a_pooling():
    module = module_of(pooled_block, (1, 8, 8, 12))
    exe = ky.compile(module, backends=["dnnl"], strict=True)
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    assert_right(module, exe, (1, 8, 8, 12))


@pytest.mark.parametrize("pads", [CHANNELS, PADS["all axes"]], ids=["channels", "all axes"])
def test_open_sizes(pads):
    module = module_of(block, (symbol("n"), 8, symbol("h"), 10), pads)
    exe = ky.compile(module, backends=["dnnl"])
    assert "dnnl.pad" in {region.pattern for region in exe.report.regions}
    for n, h in [(1, 6), (3, 9), (2, 1)]:
        assert_right(module, exe, (n, 8, h, 10))


def test_an_open_amount():
    h = symbol("h")
    module = module_of(block, (1, 8, h, 10), (0, 0, h, 0, 0, 4, 1, 0))
    exe = ky.compile(module, backends=["dnnl"])
    assert "dnnl.pad" in {region.pattern for region in exe.report.regions}
    for size in (1, 5):
        assert_right(module, exe, (1, 8, size, 10))


def test_an_artifact_has_it(tmp_path):
    module = module_of(block, (1, 8, 6, 10), CHANNELS)
    exe = ky.compile(module, backends=["dnnl"])
    exe.save(tmp_path / "model.kyar")
    assert_right(module, ky.load(tmp_path / "model.kyar"), (1, 8, 6, 10))


DECLINED = {
    "another value": ("attribute", CHANNELS, {"value": 1.0}),
    "negative": ("attribute", (0, 0, -1, 0, 0, 4, 0, 0), {}),
    "perhaps negative": ("attribute", (0, 0, symbol("h") - 3, 0, 0, 4, 0, 0), {}),
    "reflection": ("attribute", (0, 0, 1, 1, 0, 0, 1, 1), {"mode": "reflect"}),
    "the edge": ("attribute", (0, 0, 1, 1, 0, 0, 1, 1), {"mode": "edge"}),
}


@pytest.mark.parametrize(("code", "pads", "attrs"), DECLINED.values(), ids=DECLINED)
def test_declined(code, pads, attrs):
    module = module_of(block, (1, 8, symbol("h"), 10), pads, **attrs)
    exe = ky.compile(module, backends=["dnnl"])
    assert_declined(exe, "dnnl", code, "dnnl.pad")
    assert_right(module, exe, (1, 8, 6, 10))


LONE = {
    "nothing around": ("neighbours", lambda b, x: b.op("pad", x, pads=CHANNELS)),
    "a generated kernel reads it": ("neighbours", lambda b, x: b.op("floor", b.op("pad", conv(b, x, 8), pads=CHANNELS))),
    "row-major": ("neighbours", lambda b, x: b.op("abs", b.op("pad", b.op("tanh", x), pads=CHANNELS))),
    "a product": (
        "rank",
        lambda b, x: b.op("tanh", b.op("pad", b.op("matmul", b.op("reshape", x, shape=(48, 10)), weights(6, 10)[:, :, 0, 0].T), pads=(0, 0, 0, 2))),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "build"), LONE.values(), ids=LONE)
def test_lone_ones_are_left_to_generated_kernels(code, build):
    module = module_of(build, (1, 8, 6, 10))
    exe = ky.compile(module, backends=["dnnl"])
    assert_declined(exe, "dnnl", code, "dnnl.pad")
    assert_right(module, exe, (1, 8, 6, 10))


@given(st.data())
def test_any_shape_and_order(new_builder, data):
    """Bytes, floats of 2 bytes and of 4 are copied, whatever the order of dims."""
    rank = data.draw(st.integers(1, 5))
    sizes = st.lists(st.integers(0, 3), min_size=rank, max_size=rank)
    shape = tuple(size + (data.draw(st.booleans()) or 1) for size in data.draw(sizes))
    before, after, axes = data.draw(sizes), data.draw(sizes), data.draw(st.permutations(range(rank)))
    dtype = data.draw(st.sampled_from(("float32", "int8", "uint8")))
    x = np.random.default_rng(0).integers(1, 100, shape).astype(dtype)
    builder, stored = new_builder(), x.transpose(axes)
    back = [axes.index(axis) for axis in range(rank)]
    result = np.pad(x, list(zip(before, after, strict=True)))
    entry = builder.kernel("reorder", shape, {"x": builder.input(stored.shape, dtype)}, dtype, axes=back)
    (actual,), _ = builder.run([builder.kernel("pad", result.shape, {"x": entry}, dtype, begin=before)], stored)
    np.testing.assert_array_equal(actual, result)


@pytest.mark.parametrize("begin", [(0, -1), (0, 3), (0,)], ids=str)
def test_nodes_that_reach_outside_their_result(begin, builder):
    y = builder.kernel("pad", (2, 5), {"x": builder.input((2, 3))}, begin=begin)
    with pytest.raises(CodegenError):
        builder.run([y], np.zeros((2, 3), np.float32))
