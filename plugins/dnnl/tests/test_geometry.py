"""Matrix products and convolutions of every shape: ranks, batches, transpositions, windows, groups; each is taken as one
composite, and right."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky


def weights(*shape, scale=0.3, seed=1):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# --- matrix products --------------------------------------------------------------------------------------------------
SHAPES = [
    ((5, 7), (7, 9)), ((1, 64), (64, 100)), ((2, 5, 7), (7, 9)), ((2, 3, 5, 7), (7, 9)), ((2, 5, 7), (2, 7, 9)),
    ((2, 3, 5, 7), (2, 3, 7, 9)), ((2, 1, 5, 7), (1, 3, 7, 9)), ((5, 7), (3, 7, 9)), ((3, 5, 7), (1, 7, 9)),
    ((2, 3, 5, 7), (3, 7, 9)), ((7,), (7, 9)), ((5, 7), (7,)), ((2, 5, 7), (7,)), ((7,), (3, 7, 9)), ((4, 1), (1, 6)),
    ((2, 2, 2, 5, 7), (7, 9)), ((1, 1, 7), (7, 9)), ((5, 7), (7, 1)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("is_constant", [True, False])
def test_matmul(shapes, is_constant, offloading):
    left, right = shapes
    w = weights(*right)
    if is_constant:
        offloading.taken("dnnl.matmul", "matmul nn.relu", lambda b, x: b.op("nn.relu", b.op("matmul", x, w)), left)
    else:
        offloading.taken(
            "dnnl.matmul", "matmul nn.relu", lambda b, x, y: b.op("nn.relu", b.op("matmul", x, y)), left, right
        )


@pytest.mark.parametrize("shapes", [((7,), (7, 9)), ((5, 7), (7,)), ((2, 5, 7), (7,)), ((7,), (3, 7, 9))], ids=str)
def test_a_vector_in_a_product_with_operands_after_it(shapes, offloading):
    """What looks like a bias of the last dim is none where the product has no columns."""
    left, right = shapes
    result = np.matmul(np.zeros(left), np.zeros(right)).shape

    def build(b, x, y, r, s):
        return b.op("add", b.op("nn.gelu", b.op("add", b.op("matmul", x, y), r)), s)

    offloading.taken("dnnl.matmul", "matmul add nn.gelu add", build, left, right, result[-1:], result)


def swapped(b, x):
    rank = x.type.rank
    return b.op("permute_dims", x, axes=(*range(rank - 2), rank - 1, rank - 2))


@pytest.mark.parametrize("sides", ["left", "right", "both"])
@pytest.mark.parametrize("shapes", [((5, 7), (7, 9)), ((2, 5, 7), (2, 7, 9)), ((2, 3, 5, 7), (3, 7, 9))], ids=str)
def test_transposed_matmul(sides, shapes, offloading):
    left, right = shapes
    if sides != "right":
        left = (*left[:-2], left[-1], left[-2])
    if sides != "left":
        right = (*right[:-2], right[-1], right[-2])

    def build(b, x, y):
        x = swapped(b, x) if sides != "right" else x
        y = swapped(b, y) if sides != "left" else y
        return b.op("nn.relu", b.op("matmul", x, y))

    swaps = ["permute_dims"] * (2 if sides == "both" else 1)
    exe = offloading.taken("dnnl.transposed_matmul", " ".join([*swaps, "matmul", "nn.relu"]), build, left, right)
    assert [label for label, _ in offloading.implementations(exe)] == ["matmul (node 2)"]


def test_a_product_of_a_tensor_with_its_own_transpose(offloading):
    def build(b, x):
        return b.op("matmul", x, swapped(b, x))

    offloading.taken("dnnl.transposed_matmul", "permute_dims matmul", build, (2, 5, 7))


def test_a_transpose_that_others_read_too_stays_outside(offloading):
    def build(b, x, y):
        t = swapped(b, y)
        return b.op("add", b.op("matmul", x, t), b.op("sum", t, axes=(0,), keepdims=True))

    module = offloading.module(build, (5, 7), (9, 7))
    exe = ky.compile(module, backends=["dnnl"])
    assert [r.pattern for r in exe.report.regions] == ["dnnl.reorder", "dnnl.reduce", "dnnl.matmul"]
    offloading.right(module, exe)


def test_attention_is_read_through_strides(offloading):
    """Heads are split and joined by permutations that no copy carries out."""

    def build(b, q, k, v):
        q, k, v = (b.op("reshape", x, shape=(2, 12, 4, 8)) for x in (q, k, v))
        q, v = (b.op("permute_dims", x, axes=(0, 2, 1, 3)) for x in (q, v))
        scores = b.op("multiply", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 2, 3, 1))), 0.35)
        context = b.op("matmul", b.op("nn.softmax", scores, axis=3), v)
        return b.op("reshape", b.op("permute_dims", context, axes=(0, 2, 1, 3)), shape=(2, 12, 32))

    module = offloading.module(build, (2, 12, 32), (2, 12, 32), (2, 12, 32))
    exe = ky.compile(module, backends=["dnnl"])
    offloading.right(module, exe)
    assert {row.backend for row in exe.report.placed} <= {"dnnl", "view"}
    # One copy only: the result, whose heads lie side by side.
    assert [label.split(" (")[0] for label, _ in offloading.implementations(exe)][:3] == ["matmul", "softmax", "matmul"]
    assert len(offloading.implementations(exe)) == 4


# --- convolutions -----------------------------------------------------------------------------------------------------
# (data, weight, strides, padding, dilation, groups)
CONVOLUTION_CASES = {
    "1d": ((2, 3, 17), (8, 3, 3), (1,), (1, 1), (1,), 1),
    "1d strided dilated": ((1, 6, 40), (4, 6, 5), (3,), (2, 0), (2,), 1),
    "1d depthwise": ((1, 16, 20), (16, 1, 5), (1,), (4, 0), (1,), 16),
    "2d": ((1, 16, 9, 11), (24, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "2d strided": ((1, 3, 32, 32), (24, 3, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    "2d 1x1": ((2, 48, 7, 5), (32, 48, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "2d asymmetric padding": ((1, 8, 10, 10), (8, 8, 2, 2), (1, 1), (0, 2, 1, 0), (1, 1), 1),
    "2d dilated": ((1, 8, 14, 14), (12, 8, 3, 3), (1, 1), (2, 3, 2, 3), (2, 3), 1),
    "2d grouped": ((1, 32, 8, 8), (64, 8, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    "2d depthwise": ((1, 48, 12, 9), (48, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 48),
    "2d depthwise strided, odd": ((2, 19, 12, 9), (19, 1, 5, 5), (2, 1), (2, 2, 2, 2), (1, 1), 19),
    "2d depthwise multiplied": ((1, 8, 6, 6), (16, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 8),
    "2d one pixel wide": ((1, 16, 40, 1), (16, 16, 3, 1), (2, 1), (1, 0, 1, 0), (1, 1), 1),
    "2d one pixel wide, kernel beyond": ((1, 16, 40, 1), (16, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "2d one pixel": ((1, 16, 1, 1), (32, 16, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "3d": ((1, 4, 5, 6, 7), (8, 4, 3, 3, 3), (1, 2, 1), (1, 1, 0, 1, 0, 1), (1, 1, 1), 1),
    "3d one pixel wide": ((1, 4, 1, 9, 1), (8, 4, 1, 3, 1), (1, 1, 1), (0, 1, 0, 0, 1, 0), (1, 1, 1), 1),
    "3d depthwise": ((1, 16, 5, 6, 7), (16, 1, 3, 3, 3), (1, 1, 1), (1, 1, 1, 1, 1, 1), (1, 1, 1), 16),
}
TRANSPOSED_CASES = {
    "1d": ((1, 8, 9), (8, 6, 3), (2,), (1, 1), (1,), 1, (1,)),
    "2d": ((1, 16, 6, 5), (16, 24, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, (0, 0)),
    "2d upsampling": ((1, 24, 8, 8), (24, 24, 2, 2), (2, 2), (0, 0, 0, 0), (1, 1), 1, (0, 0)),
    "2d to one channel": ((2, 24, 8, 8), (24, 1, 2, 2), (2, 2), (0, 0, 0, 0), (1, 1), 1, (0, 0)),
    "2d output padding": ((1, 8, 5, 6), (8, 8, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, (1, 1)),
    "2d asymmetric padding": ((1, 8, 5, 6), (8, 8, 4, 3), (2, 1), (1, 0, 2, 1), (1, 1), 1, (0, 0)),
    "2d grouped": ((1, 16, 6, 6), (16, 4, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 4, (0, 0)),
    "2d depthwise": ((1, 16, 6, 6), (16, 1, 4, 4), (2, 2), (1, 1, 1, 1), (1, 1), 16, (0, 0)),
    "2d dilated": ((1, 8, 6, 6), (8, 8, 3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1, (0, 0)),
    "3d": ((1, 4, 3, 4, 5), (4, 8, 2, 2, 2), (2, 2, 2), (0, 0, 0, 0, 0, 0), (1, 1, 1), 1, (0, 0, 0)),
}


@pytest.mark.parametrize("case", CONVOLUTION_CASES)
@pytest.mark.parametrize("is_constant", [True, False])
def test_convolution(case, is_constant, offloading):
    data, weight, strides, padding, dilation, groups = CONVOLUTION_CASES[case]
    op = f"nn.conv{len(strides)}d"
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    w, beta = weights(*weight), weights(weight[0], *[1] * len(strides))
    inputs = [data] if is_constant else [data, weight]

    def build(b, x, v=None):
        return b.op("nn.hard_swish", b.op("add", b.op(op, x, w if v is None else v, **attrs), beta))

    offloading.taken(f"dnnl.{op.removeprefix('nn.')}", f"{op} add nn.hard_swish", build, *inputs)


@pytest.mark.parametrize("case", TRANSPOSED_CASES)
def test_transposed_convolution(case, offloading):
    data, weight, strides, padding, dilation, groups, output_padding = TRANSPOSED_CASES[case]
    op = f"nn.conv{len(strides)}d_transpose"
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    w, beta = weights(*weight), weights(weight[1] * groups, *[1] * len(strides))

    def build(b, x):
        return b.op("nn.relu", b.op("add", b.op(op, x, w, output_padding=output_padding, **attrs), beta))

    offloading.taken(f"dnnl.{op.removeprefix('nn.')}", f"{op} add nn.relu", build, data)
