"""Small models to quantize, and data to calibrate them with."""

from __future__ import annotations

import numpy as np

import kernelyard.ops  # noqa: F401  declares the operators
from kernelyard.ir import Function, FunctionBuilder, IRModule, Var


def _weight(rng: np.random.Generator, *shape: int) -> np.ndarray:
    fan_in = int(np.prod(shape[1:] if len(shape) > 2 else shape[:1]))
    return (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)


def convolutions() -> IRModule:
    """Two convolutions with biases, a residual, pools and a linear layer."""
    b, rng = FunctionBuilder(), np.random.default_rng(0)

    def layer(x: Var, channels: int) -> Var:
        product = b.op("nn.conv2d", x, _weight(rng, 16, channels, 3, 3), padding=(1, 1, 1, 1))
        return b.op("add", product, 0.3 * _weight(rng, 1, 16, 1, 1))

    x = b.op("nn.relu", layer(b.input("x", (4, 3, 16, 16)), 3))
    x = b.op("nn.max_pool2d", x, pool_size=(2, 2), strides=(2, 2))
    x = b.op("nn.relu", b.op("add", layer(x, 16), x))
    x = b.op("mean", x, axes=(2, 3))
    return IRModule({"main": b.function(b.op("matmul", x, _weight(rng, 16, 10)))})


def attention() -> IRModule:
    """Attention of two heads with its four matmuls, a norm and a residual."""
    b, rng = FunctionBuilder(), np.random.default_rng(1)
    x = b.input("x", (2, 8, 32))
    normed = b.op("nn.layer_norm", x, np.ones(32, np.float32), np.zeros(32, np.float32), axes=(2,))

    def heads(axes: tuple[int, ...]) -> Var:
        product = b.op("matmul", normed, _weight(rng, 32, 32))
        return b.op("permute_dims", b.op("reshape", product, shape=(2, 8, 2, 16)), axes=axes)

    scores = b.op("multiply", b.op("matmul", heads((0, 2, 1, 3)), heads((0, 2, 3, 1))), 0.25)
    mixed = b.op("matmul", b.op("nn.softmax", scores, axis=3), heads((0, 2, 1, 3)))
    joined = b.op("reshape", b.op("permute_dims", mixed, axes=(0, 2, 1, 3)), shape=(2, 8, 32))
    return IRModule({"main": b.function(b.op("add", b.op("matmul", joined, _weight(rng, 32, 32)), x))})


def linear(inputs: int = 64, outputs: int = 12) -> IRModule:
    """Two matmuls with a relu between them, of any number of rows."""
    from kernelyard.dims import symbol

    b, rng = FunctionBuilder(), np.random.default_rng(2)
    hidden = b.op("nn.relu", b.op("matmul", b.input("x", (symbol("n"), inputs)), _weight(rng, inputs, 48)))
    return IRModule({"main": b.function(b.op("matmul", hidden, _weight(rng, 48, outputs)))})


def feeds_of(module: IRModule, count: int = 3) -> list[dict[str, np.ndarray]]:
    """Return random feeds; 8 rows where a size is a symbol."""
    function, rng = module["main"], np.random.default_rng(3)
    assert isinstance(function, Function)
    shape = [size if isinstance(size, int) else 8 for size in function.params[0].tensor_type.shape]
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]
