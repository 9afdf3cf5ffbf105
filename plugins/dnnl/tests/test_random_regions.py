"""Random graphs against NumPy: whatever is reused, shared or done in place, the numbers stay right."""

from __future__ import annotations

import numpy as np
import pytest

F = np.float64
SHAPE = (2, 12, 5, 5)


class Twin:
    """Builds a graph and, beside it, evaluates it in float64."""

    def __init__(self, builder, rng):
        self.builder = builder
        self.rng = rng
        self.values: list[tuple[list[int], np.ndarray]] = []

    def input(self):
        x = self.rng.standard_normal(SHAPE).astype(np.float32)
        self.values.append((self.builder.input(SHAPE), x.astype(F)))
        return x

    def any(self):
        # Recent tensors more often, so that chains form.
        back = min(int(self.rng.geometric(0.4)), len(self.values))
        return self.values[-back]

    def node(self, op, expected, operands, **attrs):
        entry = self.builder.kernel(op, expected.shape, operands, **attrs)
        self.values.append((entry, expected))

    def post_ops(self, result, operands):
        chain = []
        for index in range(int(self.rng.integers(0, 3))):
            if self.rng.random() < 0.5:
                chain.append({"kind": "eltwise", "algorithm": "tanh"})
                result = np.tanh(result)
                continue
            entry, other = self.any()
            operands[f"post{index}"] = entry
            if self.rng.random() < 0.7:
                chain.append({"kind": "sum", "role": f"post{index}"})
                result = result + other
            else:
                chain.append({"kind": "binary", "algorithm": "max", "role": f"post{index}"})
                result = np.maximum(result, other)
        return result, chain

    def conv(self):
        entry, x = self.any()
        w = (self.rng.standard_normal((SHAPE[1], SHAPE[1], 1, 1)) / 4).astype(np.float32)
        operands = {"data": entry, "weight": self.builder.constant(w)}
        result, chain = self.post_ops(np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0].astype(F)), operands)
        window = {"strides": (1, 1), "padding_begin": (0, 0), "padding_end": (0, 0), "dilation": (1, 1)}
        self.node("conv", result, operands, rank=2, groups=1, post_ops=chain, **window)

    def eltwise(self):
        entry, x = self.any()
        operands = {"x": entry}
        result, chain = self.post_ops(0.5 * x + 0.1, operands)
        self.node("eltwise", result, operands, algorithm="linear", alpha=0.5, beta=0.1, post_ops=chain)

    def binary(self):
        (a, x), (b, y) = self.any(), self.any()
        operands = {"a": a, "b": b}
        result, chain = self.post_ops(x - y, operands)
        self.node("binary", result, operands, algorithm="sub", post_ops=chain)

    def scaled(self):
        """A tensor times its mean over space, as squeeze-and-excitation has it."""
        entry, x = self.any()
        mean = x.mean((2, 3), keepdims=True)
        small = self.builder.kernel("reduce", mean.shape, {"x": entry}, algorithm="mean", axes=(2, 3), keepdims=True)
        self.node("binary", x * mean, {"a": entry, "b": small}, algorithm="mul", post_ops=[])

    def transposed(self):
        """There and back again by a permutation and a reshape, through a softmax."""
        entry, x = self.any()
        transposed = self.builder.kernel("reorder", (2, 5, 5, 12), {"x": entry}, axes=(0, 2, 3, 1))
        flat = self.builder.kernel("reshape", (50, 12), {"x": transposed})
        soft = self.builder.kernel("softmax", (50, 12), {"x": flat}, axis=1)
        full = self.builder.kernel("reshape", (2, 5, 5, 12), {"x": soft})
        e = np.exp(x - x.max(1, keepdims=True))
        self.node("reorder", e / e.sum(1, keepdims=True), {"x": full}, axes=(0, 3, 1, 2))

    def sliced(self):
        """The two halves of the channels, swapped by arithmetic on views."""
        entry, x = self.any()
        slices = [
            self.builder.kernel("slice", (2, 6, 5, 5), {"x": entry}, axes=(1,), begin=(begin,), strides=(1,))
            for begin in (0, 6)
        ]
        halves = x[:, :6], x[:, 6:]
        both = self.builder.kernel("binary", (2, 6, 5, 5), {"a": slices[0], "b": slices[1]}, algorithm="add")
        joined = np.concatenate([halves[1], halves[0] + halves[1]], 1)
        self.node("concat", joined, {"x0": slices[1], "x1": both}, axis=1)

    def strided(self):
        """Every second row and column, made large again by repetition."""
        entry, x = self.any()
        small = self.builder.kernel("slice", (2, 12, 2, 2), {"x": entry}, axes=(2, 3), begin=(1, 0), strides=(2, 3))
        wide = self.builder.kernel("resample", (2, 12, 4, 4), {"x": small}, algorithm="nearest", post_ops=[])
        row = self.builder.kernel("slice", (2, 12, 1, 1), {"x": wide}, axes=(2, 3), begin=(3, 1), strides=(1, 1))
        self.node("binary", x * x[:, :, 3:4, 0:1], {"a": entry, "b": row}, algorithm="mul", post_ops=[])

    def padded(self):
        """Half of the channels between zeros, added to the whole."""
        entry, x = self.any()
        half = self.builder.kernel("slice", (2, 6, 5, 5), {"x": entry}, axes=(1,), begin=(3,), strides=(1,))
        whole = self.builder.kernel("pad", (2, 12, 5, 5), {"x": half}, begin=(0, 2, 0, 0))
        wide = np.pad(x[:, 3:9], ((0, 0), (2, 4), (0, 0), (0, 0)))
        self.node("binary", x + wide, {"a": entry, "b": whole}, algorithm="add", post_ops=[])

    def joined(self):
        (a, x), (b, y) = self.any(), self.any()
        both = self.builder.kernel("concat", (2, 24, 5, 5), {"x0": a, "x1": b}, axis=1)
        w = (self.rng.standard_normal((12, 24, 1, 1)) / 5).astype(np.float32)
        result = np.einsum("nchw,oc->nohw", np.concatenate([x, y], 1), w[:, :, 0, 0].astype(F))
        window = {"strides": (1, 1), "padding_begin": (0, 0), "padding_end": (0, 0), "dilation": (1, 1)}
        operands = {"data": both, "weight": self.builder.constant(w)}
        self.node("conv", result, operands, rank=2, groups=1, post_ops=[], **window)


STEPS = ("conv", "conv", "eltwise", "binary", "scaled", "transposed", "joined", "sliced", "strided", "padded")


@pytest.mark.parametrize("seed", range(40))
def test_random_region(seed, builder):
    rng = np.random.default_rng(seed)
    twin = Twin(builder, rng)
    feeds = [twin.input() for _ in range(2)]
    for _ in range(int(rng.integers(3, 14))):
        getattr(twin, STEPS[int(rng.integers(len(STEPS)))])()
    count = int(rng.integers(1, 4))
    chosen = [twin.values[-1], *(twin.values[int(i)] for i in rng.integers(0, len(twin.values), count))]
    actual, ran = builder.run([entry for entry, _ in chosen], *feeds)
    for result, (_, expected) in zip(actual, chosen, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
    assert not any("ref" in implementation for _, implementation in ran), ran
