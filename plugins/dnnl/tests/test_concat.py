"""Channels joined a few at a time: among convolutions they are copied into the image's layout, elsewhere generated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.testing import assert_declined

from .image_networks import assert_right, module_of, weights

FEW = {"two": (4, 4), "uneven": (1, 9, 3), "many": (2,) * 9, "beside many": (3, 24)}


def joined(b, x, filters):
    """Results of several convolutions, joined along the channels."""
    pieces = [b.op("nn.conv2d", x, weights(count, x.type.shape[1])) for count in filters]
    return b.op("concat", *pieces, axis=1)


def block(b, x, filters):
    y = joined(b, x, filters)
    return b.op("nn.relu", b.op("nn.conv2d", y, weights(8, sum(filters), 3), padding=(1, 1, 1, 1)))


@pytest.mark.parametrize("filters", FEW.values(), ids=FEW)
def test_one_region_in_the_layout_of_convolutions(filters):
    shape = (2, 8, 6, 10)
    module = module_of(block, shape, filters)
    exe = ky.compile(module, backends=["dnnl"])
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    assert "dnnl.concat" in {region.pattern for region in exe.report.regions}
    assert len({region.function for region in exe.report.regions}) == 1
    x = assert_right(module, exe, shape)
    (step,) = [step for step in exe.profile([x], calls=2).steps if step.module == "dnnl"]
    labels = [part.label for part in step.inside]
    assert len([label for label in labels if "concat" in label]) == len(filters), "each operand is copied once"
    assert len([label for label in labels if label.startswith("reorder") and "concat" not in label]) <= 2


@pytest.mark.parametrize("filters", [FEW["two"], FEW["uneven"]], ids=str)
def test_open_sizes(filters):
    module = module_of(block, (symbol("n"), 8, symbol("h"), 10), filters)
    exe = ky.compile(module, backends=["dnnl"])
    assert "dnnl.concat" in {region.pattern for region in exe.report.regions}
    for n, h in [(1, 6), (3, 9), (2, 1)]:
        assert_right(module, exe, (n, 8, h, 10))


def test_an_artifact_has_it(tmp_path):
    module = module_of(block, (1, 8, 6, 10), (4, 4))
    ky.compile(module, backends=["dnnl"]).save(tmp_path / "model.kyar")
    assert_right(module, ky.load(tmp_path / "model.kyar"), (1, 8, 6, 10))


ALONE = {
    "nobody of ours reads it": lambda b, x: joined(b, x, (4, 4)),
    "rows": lambda b, x: b.op("tanh", b.op("concat", b.op("tanh", x), b.op("exp", x), axis=3)),
}


@pytest.mark.parametrize("build", ALONE.values(), ids=ALONE)
def test_others_are_left_to_generated_kernels(build):
    module = module_of(build, (1, 8, 6, 6))
    exe = ky.compile(module, backends=["dnnl"])
    assert_declined(exe, "dnnl", "slow", "dnnl.concat")
    assert_right(module, exe, (1, 8, 6, 6))


@given(st.data())
def test_any_shape_and_order(new_builder, data):
    """Bytes and floats are joined, whatever the order of dims of each operand, empty ones too."""
    rank = data.draw(st.integers(1, 5))
    axis, count = data.draw(st.integers(0, rank - 1)), data.draw(st.integers(1, 4))
    shape = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    dtype = data.draw(st.sampled_from(("float32", "int8", "uint8")))
    builder, operands, feeds, xs = new_builder(), {}, [], []
    for i in range(count):
        size = data.draw(st.sampled_from((0 if i else 1, 1, 2, 5, 33, 70)))
        axes = data.draw(st.permutations(range(rank)))
        x = np.random.default_rng(i).integers(1, 100, (*shape[:axis], size, *shape[axis + 1 :])).astype(dtype)
        stored = x.transpose(axes)
        back = [axes.index(dim) for dim in range(rank)]
        operands[f"x{i}"] = builder.kernel(
            "reorder", x.shape, {"x": builder.input(stored.shape, dtype)}, dtype, axes=back
        )
        feeds.append(stored)
        xs.append(x)
    expected = np.concatenate(xs, axis)
    (actual,), _ = builder.run([builder.kernel("concat", expected.shape, operands, dtype, axis=axis)], *feeds)
    np.testing.assert_array_equal(actual, expected)
