"""pool and reduce against NumPy in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

F = np.float64


def pool(x, algorithm, kernel, strides, begin, end, dilation):
    """Direct pooling; the divisor of the average counts the padding or only the elements that are there."""
    _, _, *size = x.shape
    widths = [(0, 0), (0, 0), *zip(begin, end, strict=True)]
    fill = -np.inf if algorithm == "max" else 0.0
    padded = np.pad(x.astype(F), widths, constant_values=fill)
    counted = np.pad(np.ones(size), widths[2:])
    out = [
        (s + b + e - (k - 1) * d - 1) // t + 1
        for s, b, e, k, d, t in zip(size, begin, end, kernel, dilation, strides, strict=True)
    ]
    parts, counts = [], []
    for position in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(p * d, p * d + (o - 1) * t + 1, t)
            for p, d, o, t in zip(position, dilation, out, strides, strict=True)
        )
        parts.append(padded[(slice(None), slice(None), *window)])
        counts.append(counted[window])
    if algorithm == "max":
        return np.max(parts, axis=0)
    divisor = len(parts) if algorithm == "avg_include_padding" else np.sum(counts, axis=0)
    return np.sum(parts, axis=0) / divisor


CASES = {
    "1d": ((2, 8, 17), (3,), (2,), (1,), (1,), (1,)),
    "2d": ((1, 16, 8, 8), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
    "2d same": ((1, 12, 9, 9), (2, 2), (1, 1), (0, 0), (1, 1), (1, 1)),
    "2d odd channels": ((2, 3, 17, 13), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "2d dilated": ((1, 16, 14, 14), (3, 3), (1, 1), (0, 0), (0, 0), (2, 2)),
    "2d global": ((2, 24, 7, 5), (7, 5), (1, 1), (0, 0), (0, 0), (1, 1)),
    "3d": ((1, 4, 6, 6, 6), (2, 2, 2), (2, 2, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("algorithm", ["max", "avg_include_padding", "avg_exclude_padding"])
def test_pool(case, algorithm, builder, rng):
    shape, kernel, strides, begin, end, dilation = CASES[case]
    x = rng.standard_normal(shape, dtype=np.float32)
    expected = pool(x, algorithm, kernel, strides, begin, end, dilation)
    y = builder.kernel(
        "pool", expected.shape, {"x": builder.input(shape)}, algorithm=algorithm, kernel=kernel, strides=strides,
        padding_begin=begin, padding_end=end, dilation=dilation, post_ops=[{"kind": "eltwise", "algorithm": "tanh"}],
    )  # fmt: skip
    (actual,), ran = builder.run([y], x)
    np.testing.assert_allclose(actual, np.tanh(expected), rtol=1e-4, atol=1e-5)
    if dilation == (1,) * len(dilation):
        assert not any("ref" in implementation for _, implementation in ran), ran


@pytest.mark.parametrize("algorithm", ["max", "avg_exclude_padding"])
def test_windows_past_the_end(algorithm, builder, rng):
    x = rng.standard_normal((1, 8, 6, 6), dtype=np.float32)
    expected = pool(x, algorithm, (3, 3), (2, 2), (0, 0), (1, 1), (1, 1))
    y = ceil_mode_pool(builder, x, algorithm)
    (actual,), _ = builder.run([y], x)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_padding_that_would_be_counted_is_refused(builder, rng):
    from kernelyard.errors import CodegenError

    x = rng.standard_normal((1, 8, 6, 6), dtype=np.float32)
    y = ceil_mode_pool(builder, x, "avg_include_padding")
    with pytest.raises(CodegenError, match="past the padding"):
        builder.run([y], x)


def ceil_mode_pool(builder, x, algorithm):
    return builder.kernel(
        "pool", (1, 8, 3, 3), {"x": builder.input(x.shape)}, algorithm=algorithm, kernel=(3, 3), strides=(2, 2),
        padding_begin=(0, 0), padding_end=(0, 0), dilation=(1, 1), post_ops=[],
    )  # fmt: skip


REDUCTIONS = {"mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


@pytest.mark.parametrize("algorithm", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5, 7), (1,)), ((5, 7), (0,)), ((5, 7), (0, 1)), ((2, 8, 5, 6), (2, 3)), ((2, 8, 5, 6), (1,)), ((2, 8, 5, 6), (0, 2)),
     ((3, 4, 5), (1,)), ((9,), (0,)), ((2, 8, 15), (2,)), ((2, 4, 3, 3, 3), (2, 3, 4)), ((3, 1, 5), (1,))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("keepdims", [True, False])
def test_reduce(algorithm, shape, axes, keepdims, builder, rng):
    x = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    expected = REDUCTIONS[algorithm](x.astype(F), axis=axes, keepdims=keepdims)
    y = builder.kernel(
        "reduce", expected.shape, {"x": builder.input(shape)}, algorithm=algorithm, axes=axes, keepdims=keepdims,
        post_ops=[{"kind": "eltwise", "algorithm": "linear", "alpha": 2.0, "beta": 1.0}],
    )  # fmt: skip
    (actual,), ran = builder.run([y], x)
    np.testing.assert_allclose(actual, 2 * expected + 1, rtol=1e-4)
    assert not any("ref" in implementation for _, implementation in ran), ran
