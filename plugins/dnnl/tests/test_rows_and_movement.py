"""softmax, normalisations, resample, concat, reorder and reshape against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

F = np.float64


def check(builder, y, expected, *feeds, rtol=1e-4):
    (actual,), ran = builder.run([y], *feeds)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-5)
    assert not any("ref" in implementation for _, implementation in ran), ran
    return ran


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5, 7), 1),
        ((5, 7), 0),
        ((5, 7), -1),
        ((2, 12, 9, 9), 3),
        ((2, 12, 9, 9), 1),
        ((2, 3, 4), 1),
        ((11,), 0),
        ((1, 1, 1), 2),
    ],
)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax(shape, axis, op, builder, rng):
    x = rng.standard_normal(shape, dtype=np.float32) * 3
    expected = softmax(x.astype(F), axis)
    y = builder.kernel(op, shape, {"x": builder.input(shape)}, axis=axis)
    check(builder, y, expected if op == "softmax" else np.log(expected), x)


@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 48), (2, 3, 4, 7), (31,)], ids=str)
def test_layer_norm(shape, builder, rng):
    x = rng.standard_normal(shape, dtype=np.float32)
    gamma, beta = (rng.standard_normal(shape[-1:], dtype=np.float32) for _ in range(2))
    z = x.astype(F)
    expected = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-5) * gamma + beta
    operands = {"x": builder.input(shape), "gamma": builder.constant(gamma), "beta": builder.constant(beta)}
    check(builder, builder.kernel("layer_norm", shape, operands, epsilon=1e-5), expected, x)


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 6), (2, 8, 5, 6), (1, 3, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("constant", [True, False])
def test_batch_norm(shape, constant, builder, rng):
    x = rng.standard_normal(shape, dtype=np.float32)
    stats = [rng.uniform(0.5, 2, shape[1]).astype(np.float32) for _ in range(4)]
    gamma, beta, mean, variance = (s.astype(F).reshape(-1, *[1] * (len(shape) - 2)) for s in stats)
    expected = (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    add = builder.constant if constant else lambda array: builder.input(array.shape)
    operands = {"x": builder.input(shape)} | dict(
        zip(("gamma", "beta", "mean", "variance"), map(add, stats), strict=True)
    )
    y = builder.kernel("batch_norm", shape, operands, epsilon=1e-3, post_ops=[{"kind": "eltwise", "algorithm": "relu"}])
    ran = check(builder, y, np.maximum(expected, 0), x, *([] if constant else stats))
    assert not constant or len(ran) == 1


def positions(size, out):
    return (np.arange(out) + 0.5) * size / out - 0.5


def resample(x, sizes, algorithm):
    x = x.astype(F)
    for axis, out in enumerate(sizes, start=2):
        where = positions(x.shape[axis], out)
        if algorithm == "nearest":
            x = np.take(x, np.floor(where + 0.5).astype(int), axis)
            continue
        low = np.floor(where).astype(int)
        weight = (where - low).reshape(-1, *[1] * (x.ndim - axis - 1))
        a, b = (np.take(x, np.clip(i, 0, x.shape[axis] - 1), axis) for i in (low, low + 1))
        x = a * (1 - weight) + b * weight
    return x


@pytest.mark.parametrize("algorithm", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((1, 8, 5), (10,)),
        ((2, 24, 4, 5), (8, 10)),
        ((1, 3, 8, 6), (12, 9)),
        ((1, 16, 8, 8), (3, 5)),
        ((1, 4, 3, 3, 3), (6, 6, 6)),
    ],
    ids=str,
)
def test_resample(shape, sizes, algorithm, builder, rng):
    x = rng.standard_normal(shape, dtype=np.float32)
    r = rng.standard_normal((*shape[:2], *sizes), dtype=np.float32)
    operands = {"x": builder.input(shape), "post0": builder.input(r.shape)}
    y = builder.kernel("resample", r.shape, operands, algorithm=algorithm, post_ops=[{"kind": "sum", "role": "post0"}])
    check(builder, y, resample(x, sizes, algorithm) + r, x, r)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_concat(axis, builder, rng):
    shapes = [[2, 3, 4, 5] for _ in range(3)]
    for size, shape in enumerate(shapes):
        shape[axis] += size
    xs = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    expected = np.concatenate(xs, axis)
    operands = {f"x{i}": builder.input(x.shape) for i, x in enumerate(xs)}
    check(builder, builder.kernel("concat", expected.shape, operands, axis=axis), expected, *xs)


def test_concat_of_nothing(builder):
    """Sizes that come when it runs may leave no element in any operand."""
    x, y = np.empty((2, 0), np.float32), np.empty((2, 0), np.float32)
    z = builder.kernel("concat", (2, 0), {"x0": builder.input(x.shape), "x1": builder.input(y.shape)}, axis=1)
    check(builder, z, np.concatenate([x, y], 1), x, y)


def test_concat_of_one_tensor_twice(builder, rng):
    x = rng.standard_normal((2, 3), dtype=np.float32)
    entry = builder.input(x.shape)
    y = builder.kernel("concat", (2, 6), {"x0": entry, "x1": entry}, axis=1)
    check(builder, y, np.concatenate([x, x], 1), x)


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 0, 2), (1, 0, 2, 3)])
def test_reorder(axes, builder, rng):
    x = rng.standard_normal((2, 3, 4, 5), dtype=np.float32)
    y = builder.kernel("reorder", x.transpose(axes).shape, {"x": builder.input(x.shape)}, axes=axes)
    check(builder, y, x.transpose(axes), x, rtol=0)


def test_reshape_between_permutations(builder, rng):
    x = rng.standard_normal((2, 3, 4, 5), dtype=np.float32)
    a = builder.kernel("reorder", (2, 4, 3, 5), {"x": builder.input(x.shape)}, axes=(0, 2, 1, 3))
    b = builder.kernel("reshape", (2, 4, 15), {"x": a})
    c = builder.kernel("reorder", (15, 2, 4), {"x": b}, axes=(2, 0, 1))
    check(builder, c, x.transpose(0, 2, 1, 3).reshape(2, 4, 15).transpose(2, 0, 1), x, rtol=0)


@pytest.mark.parametrize(
    ("axes", "begin", "strides", "index"),
    [
        ((1,), (1,), (1,), np.s_[:, 1:3]),
        ((0, 3), (1, 2), (1, 1), np.s_[1:2, :, :, 2:4]),
        ((2,), (1,), (2,), np.s_[:, :, 1::2]),
        ((), (), (), np.s_[:]),
    ],
)
def test_slice(axes, begin, strides, index, builder, rng):
    x = rng.standard_normal((2, 3, 4, 5), dtype=np.float32)[..., :4]
    y = builder.kernel("slice", x[index].shape, {"x": builder.input(x.shape)}, axes=axes, begin=begin, strides=strides)
    check(builder, y, x[index], x, rtol=0)


def test_slices_of_slices_of_constants_and_permutations(builder, rng):
    x = rng.standard_normal((6, 7, 8), dtype=np.float32)
    a = builder.kernel("slice", (3, 7, 8), {"x": builder.constant(x)}, axes=(0,), begin=(2,), strides=(1,))
    b = builder.kernel("reorder", (8, 3, 7), {"x": a}, axes=(2, 0, 1))
    c = builder.kernel("slice", (3, 3, 5), {"x": b}, axes=(0, 2), begin=(1, 1), strides=(2, 1))
    d = builder.kernel("reshape", (9, 5), {"x": c})
    w = rng.standard_normal((5, 4), dtype=np.float32)
    operands = {"a": d, "b": builder.input(w.shape)}
    y = builder.kernel("matmul", (9, 4), operands, transpose_a=False, transpose_b=False, post_ops=[])
    expected = x[2:5].transpose(2, 0, 1)[1:6:2, :, 1:6].reshape(9, 5).astype(F) @ w
    check(builder, y, expected, w)


def test_a_slice_that_follows_a_symbol(builder, rng):
    x = rng.standard_normal((2, 9, 4), dtype=np.float32)
    y = builder.kernel("slice", (2, 2, 4), {"x": builder.input((2, "n", 4))}, axes=(1,), begin=("n - 2",), strides=(1,))
    (actual,), _ = builder.run([y], x, n=9)
    np.testing.assert_array_equal(actual, x[:, -2:])
