"""Small random networks of torch, as people write them: layers of odd sizes, branches, and sizes left open."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from kernelyard_fuzz.chooser import Chooser

LARGEST = 1 << 16  # elements of one value
MIN_OPSET, MAX_OPSET = 13, 20
Function = Callable[[torch.Tensor], torch.Tensor]


class Exported(NamedTuple):
    """A network as ONNX. feeds: for its one input, arrays of several batch sizes where that size is left open.

    outputs: what torch computes for each, in float64. layers: for people.
    """

    model: bytes
    feeds: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    layers: tuple[str, ...]


class _Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class _Around(nn.Module):
    """A layer and a way around it: added, multiplied, or concatenated where shapes allow that."""

    def __init__(self, inner: nn.Module, join: str) -> None:
        super().__init__()
        self.inner, self.join = inner, join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        if x.shape == y.shape and self.join == "add":
            return x + y
        if x.shape == y.shape and self.join == "gate":
            return x * torch.sigmoid(y)
        if self.join == "concat" and x.dim() == y.dim() and x.shape[2:] == y.shape[2:] and x.dim() > 1:
            return torch.cat([x, y], 1)
        return y


class _First(nn.Module):
    """A recurrent layer without its states."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


class _SelfAttention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


# --- layers: each a function of choices and the shape of what comes in ------------------------------------------------
def _conv(c: Chooser, shape: Sequence[int]) -> nn.Module:
    rank, channels = len(shape) - 2, shape[1]
    groups = c.pick([g for g in range(1, channels + 1) if channels % g == 0])
    count = groups * c.pick((1, 2, 3, 5)) if c.chance(60) else groups * -(-c.pick((8, 16, 17)) // groups)
    kernel = [c.pick((1, 2, 3, 5)) for _ in range(rank)] if c.chance(50) else [c.pick((1, 3))] * rank
    return getattr(nn, f"Conv{rank}d")(
        channels,
        count,
        tuple(kernel),
        stride=tuple(c.pick((1, 1, 2, 3)) for _ in range(rank)),
        padding=tuple(c.below(k + 1) for k in kernel),
        dilation=tuple(c.pick((1, 1, 2)) for _ in range(rank)),
        groups=groups,
        bias=c.chance(70),
        padding_mode=c.pick(("zeros", "zeros", "zeros", "reflect", "replicate", "circular")),
    )


def _conv_same(c: Chooser, shape: Sequence[int]) -> nn.Module:
    rank = len(shape) - 2
    kernel = tuple(c.pick((1, 2, 3, 4)) for _ in range(rank))
    dilation = tuple(c.pick((1, 2)) for _ in range(rank))
    return getattr(nn, f"Conv{rank}d")(shape[1], c.pick((1, 4, 7)), kernel, padding="same", dilation=dilation)


def _transposed(c: Chooser, shape: Sequence[int]) -> nn.Module:
    rank, channels = len(shape) - 2, shape[1]
    groups = c.pick([g for g in range(1, channels + 1) if channels % g == 0])
    strides = tuple(c.pick((1, 2, 3)) for _ in range(rank))
    return getattr(nn, f"ConvTranspose{rank}d")(
        channels,
        groups * c.pick((1, 2, 3)),
        tuple(c.pick((1, 2, 3, 4)) for _ in range(rank)),
        stride=strides,
        padding=tuple(c.below(2) for _ in range(rank)),
        output_padding=tuple(c.below(s) for s in strides),
        dilation=c.pick((1, 1, 2)),
        groups=groups,
        bias=c.chance(70),
    )


def _pool(c: Chooser, shape: Sequence[int]) -> nn.Module:
    rank = len(shape) - 2
    kernel = tuple(c.pick((1, 2, 3, 4)) for _ in range(rank))
    given: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": tuple(c.pick((1, 2, 3)) for _ in range(rank)),
        "padding": tuple(c.below(k // 2 + 1) for k in kernel),
        "ceil_mode": c.chance(40),
    }
    if c.chance(50):
        return getattr(nn, f"MaxPool{rank}d")(**given, dilation=c.pick((1, 1, 2)))
    return getattr(nn, f"AvgPool{rank}d")(**given, count_include_pad=c.chance(50))


def _adaptive(c: Chooser, shape: Sequence[int]) -> nn.Module:
    rank = len(shape) - 2
    sizes = tuple(c.pick([s for s in range(1, size + 1) if size % s == 0]) for size in shape[2:])
    return getattr(nn, f"Adaptive{c.pick(('Avg', 'Max'))}Pool{rank}d")(sizes if c.chance(50) else (1,) * rank)


def _norm(c: Chooser, shape: Sequence[int]) -> nn.Module:
    rank, channels = len(shape) - 2, shape[1]
    kind = c.below(4)
    if kind == 0 and rank > 0:
        return getattr(nn, f"BatchNorm{rank}d")(channels)
    if kind == 1 and rank > 0 and math.prod(shape[2:]) > 1:
        return getattr(nn, f"InstanceNorm{rank}d")(channels, affine=c.chance(50))
    if kind == 2:
        return nn.GroupNorm(c.pick([g for g in range(1, channels + 1) if channels % g == 0]), channels)
    dims = c.between(1, len(shape) - 1)
    return nn.LayerNorm(list(shape[-dims:]), elementwise_affine=c.chance(70))


def _linear(c: Chooser, shape: Sequence[int]) -> nn.Module:
    return nn.Linear(shape[-1], c.pick((1, 3, 8, 16, 17, 32)), bias=c.chance(70))


ACTIVATIONS: Sequence[Callable[[], nn.Module]] = (
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.ELU, nn.SELU, nn.CELU),
    *(
        nn.LeakyReLU,
        nn.Softplus,
        nn.Softsign,
        nn.ReLU6,
        nn.Hardtanh,
        nn.LogSigmoid,
        nn.Tanhshrink,
        nn.PReLU,
        nn.Hardshrink,
    ),
    lambda: nn.GELU(approximate="tanh"),
)


def _activation(c: Chooser, shape: Sequence[int]) -> nn.Module:
    return c.pick(ACTIVATIONS)()


def _softmax(c: Chooser, shape: Sequence[int]) -> nn.Module:
    return c.pick((nn.Softmax, nn.LogSoftmax))(c.between(1, len(shape) - 1))


def _resize(c: Chooser, shape: Sequence[int]) -> nn.Module:
    mode = c.pick(("nearest", {3: "linear", 4: "bilinear", 5: "trilinear"}[len(shape)]))
    given = {} if mode == "nearest" else {"align_corners": c.chance(50)}
    if c.chance(50):
        return nn.Upsample(scale_factor=c.pick((2, 3, 1.5)), mode=mode, **given)
    return nn.Upsample(size=tuple(c.pick((1, size, size + 1, 2 * size)) for size in shape[2:]), mode=mode, **given)


def _pad(c: Chooser, shape: Sequence[int]) -> nn.Module:
    mode = c.pick(("constant", "constant", "reflect", "replicate"))
    pads = [c.below(min(3, size) if mode == "reflect" else 3) for size in reversed(shape[2:]) for _ in range(2)]
    return _Apply(lambda x: functional.pad(x, pads, mode=mode))


def _recurrent(c: Chooser, shape: Sequence[int]) -> nn.Module:
    kind = c.pick((nn.LSTM, nn.GRU, nn.RNN))
    is_two_way = c.chance(40)
    return _First(
        kind(shape[2], c.pick((1, 4, 8)), c.between(1, 2), batch_first=c.chance(70), bidirectional=is_two_way)
    )


def _attention(c: Chooser, shape: Sequence[int]) -> nn.Module:
    heads = c.pick([h for h in range(1, shape[2] + 1) if shape[2] % h == 0])
    return _SelfAttention(shape[2], heads, c.chance(40))


def _reduced(c: Chooser, shape: Sequence[int]) -> nn.Module:
    axis, keeps = c.between(1, len(shape) - 1), c.chance(60) or len(shape) <= 2
    name = c.pick(("mean", "sum", "amax", "amin", "logsumexp", "norm"))
    functions: Mapping[str, Function] = {
        "logsumexp": lambda x: torch.logsumexp(x, axis, keepdim=keeps),
        "norm": lambda x: torch.linalg.vector_norm(x, dim=axis, keepdim=keeps),
    }
    return _Apply(functions.get(name, lambda x: getattr(torch, name)(x, dim=axis, keepdim=keeps)))


def _moved(c: Chooser, shape: Sequence[int]) -> nn.Module:
    rank = len(shape)
    axis = c.between(1, rank - 1)
    size = shape[axis]
    order = [0, *sorted(range(1, rank), key=lambda _: c.below(100))]
    at = c.below(size)
    return _Apply(
        c.pick(
            (
                lambda x: x.permute(order),
                lambda x: x.flatten(axis),
                lambda x: torch.flip(x, [axis]),
                lambda x: torch.roll(x, at, axis),
                lambda x: x.narrow(axis, at, size - at),
                lambda x: torch.cat(torch.chunk(x, 2, axis)[::-1], axis),
                lambda x: x.unsqueeze(axis),
                lambda x: torch.cat([x, x.neg()], axis),
                lambda x: torch.stack([x, x * 2], axis),
                lambda x: x[..., ::2],
                lambda x: torch.cumsum(x, axis),
                lambda x: x.repeat(1, *[2 if a == axis else 1 for a in range(1, rank)]),
            )
        )
    )


def _arithmetic(c: Chooser, shape: Sequence[int]) -> nn.Module:
    number = c.pick((0.5, 2.0, -1.0, 3.0))
    vector = torch.rand(shape[-1]) + 0.5
    return _Apply(
        c.pick(
            (
                lambda x: x * number,
                lambda x: number - x,
                lambda x: x / vector,
                lambda x: x + vector,
                lambda x: torch.clamp(x, -0.5, number),
                lambda x: torch.where(x > 0, x, x * 0.1),
                lambda x: torch.maximum(x, x.mean()),
                lambda x: x / (x.abs().amax(-1, keepdim=True) + 1),
                lambda x: functional.normalize(x, dim=-1),
                lambda x: torch.sqrt(x * x + 1),
                lambda x: x.masked_fill(x < -0.5, 0.25),
                lambda x: x @ x.transpose(-1, -2),
                lambda x: torch.topk(x, min(2, x.shape[-1]), dim=-1)[0],
            )
        )
    )


def _shuffled(c: Chooser, shape: Sequence[int]) -> nn.Module:
    """Pixels to channels and back, and channels between groups, as light networks do."""
    if shape[1] % 4 == 0 and c.chance(50):
        return nn.PixelShuffle(2)
    if shape[2] % 2 == 0 and shape[3] % 2 == 0 and c.chance(50):
        return nn.PixelUnshuffle(2)
    groups = c.pick([g for g in range(1, shape[1] + 1) if shape[1] % g == 0])
    return nn.ChannelShuffle(groups)


Layer = Callable[[Chooser, Sequence[int]], nn.Module]
ANY: Sequence[Layer] = (_activation, _activation, _linear, _norm, _softmax, _moved, _arithmetic, _reduced)
BY_RANK: Mapping[int, Sequence[Layer]] = {
    2: (_linear, _activation, _arithmetic, _linear),
    3: (_conv, _conv_same, _transposed, _pool, _adaptive, _resize, _pad, _recurrent, _attention),
    4: (_conv, _conv, _conv_same, _transposed, _pool, _pool, _adaptive, _resize, _pad, _shuffled),
    5: (_conv, _transposed, _pool, _adaptive, _resize, _pad),
}
STARTS = ((2, 3, 8, 8), (1, 4, 7, 9), (1, 8, 12, 5), (2, 6, 11), (1, 4, 16), (3, 7), (1, 2, 4, 5, 6), (2, 16, 6, 6))


def exported(chooser: Chooser, seed: int) -> Exported | None:
    """Return a random network of two to eight layers, written by torch's exporter; None where it does not write it."""
    torch.manual_seed(seed)
    shape = chooser.pick(STARTS)
    x = torch.randn(shape)
    layers: list[nn.Module] = []
    value = x
    for _ in range(chooser.between(2, 8)):
        made = _tried(chooser, value)
        if made is not None:
            layers.append(made[0])
            value = made[1]
    net = nn.Sequential(*layers).eval()
    is_open = chooser.chance(50)
    batches = (shape[0], *((1, 5, 0) if is_open else ()))
    feeds = [torch.randn((batch, *shape[1:])) for batch in batches]
    try:
        model = _written(net, x, is_open, chooser.between(MIN_OPSET, MAX_OPSET))
    except Exception:  # whatever the exporter raises, it cannot write this network
        return None
    wanted, used = _computed(net, feeds)
    return Exported(model, used, wanted, tuple(str(layer).replace("\n", " ") for layer in layers)) if used else None


def _tried(chooser: Chooser, value: torch.Tensor) -> tuple[nn.Module, torch.Tensor] | None:
    """Return a layer and what it gives; None where it does not take the value, or gives nothing of use."""
    layers = BY_RANK.get(value.dim(), ANY) if chooser.chance(60) else ANY
    try:
        layer = chooser.pick(layers)(chooser, tuple(value.shape))
        if chooser.chance(25):
            layer = _Around(layer, chooser.pick(("add", "gate", "concat")))
        _randomise(layer)
        with torch.no_grad():
            result = layer.eval()(value)
    except (
        RuntimeError,
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
        TypeError,
        AssertionError,
        ZeroDivisionError,
    ):
        return None  # torch refuses it
    fine = result.dim() > 1 and 0 < result.numel() <= LARGEST and result.dtype == torch.float32
    return (layer, result) if fine and float(result.abs().max()) < 1e3 else None


def _randomise(layer: nn.Module) -> None:
    """Give norms statistics and factors that are not those of the start, which any mistake would leave alone."""
    for module in layer.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        if isinstance(getattr(module, "weight", None), nn.Parameter) and "Norm" in type(module).__name__:
            nn.init.uniform_(module.weight, 0.5, 1.5)  # pyright: ignore[reportArgumentType]
            nn.init.normal_(module.bias)  # pyright: ignore[reportArgumentType]


def _written(net: nn.Module, x: torch.Tensor, is_open: bool, opset: int) -> bytes:
    written = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (x,),
            written,  # pyright: ignore[reportArgumentType]
            dynamo=False,
            opset_version=opset,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}} if is_open else None,
        )
    return written.getvalue()


def _computed(net: nn.Module, feeds: Sequence[torch.Tensor]) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Return what the network gives in float64 and for which feeds it gives anything."""
    results: list[np.ndarray] = []
    used: list[np.ndarray] = []
    net = net.double()
    for feed in feeds:
        try:
            with torch.no_grad():
                results.append(net(feed.double()).numpy())
        except (RuntimeError, IndexError):
            continue  # torch has no such layer for this batch
        used.append(feed.numpy())
    return tuple(results), tuple(used)
