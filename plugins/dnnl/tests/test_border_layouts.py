"""Border layouts: tensors between regions of oneDNN stay channels-last, and nothing is reordered for it."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule

SHAPE = (1, 24, 10, 12)


def weights(seed, filters=24, channels=24, window=1):
    shape = (filters, channels, window, window)
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) / channels


def conv(b, x, seed, **attrs):
    return b.op("nn.conv2d", x, weights(seed, window=attrs.pop("window", 1)), **attrs)


def with_shortcut(b, x):
    """Two regions, since floor is no oneDNN primitive; the sum joins them."""
    y = b.op("nn.relu", conv(b, x, 0))
    gate = b.op("floor", conv(b, y, 1))
    return conv(b, b.op("add", conv(b, gate, 2), y), 3)


def with_activation(b, x):
    """The second region reads the shortcut by an operator that takes any layout."""
    y = conv(b, x, 0)
    gate = b.op("floor", conv(b, y, 1))
    return conv(b, b.op("multiply", b.op("tanh", y), conv(b, gate, 2)), 3)


def with_a_pool(b, x):
    """The first region writes what a pooling gives, which has the order of what it reads."""
    window = {"pool_size": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1)}
    y = b.op("nn.max_pool2d", conv(b, x, 0), **window)
    gate = b.op("floor", conv(b, y, 1))
    return conv(b, b.op("nn.max_pool2d", b.op("add", y, conv(b, gate, 2)), **window), 3)


def compiled(build, shape=SHAPE):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(build(b, b.input("x", shape)))})
    return ky.compile(module, backends=["dnnl"], strict=True), ky.compile(module, backends=[])


def reorders(exe, x):
    """The reorders in a call, by what they are for."""
    steps = exe.profile([x], calls=2).steps
    assert sum(step.module == "dnnl" for step in steps) > 1, "there is a border"
    return [part.label for step in steps for part in step.inside if part.label.startswith("reorder")]


@pytest.mark.parametrize("build", [with_shortcut, with_activation, with_a_pool])
def test_no_copy_for_what_only_regions_read(build):
    exe, others = compiled(build)
    x = np.random.default_rng(9).standard_normal(SHAPE, dtype=np.float32)
    np.testing.assert_allclose(exe(x).numpy(), others(x).numpy(), rtol=1e-4, atol=1e-4)
    # The image comes in row-major, and the result is to be row-major; floor takes what it is given.
    assert len(reorders(exe, x)) == 2


def test_sizes_may_be_open():
    from kernelyard.dims import symbol

    exe, others = compiled(with_shortcut, (symbol("n"), 24, symbol("h"), 12))
    for shape in [(1, 24, 10, 12), (3, 24, 7, 12)]:
        x = np.random.default_rng(9).standard_normal(shape, dtype=np.float32)
        np.testing.assert_allclose(exe(x).numpy(), others(x).numpy(), rtol=1e-4, atol=1e-4)


def test_an_artifact_has_them(tmp_path):
    exe, _ = compiled(with_shortcut)
    x = np.random.default_rng(9).standard_normal(SHAPE, dtype=np.float32)
    exe.save(tmp_path / "model.kyar")
    np.testing.assert_array_equal(ky.load(tmp_path / "model.kyar")(x).numpy(), exe(x).numpy())


def test_profiles_name_the_nodes_of_the_model():
    """Renaming dims at a border is of no node; the nodes of all others stay known."""
    exe, _ = compiled(with_shortcut)
    profile = exe.profile([np.zeros(SHAPE, np.float32)], calls=2)
    parts = [part for step in profile.steps for part in step.inside if part.label.startswith("conv")]
    assert len(parts) == 4
    assert all(part.nodes for part in parts)


def test_parameters_that_follow_each_other():
    """The second region reads two parameters alike: each would come in the order of the other."""

    def two_regions(b, x):
        y = conv(b, x, 0)
        return b.op("add", b.op("tanh", y), b.op("sigmoid", b.op("floor", y)))

    exe, others = compiled(two_regions)
    x = np.random.default_rng(9).standard_normal(SHAPE, dtype=np.float32)
    np.testing.assert_allclose(exe(x).numpy(), others(x).numpy(), rtol=1e-4, atol=1e-4)


def test_long_chains():
    def chains(b, x):
        y = b.op("floor", conv(b, x, 0))
        for index in range(2000):
            y = b.op(("tanh", "sigmoid")[index % 2], y)
        return y

    exe, others = compiled(chains, (1, 24, 2, 2))
    x = np.random.default_rng(9).standard_normal((1, 24, 2, 2), dtype=np.float32)
    np.testing.assert_allclose(exe(x).numpy(), others(x).numpy(), rtol=1e-4, atol=1e-4)
