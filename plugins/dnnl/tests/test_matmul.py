"""matmul against NumPy in float64: ranks, transpositions, batches, constants, bias and post-ops."""

from __future__ import annotations

import numpy as np
import pytest

SHAPES = [
    ((5, 7), (7, 9)), ((1, 64), (64, 100)), ((128, 96), (96, 64)), ((2, 5, 7), (7, 9)), ((2, 3, 5, 7), (7, 9)),
    ((2, 5, 7), (2, 7, 9)), ((2, 3, 5, 7), (2, 3, 7, 9)), ((2, 1, 5, 7), (1, 3, 7, 9)), ((5, 7), (3, 7, 9)),
    ((3, 5, 7), (1, 7, 9)), ((2, 3, 5, 7), (3, 7, 9)), ((7,), (7, 9)), ((5, 7), (7,)), ((7,), (7,)), ((2, 5, 7), (7,)),
    ((7,), (3, 7, 9)), ((4, 1), (1, 6)), ((1, 1, 7), (7, 9)), ((5, 7), (7, 1)),
]  # fmt: skip


def multiply(
    builder, a, b, expected, *, constant, transpose_a=False, transpose_b=False, bias=None, post_ops=(), **operands
):
    left = np.swapaxes(a, -1, -2).copy() if transpose_a else a
    right = np.swapaxes(b, -1, -2).copy() if transpose_b else b
    entries = {"a": builder.input(left.shape), "b": builder.constant(right) if constant else builder.input(right.shape)}
    feeds = [left] if constant else [left, right]
    if bias is not None:
        entries["bias"] = builder.constant(bias)
    for role, array in operands.items():
        entries[role] = builder.input(array.shape)
        feeds.append(array)
    y = builder.kernel(
        "matmul", expected.shape, entries, transpose_a=transpose_a, transpose_b=transpose_b, post_ops=list(post_ops)
    )
    (actual,), ran = builder.run([y], *feeds)
    assert not any("ref" in implementation for _, implementation in ran), ran
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    return ran


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("constant", [True, False])
def test_matmul(shapes, constant, builder, rng):
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    multiply(builder, a, b, np.matmul(a.astype(np.float64), b), constant=constant)


@pytest.mark.parametrize("transposed", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shapes", [((5, 7), (7, 9)), ((2, 5, 7), (7, 9)), ((2, 3, 5, 7), (2, 3, 7, 9))], ids=str)
@pytest.mark.parametrize("constant", [True, False])
def test_transposed(shapes, transposed, constant, builder, rng):
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    expected = np.matmul(a.astype(np.float64), b)
    multiply(builder, a, b, expected, constant=constant, transpose_a=transposed[0], transpose_b=transposed[1])


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_bias_and_post_ops(shapes, builder, rng):
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    product = np.matmul(a.astype(np.float64), b)
    operands = {
        "post1": rng.standard_normal(product.shape).astype(np.float32),
        "post2": rng.standard_normal(product.shape[-1:]).astype(np.float32),
    }
    post_ops = [
        {"kind": "eltwise", "algorithm": "tanh"},
        {"kind": "sum", "role": "post1"},
        {"kind": "binary", "algorithm": "mul", "role": "post2"},
    ]
    bias = rng.standard_normal(shapes[1][-1], dtype=np.float32) if len(shapes[1]) > 1 else None
    expected = (np.tanh(product + (0 if bias is None else bias)) + operands["post1"]) * operands["post2"]
    multiply(builder, a, b, expected, constant=True, bias=bias, post_ops=post_ops, **operands)


def test_batches_become_rows(builder, rng):
    a, b = rng.standard_normal((2, 3, 5, 7), dtype=np.float32), rng.standard_normal((7, 9), dtype=np.float32)
    c = rng.standard_normal((1, 3, 5, 9), dtype=np.float32)
    post_ops = [{"kind": "binary", "algorithm": "add", "role": "post0"}]
    multiply(builder, a, b, np.matmul(a.astype(np.float64), b) + c, constant=True, post_ops=post_ops, post0=c)
