"""conv and conv_transpose against a direct evaluation in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

F = np.float64


def pad(x, begin, end):
    return np.pad(x, [(0, 0), (0, 0), *zip(begin, end, strict=True)])


def convolve(x, w, strides, begin, end, dilation, groups):
    """Direct convolution: a sum over the positions of the kernel."""
    x, w = pad(x.astype(F), begin, end), w.astype(F)
    n, _, *size = x.shape
    o, i, *kernel = w.shape
    out = [(s - (k - 1) * d - 1) // t + 1 for s, k, d, t in zip(size, kernel, dilation, strides, strict=True)]
    result = np.zeros((n, o, *out))
    for position in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(p * d, p * d + (e - 1) * t + 1, t)
            for p, d, e, t in zip(position, dilation, out, strides, strict=True)
        )
        part = x[(slice(None), slice(None), *window)].reshape(n, groups, i, -1)
        weight = w[(slice(None), slice(None), *position)].reshape(groups, o // groups, i)
        result += np.einsum("ngis,goi->ngos", part, weight).reshape(result.shape)
    return result


def convolve_transposed(x, w, strides, begin, end, dilation, groups, output_padding):
    x, w = x.astype(F), w.astype(F)
    n, i, *size = x.shape
    _, o, *kernel = w.shape
    full = [
        (s - 1) * t + (k - 1) * d + 1 + p
        for s, t, k, d, p in zip(size, strides, kernel, dilation, output_padding, strict=True)
    ]
    result = np.zeros((n, o * groups, *full))
    for position in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(p * d, p * d + (s - 1) * t + 1, t)
            for p, d, s, t in zip(position, dilation, size, strides, strict=True)
        )
        weight = w[(slice(None), slice(None), *position)].reshape(groups, i // groups, o)
        part = np.einsum("ngis,gio->ngos", x.reshape(n, groups, i // groups, -1), weight)
        result[(slice(None), slice(None), *window)] += part.reshape(n, o * groups, *size)
    cut = tuple(slice(b, f - e) for b, e, f in zip(begin, end, full, strict=True))
    return result[(slice(None), slice(None), *cut)]


# (data, weight, strides, begin, end, dilation, groups)
CASES = {
    "1d": ((2, 3, 17), (8, 3, 3), (1,), (1,), (1,), (1,), 1),
    "1d strided dilated": ((1, 6, 40), (4, 6, 5), (3,), (2,), (0,), (2,), 1),
    "2d": ((1, 16, 9, 11), (24, 16, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1),
    "2d first layer": ((1, 3, 32, 32), (24, 3, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1),
    "2d 1x1": ((2, 48, 7, 5), (32, 48, 1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1),
    "2d asymmetric": ((1, 8, 10, 10), (8, 8, 2, 2), (1, 1), (0, 0), (1, 1), (1, 1), 1),
    "2d dilated": ((1, 8, 14, 14), (12, 8, 3, 3), (1, 1), (2, 3), (2, 3), (2, 3), 1),
    "2d grouped": ((1, 32, 8, 8), (64, 8, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 4),
    "2d depthwise": ((1, 48, 12, 9), (48, 1, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 48),
    "2d depthwise odd channels": ((2, 19, 12, 9), (19, 1, 5, 5), (2, 1), (2, 2), (2, 2), (1, 1), 19),
    "2d depthwise multiplied": ((1, 8, 6, 6), (16, 1, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 8),
    "2d one channel": ((1, 7, 6, 6), (1, 7, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1),
    "2d after pooling": ((1, 48, 1, 1), (12, 48, 1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1),
    "3d": ((1, 4, 5, 6, 7), (8, 4, 3, 3, 3), (1, 2, 1), (1, 1, 1), (1, 0, 1), (1, 1, 1), 1),
    "3d depthwise": ((1, 16, 5, 6, 7), (16, 1, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), 16),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_convolution(case, has_bias, builder, rng):
    data, weight, strides, begin, end, dilation, groups = CASES[case]
    x = rng.standard_normal(data, dtype=np.float32)
    w = rng.standard_normal(weight, dtype=np.float32)
    b = rng.standard_normal(weight[0], dtype=np.float32)
    expected = convolve(x, w, strides, begin, end, dilation, groups)
    if has_bias:
        expected += b.reshape(-1, *[1] * (len(data) - 2))
    operands = {"data": builder.input(data), "weight": builder.constant(w)}
    if has_bias:
        operands["bias"] = builder.constant(b)
    y = builder.kernel(
        "conv", expected.shape, operands, rank=len(data) - 2, strides=strides, padding_begin=begin, padding_end=end,
        dilation=dilation, groups=groups, post_ops=[],
    )  # fmt: skip
    (actual,), ran = builder.run([y], x)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert not any("ref" in implementation for _, implementation in ran), ran


# (data, weight, strides, begin, end, dilation, groups, output_padding)
TRANSPOSED = {
    "1d": ((1, 8, 9), (8, 6, 3), (2,), (1,), (1,), (1,), 1, (1,)),
    "2d": ((1, 16, 6, 5), (16, 24, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, (0, 0)),
    "2d upsampling": ((1, 24, 8, 8), (24, 24, 2, 2), (2, 2), (0, 0), (0, 0), (1, 1), 1, (0, 0)),
    "2d upsampling to one": ((2, 24, 8, 8), (24, 1, 2, 2), (2, 2), (0, 0), (0, 0), (1, 1), 1, (0, 0)),
    "2d output padding": ((1, 8, 5, 6), (8, 8, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1, (1, 1)),
    "2d asymmetric": ((1, 8, 5, 6), (8, 8, 4, 3), (2, 1), (1, 0), (2, 1), (1, 1), 1, (0, 0)),
    "2d grouped": ((1, 16, 6, 6), (16, 4, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 4, (0, 0)),
    "2d depthwise": ((1, 16, 6, 6), (16, 1, 4, 4), (2, 2), (1, 1), (1, 1), (1, 1), 16, (0, 0)),
    "2d dilated": ((1, 8, 6, 6), (8, 8, 3, 3), (1, 1), (2, 2), (2, 2), (2, 2), 1, (0, 0)),
    "2d many channels": ((1, 256, 8, 12), (256, 64, 4, 4), (2, 2), (1, 1), (1, 1), (1, 1), 1, (0, 0)),
    "2d large window": ((1, 64, 8, 16), (64, 64, 8, 8), (4, 4), (2, 2), (2, 2), (1, 1), 1, (0, 0)),
    "2d odd result": ((1, 32, 8, 8), (32, 32, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1, (0, 0)),
    "3d": ((1, 4, 3, 4, 5), (4, 8, 2, 2, 2), (2, 2, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1), 1, (0, 0, 0)),
}


@pytest.mark.parametrize("case", TRANSPOSED)
@pytest.mark.parametrize("post_ops", [[], [{"kind": "eltwise", "algorithm": "relu"}]], ids=["bias", "bias, relu"])
def test_transposed_convolution(case, post_ops, builder, rng):
    data, weight, strides, begin, end, dilation, groups, output_padding = TRANSPOSED[case]
    x = rng.standard_normal(data, dtype=np.float32)
    w = rng.standard_normal(weight, dtype=np.float32)
    b = rng.standard_normal(weight[1] * groups, dtype=np.float32)
    expected = convolve_transposed(x, w, strides, begin, end, dilation, groups, output_padding)
    expected += b.reshape(-1, *[1] * (len(data) - 2))
    if post_ops:
        expected = expected.clip(0)
    operands = {"data": builder.input(data), "weight": builder.constant(w), "bias": builder.constant(b)}
    y = builder.kernel(
        "conv_transpose", expected.shape, operands, rank=len(data) - 2, strides=strides, padding_begin=begin,
        padding_end=end, dilation=dilation, groups=groups, output_padding=output_padding, post_ops=post_ops,
    )  # fmt: skip
    (actual,), ran = builder.run([y], x)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert not any("ref" in implementation for _, implementation in ran), ran


def test_weights_known_at_run_time(builder, rng):
    x = rng.standard_normal((1, 8, 6, 6), dtype=np.float32)
    w = rng.standard_normal((16, 8, 3, 3), dtype=np.float32)
    expected = convolve(x, w, (1, 1), (1, 1), (1, 1), (1, 1), 1)
    operands = {"data": builder.input(x.shape), "weight": builder.input(w.shape)}
    y = builder.kernel(
        "conv", expected.shape, operands, rank=2, strides=(1, 1), padding_begin=(1, 1), padding_end=(1, 1),
        dilation=(1, 1), groups=1, post_ops=[],
    )  # fmt: skip
    (actual,), _ = builder.run([y], x, w)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


WIDE = {
    "a column": ((2, 16, 30, 1), (24, 16, 3, 1), (1, 1), (1, 0)),
    "a row": ((2, 16, 1, 30), (24, 16, 1, 3), (1, 1), (0, 1)),
    "a column, strided": ((1, 16, 31, 1), (24, 16, 5, 1), (2, 1), (2, 0)),
    "one pixel": ((3, 16, 1, 1), (24, 16, 1, 1), (1, 1), (0, 0)),
    "a column of a volume": ((1, 8, 1, 20, 1), (8, 8, 1, 3, 1), (1, 1, 1), (0, 1, 0)),
}


@pytest.mark.parametrize("case", WIDE)
@pytest.mark.parametrize("depthwise", [True, False])
def test_images_one_pixel_wide(case, depthwise, builder, rng):
    """Spatial dims that nothing happens in are left out: oneDNN sees a convolution with fewer of them."""
    data, weight, strides, padding = WIDE[case]
    groups = data[1] if depthwise else 1
    weight = (data[1], 1, *weight[2:]) if depthwise else weight
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in (data, weight))
    b = rng.standard_normal(weight[0], dtype=np.float32)
    ones = (1,) * len(strides)
    expected = convolve(x, w, strides, padding, padding, ones, groups) + b.reshape(-1, *ones)
    residual = rng.standard_normal(expected.shape, dtype=np.float32)
    scale = rng.standard_normal((weight[0], *ones), dtype=np.float32)
    operands = {
        "data": builder.input(data), "weight": builder.constant(w), "bias": builder.constant(b),
        "post0": builder.input(residual.shape), "post1": builder.constant(scale),
    }  # fmt: skip
    post_ops = [{"kind": "sum", "role": "post0"}, {"kind": "binary", "algorithm": "mul", "role": "post1"}]
    y = builder.kernel(
        "conv", expected.shape, operands, rank=len(strides), strides=strides, padding_begin=padding,
        padding_end=padding, dilation=ones, groups=groups, post_ops=post_ops,
    )  # fmt: skip
    (actual,), ran = builder.run([y], x, residual)
    np.testing.assert_allclose(actual, (expected + residual) * scale, rtol=1e-4, atol=1e-4)
    assert not any("ref" in implementation for _, implementation in ran), ran


@pytest.mark.parametrize("size", [4, 7, 8, 15])
def test_padding_that_follows_from_a_symbol(size, builder, rng):
    """Automatic padding of a strided convolution: its amounts are expressions of the height and the width."""
    w = rng.standard_normal((8, 3, 3, 3), dtype=np.float32)
    total = "max(2 * ((h + 1) // 2) + 1 - h, 0)"
    begin, end = f"({total}) // 2", f"{total} - ({total}) // 2"
    operands = {"data": builder.input(("n", 3, "h", "h")), "weight": builder.constant(w)}
    y = builder.kernel(
        "conv", ("n", 8, "(h + 1) // 2", "(h + 1) // 2"), operands, rank=2, strides=(2, 2), padding_begin=(begin, begin),
        padding_end=(end, end), dilation=(1, 1), groups=1, post_ops=[],
    )  # fmt: skip
    x = rng.standard_normal((2, 3, size, size), dtype=np.float32)
    (actual,), _ = builder.run([y], x, n=2, h=size)
    amount = max(2 * ((size + 1) // 2) + 1 - size, 0)
    before, after = (amount // 2,) * 2, (amount - amount // 2,) * 2
    np.testing.assert_allclose(actual, convolve(x, w, (2, 2), before, after, (1, 1), 1), rtol=1e-4, atol=1e-4)
