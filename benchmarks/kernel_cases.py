"""The cases of `kernels.py`: modules of one operator, by the shape classes that networks have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelyard.ir import FunctionBuilder, IRModule

TorchRun = Callable[..., Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """One operator. feeds: what it is given per call; weights: constants; flops, nbytes: what it must do and touch.

    torch: of torch and the tensors, a call that computes the same.
    """

    kind: str
    name: str
    op: str
    feeds: Sequence[np.ndarray]
    weights: Sequence[np.ndarray] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    flops: float = 0.0
    nbytes: float = 0.0
    torch: TorchRun | None = None

    def module(self) -> IRModule:
        """The operator as a module with the weights in it."""
        b = FunctionBuilder()
        inputs = [b.input(f"x{n}", feed.shape) for n, feed in enumerate(self.feeds)]
        return IRModule({"main": b.function(b.op(self.op, *inputs, *self.weights, **self.attributes))})


def _normal(*shape: int) -> np.ndarray:
    # Large ones repeat a block: making them must not take longer than measuring them.
    count = int(np.prod(shape))
    block = np.random.default_rng(0).standard_normal(min(count, 1 << 20)).astype(np.float32)
    return np.resize(block, shape)


def _nbytes(*arrays: np.ndarray) -> float:
    return float(sum(array.nbytes for array in arrays))


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _matmuls()
    yield from _convolutions()
    yield from _elementwise()
    yield from _rows()
    yield from _reductions()
    yield from _transposes()


# --- contractions ---------------------------------------------------------------------------------------------------
def _matmul(kind: str, a: Sequence[int], b: Sequence[int], both_move: bool = False) -> Case:
    left, right = _normal(*a), _normal(*b)
    result = np.empty((*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]), np.float32)
    feeds, weights = ([left, right], []) if both_move else ([left], [right])

    def run(torch: Any, x: Any, w: Any) -> Callable[[], Any]:
        out = torch.empty(result.shape)
        return lambda: torch.matmul(x, w, out=out)

    name = f"{'x'.join(map(str, a))} @ {'x'.join(map(str, b))}"
    flops = 2.0 * result.size * a[-1]
    return Case(kind, name, "matmul", feeds, weights, flops=flops, nbytes=_nbytes(left, right, result), torch=run)


def _matmuls() -> Iterator[Case]:
    yield _matmul("matmul", (1024, 1024), (1024, 1024))
    for k, n in ((768, 768), (768, 3072), (3072, 768), (384, 1536)):
        yield _matmul("matmul", (128, k), (k, n))
    yield _matmul("matmul", (1000, 333), (333, 777))
    yield _matmul("matmul", (12, 128, 64), (12, 64, 128), both_move=True)
    yield _matmul("matmul", (12, 128, 128), (12, 128, 64), both_move=True)
    for rows in (1, 2, 4, 8, 16):
        yield _matmul("gemv", (rows, 4096), (4096, 11008))
    yield _matmul("gemv", (1, 11008), (11008, 4096))
    yield _matmul("gemv", (1, 768), (768, 3072))
    yield _matmul("gemv", (1, 2048), (2048, 1000))


def _conv(channels: int, filters: int, size: int, kernel: int, stride: int = 1, groups: int = 1) -> Case:
    x, w = _normal(1, channels, size, size), _normal(filters, channels // groups, kernel, kernel)
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    attributes = {"strides": (stride,) * 2, "padding": (pad,) * 4, "dilation": (1, 1), "groups": groups}

    def run(torch: Any, x: Any, w: Any) -> Callable[[], Any]:
        return lambda: torch.nn.functional.conv2d(x, w, None, stride, pad, 1, groups)

    flops = 2.0 * filters * out * out * channels // groups * kernel * kernel
    name = f"{channels}->{filters} {kernel}x{kernel}/{stride} of {size}x{size}" + (f" groups {groups}" * (groups > 1))
    nbytes = _nbytes(x, w) + 4.0 * filters * out * out
    kind = "conv" if groups == 1 else "depthwise"
    return Case(kind, name, "nn.conv2d", [x], [w], attributes, flops, nbytes, run)


def _convolutions() -> Iterator[Case]:
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        yield _conv(channels, channels, size, 3)
    for channels, size in ((128, 56), (256, 28), (512, 14)):
        yield _conv(channels, channels, size, 3, stride=2)
    yield _conv(3, 64, 224, 7, stride=2)
    for channels, filters, size in ((64, 256, 56), (256, 64, 56), (512, 128, 28), (1024, 256, 14), (512, 2048, 7)):
        yield _conv(channels, filters, size, 1)
    yield _conv(256, 512, 56, 1, stride=2)
    for channels, size, stride in ((96, 112, 2), (144, 56, 1), (384, 14, 1), (960, 7, 1)):
        yield _conv(channels, channels, size, 3, stride, groups=channels)


# --- memory and arithmetic per element ------------------------------------------------------------------------------
def _map(op: str, torch_name: str, shape: tuple[int, ...], flops: float, operands: int = 1, **attributes: Any) -> Case:
    feeds = [_normal(*shape) for _ in range(operands)]

    def run(torch: Any, *args: Any) -> Callable[[], Any]:
        functional = getattr(torch.nn.functional, torch_name, None)
        if functional is not None:
            return lambda: functional(*args)
        out = torch.empty(shape)
        return lambda: getattr(torch, torch_name)(*args, out=out)

    name = f"{op.removeprefix('nn.')} {'x'.join(map(str, shape))}"
    size = feeds[0].size
    return Case("elementwise", name, op, feeds, (), attributes, flops * size, 4.0 * size * (operands + 1), run)


def _elementwise() -> Iterator[Case]:
    for shape in ((128, 3072), (1, 256, 56, 56), (4096, 4096)):
        yield _map("add", "add", shape, 1, operands=2)
        yield _map("nn.relu", "relu", shape, 1)
        yield _map("nn.gelu", "gelu", shape, 20)
    for op, name in (("exp", "exp"), ("tanh", "tanh"), ("sigmoid", "sigmoid"), ("nn.silu", "silu"), ("sqrt", "sqrt")):
        yield _map(op, name, (128, 3072), 20)
    yield _map("divide", "div", (128, 3072), 1, operands=2)


def _rows() -> Iterator[Case]:
    for shape in ((1, 1000), (1536, 128), (128, 1000), (1024, 4096), (197, 197)):
        x = _normal(*shape)

        def softmax(torch: Any, x: Any) -> Callable[[], Any]:
            out = torch.empty(x.shape)
            return lambda: torch.softmax(x, -1, out=out)

        name = f"softmax {shape[0]}x{shape[1]}"
        yield Case("rows", name, "nn.softmax", [x], (), {"axis": 1}, 20.0 * x.size, 8.0 * x.size, softmax)
    x = _normal(64, 21, 1024)

    def middle(torch: Any, x: Any) -> Callable[[], Any]:
        out = torch.empty(x.shape)
        return lambda: torch.softmax(x, 1, out=out)

    yield Case(
        "rows", "softmax 64x21x1024 axis 1", "nn.softmax", [x], (), {"axis": 1}, 20.0 * x.size, 8.0 * x.size, middle
    )
    for shape in ((128, 384), (128, 768), (2048, 1024), (16, 8192)):
        yield _layer_norm(shape)
    x, gamma = _normal(128, 4096), _normal(4096)

    def rms(torch: Any, x: Any, gamma: Any) -> Callable[[], Any]:
        return lambda: torch.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-5)

    yield Case(
        "rows", "rms_norm 128x4096", "nn.rms_norm", [x], [gamma], {"axes": (1,)}, 6.0 * x.size, 8.0 * x.size, rms
    )


def _layer_norm(shape: tuple[int, int]) -> Case:
    x, gamma, beta = _normal(*shape), _normal(shape[1]), _normal(shape[1])

    def run(torch: Any, x: Any, gamma: Any, beta: Any) -> Callable[[], Any]:
        return lambda: torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, 1e-5)

    name = f"layer_norm {shape[0]}x{shape[1]}"
    return Case("rows", name, "nn.layer_norm", [x], [gamma, beta], {"axes": (1,)}, 8.0 * x.size, 8.0 * x.size, run)


def _reductions() -> Iterator[Case]:
    shapes = (((2048, 1024), (1,)), ((2048, 1024), (0,)), ((1, 2048, 7, 7), (2, 3)), ((64, 128, 256), (1,)))
    for shape, axes in shapes:
        for op, name in (("sum", "sum"), ("max", "amax")):
            x = _normal(*shape)

            def run(torch: Any, x: Any, name: str = name, axes: tuple[int, ...] = axes) -> Callable[[], Any]:
                return lambda: getattr(torch, name)(x, dim=axes)

            label = f"{op} {'x'.join(map(str, shape))} over {axes}"
            yield Case("reduction", label, op, [x], (), {"axes": axes}, float(x.size), 4.0 * x.size, run)
    x = _normal(1, 64, 112, 112)
    window = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}

    def pool(torch: Any, x: Any) -> Callable[[], Any]:
        return lambda: torch.nn.functional.max_pool2d(x, 3, 2, 1)

    yield Case("reduction", "max_pool 64x112x112", "nn.max_pool2d", [x], (), window, 2.25 * x.size, 5.0 * x.size, pool)


def _transposes() -> Iterator[Case]:
    for shape, axes in (((1024, 1024), (1, 0)), ((1, 128, 12, 64), (0, 2, 1, 3)), ((1, 256, 56, 56), (0, 2, 3, 1))):
        x = _normal(*shape)

        def run(torch: Any, x: Any, axes: tuple[int, ...] = axes) -> Callable[[], Any]:
            out = torch.empty([x.shape[axis] for axis in axes])
            return lambda: out.copy_(x.permute(axes))

        name = f"{'x'.join(map(str, shape))} by {axes}"
        yield Case("transpose", name, "permute_dims", [x], (), {"axes": axes}, 0.0, 8.0 * x.size, run)
