"""Depthwise convolutions as part of the 1 x 1 convolution before them: that they are, their numbers, what keeps them apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitive_attributes import Depthwise
from kernelyard_dnnl.primitives import depthwise
from kernelyard_dnnl.runtime import DnnlRuntime

CLIP = {"kind": "eltwise", "algorithm": "clip", "alpha": 0.0, "beta": 6.0}
PLAIN: dict[str, Any] = {"rank": 2, "dilation": (1, 1), "post_ops": [CLIP]}
# What lies between is larger than what cores have for themselves.
WIDE = (1, 16, 192, 176)
CHANNELS = 96


def numbers(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def pair(b, x, shape=WIDE, channels=CHANNELS, stride=1, bias=True, first=None, second=None):
    """Both nodes: a 1 x 1 convolution of x, and the depthwise one of its result."""
    first, second = {**PLAIN, **(first or {})}, {**PLAIN, **(second or {})}
    begin = second.pop("padding_begin", (1, 1))
    vectors = [{"bias": b.constant(numbers(channels))} if bias else {} for _ in range(2)]
    image = shape[2:]
    between = b.kernel(
        "conv", (shape[0], channels, *image), {"data": x, "weight": b.constant(numbers(channels, shape[1], 1, 1)), **vectors[0]},
        strides=(1, 1), groups=1, padding_begin=(0, 0), padding_end=(0, 0), **first,
    )  # fmt: skip
    reach = 2 * second["dilation"][0]
    made = [(size + before - reach) // stride + 1 for size, before in zip(image, begin, strict=True)]
    result = b.kernel(
        "conv", (shape[0], channels, *made), {"data": between, "weight": b.constant(numbers(channels, 1, 3, 3)), **vectors[1]},
        strides=(stride, stride), groups=channels, padding_begin=begin, padding_end=(1, 1), **second,
    )  # fmt: skip
    return between, result


def depthwise_of(b, *outputs, threads=1):
    """The post-ops that are depthwise convolutions, in a graph's plan."""
    plan = DnnlRuntime([b.graph(*outputs)], b.constants).plan("dnnl_0", {}, threads)
    codes = [operation.code for operation in plan.operations]
    return [
        op for code in codes if isinstance(code, Primitive) for op in code.recipe.post_ops if isinstance(op, Depthwise)
    ]


def apart(new_builder, x, monkeypatch, **how):
    """What two primitives make of it."""
    with monkeypatch.context() as patch:
        patch.setattr(depthwise, "lower_with_pointwise", lambda *_: None)
        b = new_builder()
        _, result = pair(b, b.input(x.shape), x.shape, **how)
        assert not depthwise_of(b, result)
        ((expected,), _) = b.run([result], x)
    return expected


@pytest.fixture(autouse=True)
def needs_code(new_builder):
    """oneDNN has this code for AVX2 and AVX-512, where it knows how large caches are."""
    b = new_builder()
    if not depthwise_of(b, pair(b, b.input(WIDE))[1]):
        pytest.skip("this library has no such code for this processor")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("image", [(192, 176), (191, 177)])
def test_one_primitive_does_both(image, stride, bias, threads, new_builder, monkeypatch):
    x = numbers(2, WIDE[1], *image)
    how = {"stride": stride, "bias": bias}
    b = new_builder()
    _, result = pair(b, b.input(x.shape), x.shape, **how)
    assert depthwise_of(b, result, threads=threads) == [Depthwise(stride, bias)]
    (actual,), ran = b.run([result], x, threads=threads)
    assert [label for label, _ in ran if label.startswith("conv")] == [f"conv (node {result[0]})"]
    assert_allclose(actual, apart(new_builder, x, monkeypatch, **how))


@pytest.mark.parametrize(
    "how",
    [
        {"second": {"padding_begin": (0, 1)}},
        {"second": {"dilation": (2, 2), "padding_begin": (3, 3)}},
        {"first": {"post_ops": [{"kind": "binary", "algorithm": "mul", "role": "data"}]}, "channels": 16},
    ],
    ids=["other padding", "dilated", "another operand"],
)
def test_what_the_library_has_no_code_for_stays_apart(how, builder):
    _, result = pair(builder, builder.input(WIDE), **how)
    assert not depthwise_of(builder, result)


def test_a_tensor_that_others_read_is_made(new_builder, monkeypatch):
    x = numbers(*WIDE)
    b = new_builder()
    between, result = pair(b, b.input(x.shape))
    assert not depthwise_of(b, result, between)
    (actual, _), _ = b.run([result, between], x)
    assert_allclose(actual, apart(new_builder, x, monkeypatch))


def test_small_tensors_stay_apart(builder):
    """They are read from the cache as quickly as they were written."""
    shape = (1, 16, 14, 14)
    assert not depthwise_of(builder, pair(builder, builder.input(shape), shape)[1])


@pytest.mark.parametrize("codegen", ["json", "c"])
def test_a_program(codegen):
    """From operators, and as C text."""
    b = FunctionBuilder()
    attrs: dict[str, Any] = {"dilation": (1, 1)}
    y = b.op(
        "nn.conv2d",
        b.input("x", WIDE),
        numbers(CHANNELS, 16, 1, 1),
        strides=(1, 1),
        padding=(0,) * 4,
        groups=1,
        **attrs,
    )
    y = b.op("nn.relu", b.op("add", y, numbers(1, CHANNELS, 1, 1)))
    y = b.op("nn.conv2d", y, numbers(CHANNELS, 1, 3, 3), strides=(2, 2), padding=(1,) * 4, groups=CHANNELS, **attrs)
    module = IRModule({"main": b.function(b.op("nn.relu", b.op("add", y, numbers(1, CHANNELS, 1, 1))))})
    x = numbers(*WIDE)
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": codegen}})
    assert_allclose(exe(x), ky.compile(module, backends=[])(x).numpy())
