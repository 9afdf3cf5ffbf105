"""Random programs of what dnnl takes, compiled and run against NumPy: whatever is grouped, the numbers stay right."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import evaluate, relative_error

CHANNELS = 8
UNARY = ("nn.relu", "sigmoid", "tanh", "nn.gelu", "nn.hard_swish", "nn.silu", "abs", "negative", "nn.elu")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")


class Program:
    """Grows a program step by step; every value is an image (n, 8, h, w)."""

    def __init__(self, seed: int, *, symbolic: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = FunctionBuilder()
        names = ("n", "h", "w")
        self.sizes = dict(zip(names, (2, 6, 5), strict=True))
        self.shape = (
            (dims.symbol("n"), CHANNELS, dims.symbol("h"), dims.symbol("w")) if symbolic else (2, CHANNELS, 6, 5)
        )
        self.values = [self.b.input(f"x{i}", self.shape) for i in range(2)]

    def weights(self, *shape):
        return (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def any(self):
        """A value, recent ones more often, so that chains form."""
        return self.values[-min(int(self.rng.geometric(0.5)), len(self.values))]

    def choice(self, items):
        return items[int(self.rng.integers(len(items)))]

    def conv(self, x, groups=1, kernel=None):
        k = kernel or self.choice((1, 3))
        weight = self.weights(CHANNELS, x.type.shape[1] // groups, k, k)
        window = {"strides": (1, 1), "padding": (k // 2,) * 4, "dilation": (1, 1)}
        return self.b.op("nn.conv2d", x, weight, groups=groups, **window)

    def convolution(self):
        y = self.conv(self.any())
        return self.b.op("add", y, self.weights(1, CHANNELS, 1, 1)) if self.rng.random() < 0.7 else y

    def depthwise(self):
        return self.conv(self.any(), groups=CHANNELS)

    def unary(self):
        return self.b.op(self.choice(UNARY), self.any())

    def binary(self):
        return self.b.op(self.choice(BINARY), self.any(), self.any())

    def scalar(self):
        x, c = self.any(), float(self.rng.uniform(0.5, 2))
        return self.b.op(self.choice(BINARY), *((x, c) if self.rng.random() < 0.5 else (c, x)))

    def quotient(self):
        denominator = self.b.op("add", self.b.op("abs", self.any()), 1.0)
        return self.b.op("divide", self.any() if self.rng.random() < 0.5 else 1.0, denominator)

    def scaled(self):
        """Squeeze and excitation."""
        x = self.any()
        gate = self.b.op("sigmoid", self.conv(self.b.op("mean", x, axes=(2, 3), keepdims=True), kernel=1))
        return self.b.op("multiply", x, gate)

    def pooled(self):
        window = {"pool_size": (3, 3), "strides": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "ceil_mode": False}
        if self.rng.random() < 0.5:
            return self.b.op("nn.max_pool2d", self.any(), **window)
        return self.b.op("nn.avg_pool2d", self.any(), count_include_pad=bool(self.rng.integers(2)), **window)

    def joined(self):
        return self.conv(self.b.op("concat", self.any(), self.any(), axis=1))

    def softmax(self):
        return self.b.op("nn.softmax", self.any(), axis=int(self.rng.integers(1, 4)))

    def transposed(self):
        """Channels last, a product over them and back."""
        y = self.b.op("permute_dims", self.any(), axes=(0, 2, 3, 1))
        y = self.b.op("matmul", y, self.weights(CHANNELS, CHANNELS))
        y = self.b.op("nn.layer_norm", y, self.weights(CHANNELS), self.weights(CHANNELS), axes=(3,), epsilon=1e-3)
        return self.b.op("permute_dims", y, axes=(0, 3, 1, 2))

    def attention(self):
        x = self.any()
        scores = self.b.op("matmul", x, self.b.op("permute_dims", self.any(), axes=(0, 1, 3, 2)))
        return self.b.op("matmul", self.b.op("nn.softmax", self.b.op("multiply", scores, 0.3), axis=3), x)

    def foreign(self):
        """Something that dnnl does not take."""
        return self.b.op("erf", self.any())

    STEPS = (
        convolution, convolution, depthwise, unary, unary, binary, binary, scalar, quotient, scaled, pooled, joined,
        softmax, transposed, attention, foreign,
    )  # fmt: skip

    def finish(self, steps):
        for _ in range(steps):
            self.values.append(self.choice(self.STEPS)(self))
        results = dict.fromkeys([self.values[-1], *(self.any() for _ in range(2))])
        return IRModule({"main": self.b.function(*results)})

    def feeds(self):
        shape = [self.sizes.get(str(dim), dim) for dim in self.shape]
        return [self.rng.standard_normal(shape).astype(np.float32) for _ in range(2)]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("symbolic", [True, False], ids=["symbolic", "static"])
def test_random_program(seed, symbolic):
    program = Program(seed, symbolic=symbolic)
    module = program.finish(int(program.rng.integers(3, 16)))
    exe = ky.compile(module, backends=["dnnl"])
    assert not exe.report.violations
    for n, h, w in ((2, 6, 5), (1, 7, 8)) if symbolic else ((2, 6, 5),):
        program.sizes = {"n": n, "h": h, "w": w}
        feeds = program.feeds()
        results = exe(*feeds)
        results = results if isinstance(results, tuple) else (results,)
        for actual, expected in zip(results, evaluate(module, feeds), strict=True):
            assert relative_error(actual, expected) < 1e-4
