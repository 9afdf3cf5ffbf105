"""Chains of post-ops over integers: whatever is put off, merged or left out, the same is stored."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.primitive_attributes import Eltwise
from kernelyard_dnnl.primitives.affine import Affine
from kernelyard_dnnl.primitives.post_ops import Step
from kernelyard_dnnl.primitives.requantization import Line, chain_of
from kernelyard_dnnl.values import Buffer, Value

X = np.linspace(-40, 40, 161)
STORED = np.arange(161) % 101


def constant(array):
    array = np.asarray(array)
    return Value(Buffer(array.nbytes, constant=array.reshape(-1)), dense((1,), array.dtype.name))


def affine(scale, zero):
    return Affine(constant(np.float32(scale)), constant(np.int32(zero)))


def function(algorithm, alpha=0.0, beta=0.0):
    return Step("eltwise", Eltwise(algorithm, alpha, beta))


scales = st.sampled_from([0.25, 0.5, 1.0, 3.0])
zeros = st.integers(-20, 20)
functions = st.one_of(
    st.builds(lambda a, b: function("linear", a, b), st.sampled_from([-2.0, 0.5, 1.0, 3.0]), zeros.map(float)),
    st.builds(lambda a, size: function("clip", float(a), a + size), zeros, st.sampled_from([0.5, 30.0, math.inf])),
    st.just(function("relu")),
    st.just(function("tanh")),
)
residuals = st.builds(
    lambda algorithm, scale, zero: Step("binary", algorithm=algorithm, affine=affine(scale, zero)),
    st.sampled_from(["add", "sub"]), scales, zeros,
)  # fmt: skip


def applied(step, x):
    """A step as the reference has it: residuals are dequantized."""
    if step.eltwise is None:
        scale, zero = step.affine.numbers if step.affine is not None else (1.0, 0)
        operand = (STORED - zero) * scale
        return x + operand if step.algorithm == "add" else x - operand
    algorithm, alpha, beta = step.eltwise
    if algorithm == "linear":
        return alpha * x + beta
    if algorithm == "clip":
        return np.clip(x, alpha, beta)
    if algorithm == "round":
        return np.rint(x)
    return np.maximum(x, 0) if algorithm == "relu" else np.tanh(x)


def rounded_alike(found, expected, dtype):
    """True where both are rounded to the same integers, but for numbers that lie so near a half that float32 cannot
    tell its sides."""
    limits = np.iinfo(dtype)
    one, other = (np.clip(np.rint(x), limits.min, limits.max) for x in (found, expected))
    is_half = np.abs(expected - np.floor(expected) - 0.5) < 1e-5 * np.maximum(1, np.abs(expected))
    return np.all((one == other) | (is_half & (np.abs(one - other) <= 1)))


@given(
    st.lists(st.one_of(functions, residuals), max_size=5), st.sampled_from(["int8", "uint8", None]), scales, zeros,
    st.sampled_from([Line(), Line(0.5, 3.0)]),
)  # fmt: skip
def test_chains_store_the_same(steps, dtype, scale, zero, first):
    result = None if dtype is None else affine(scale, zero)
    chain = chain_of(steps, result, dtype or "float32", first)
    expected, found = X * first.scale + first.offset, X * chain.line.scale + chain.line.offset
    for step in steps:
        expected = applied(step, expected)
    for step in chain.steps:
        assert step.affine is None
        found = applied(step, found)
    if dtype is None:
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        return
    assert rounded_alike(found, expected / scale + zero, dtype)
    if not steps and scale <= 1:
        # Powers of two are exact: ONNX takes the even one of two codes as near before it adds the zero point.
        limits = np.iinfo(dtype)
        np.testing.assert_array_equal(
            np.clip(np.rint(found), limits.min, limits.max),
            np.clip(np.rint(expected / scale) + zero, limits.min, limits.max),
        )


def test_a_relu_that_the_range_cuts_costs_nothing():
    chain = chain_of([function("relu")], affine(0.5, 0), "uint8")
    assert chain == (Line(2.0, 0.0), [])
    chain = chain_of([function("relu")], affine(0.5, -128), "int8")
    assert chain == (Line(2.0, -128.0), [])


def test_another_relu_is_a_clip_after_the_scales():
    chain = chain_of([function("relu")], affine(0.5, 4), "uint8")
    assert chain == (Line(2.0, 4.0), [function("clip", 4.0, math.inf)])


def test_functions_are_scaled_where_they_stand():
    chain = chain_of([function("tanh")], affine(0.5, 4), "uint8")
    assert chain == (Line(), [function("tanh"), function("linear", 2.0, 4.0)])


def test_codes_are_rounded_before_an_odd_zero_point():
    """Where some lie in the middle of two others."""
    chain = chain_of([], affine(0.5, 3), "uint8")
    assert chain == (Line(2.0, 0.0), [function("round"), function("linear", 1.0, 3.0)])
    chain = chain_of([], affine(0.3, 3), "uint8")
    assert not any(step.eltwise is not None and step.eltwise.algorithm == "round" for step in chain.steps)
