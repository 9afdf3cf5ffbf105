"""Functions over tensors: each against NumPy, with symbolic sizes and with known ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, nn
from kernelyard.nn import op
from kernelyard.testing import assert_allclose, evaluate

RANDOM = np.random.default_rng(0)
A = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
B = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
POSITIVE = np.abs(A) + 0.1
IMAGE = RANDOM.standard_normal((2, 4, 6, 8)).astype(np.float32)
SEQUENCE = RANDOM.standard_normal((2, 5, 2, 4)).astype(np.float32)


class Applied(nn.Module):
    def __init__(self, function) -> None:
        self.function = function

    def forward(self, **tensors):
        return self.function(*tensors.values())


def traced(function, arrays, shapes):
    names = "abcd"[: len(arrays)]
    spec = {n: nn.spec.Tensor(s, a.dtype.name) for n, a, s in zip(names, arrays, shapes, strict=True)}
    module, _ = Applied(function).export({"forward": spec})
    return evaluate(module, list(arrays), "forward")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


erf = np.vectorize(math.erf, otypes=[np.float32])

# name -> function over tensors, function over arrays, arrays; first axes are symbolic in one of two runs
CASES = {
    "unary": (
        lambda x: [op.exp(x), op.sin(x), op.cos(x), op.tanh(x), op.floor(x), op.ceil(x), op.negative(x), op.square(x)],
        lambda x: [np.exp(x), np.sin(x), np.cos(x), np.tanh(x), np.floor(x), np.ceil(x), -x, x * x],
        [A],
    ),
    "positive": (
        lambda x: (op.log(x), op.sqrt(x), op.rsqrt(x), op.power(x, 1.5), op.tan(x)),
        lambda x: (np.log(x), np.sqrt(x), 1 / np.sqrt(x), x**1.5, np.tan(x)),
        [POSITIVE],
    ),
    "activations": (
        lambda x: (op.relu(x), op.relu6(4 * x), op.silu(x), op.sigmoid(x), op.gelu(x), op.leaky_relu(x, 0.1)),
        lambda x: (
            np.maximum(x, 0),
            np.clip(4 * x, 0, 6),
            x * sigmoid(x),
            sigmoid(x),
            x * (1 + erf(x / math.sqrt(2))) / 2,
            np.where(x > 0, x, np.float32(0.1) * x),
        ),
        [A],
    ),
    "arithmetic": (
        lambda x, y: (x + y - 1, 2 * x / (y * y + 1), 1 - x, A + x, -x, (x * x) ** 2, 2.0**x, A[:, :1, :3] @ x),
        lambda x, y: (x + y - 1, 2 * x / (y * y + 1), 1 - x, A + x, -x, (x * x) ** 2, 2.0**x, A[:, :1, :3] @ x),
        [A, B],
    ),
    "comparison": (
        lambda x, y: (x < y, x <= y, x > y, x >= y, op.equal(x, x), op.not_equal(x, x), op.where(x > y, x, 0.0)),
        lambda x, y: (x < y, x <= y, x > y, x >= y, x == x, x != x, np.where(x > y, x, 0).astype(np.float32)),
        [A, B],
    ),
    "extremes": (
        lambda x, y: (op.maximum(x, y), op.minimum(x, y), op.clip(x, -0.5, 0.5), op.abs(x), op.astype(x, "int32")),
        lambda x, y: (np.maximum(x, y), np.minimum(x, y), x.clip(-0.5, 0.5), np.abs(x), x.astype(np.int32)),
        [A, B],
    ),
    "logic": (
        lambda x: (op.logical_and(x > 0, x < 1), op.logical_or(x < 0, x > 1), op.logical_not(x > 0)),
        lambda x: ((x > 0) & (x < 1), (x < 0) | (x > 1), ~(x > 0)),
        [A],
    ),
    "reductions": (
        lambda x: (op.sum(x), op.mean(x, -1), op.max(x, [0, -1], keepdims=True), op.min(x, 1), op.prod(x, 2)),
        lambda x: (x.sum(), x.mean(-1), x.max((0, 2), keepdims=True), x.min(1), x.prod(2)),
        [A],
    ),
    "orders": (
        lambda x: (op.argmax(x), op.argmin(x, 1), op.sort(x), op.argsort(x, -1, descending=True), *op.topk(x, 2)),
        lambda x: (
            x.argmax(-1),
            x.argmin(1),
            np.sort(x, -1),
            np.argsort(-x, -1),
            -np.sort(-x, -1)[..., :2],
            np.argsort(-x, -1)[..., :2],
        ),
        [A],
    ),
    "cumulative": (lambda x: op.cumsum(x, 1), lambda x: np.cumsum(x, 1), [A]),
    "shapes": (
        lambda x: (
            op.reshape(x, (-1, 4)),
            op.flatten(x, 1),
            op.permute_dims(x),
            op.permute(x, (0, -1, 1)),
            op.unsqueeze(x, -1),
            op.squeeze(op.unsqueeze(x, 1)),
            op.squeeze(op.unsqueeze(x, 1), 1),
            op.broadcast_to(x, (5, *x.shape)),
        ),
        lambda x: (
            x.reshape(-1, 4),
            x.reshape(len(x), -1),
            x.T,
            x.transpose(0, 2, 1),
            x[..., None],
            x,
            x,
            np.broadcast_to(x, (5, *x.shape)),
        ),
        [A],
    ),
    "pieces": (
        lambda x: (*op.split(x, [1, 3], axis=-1), *op.chunk(x, 2, axis=2), *op.split(x, 3, axis=1)),
        lambda x: (*np.split(x, [1, 3], -1), *np.split(x, 2, 2), *np.split(x, 3, 1)),
        [A],
    ),
    "joined": (
        lambda x, y: (op.concat([x, y], -1), op.stack([x, y], -1), op.concat([x, y, x])),
        lambda x, y: (np.concatenate([x, y], -1), np.stack([x, y], -1), np.concatenate([x, y, x])),
        [A, B],
    ),
    "repeated": (
        lambda x: (op.repeat(x, 3, 1), op.repeat(x, 2, 0), op.tile(x, (2, 1, 3)), op.pad(x, [(1, 0), (0, 2), (0, 0)])),
        lambda x: (np.repeat(x, 3, 1), np.repeat(x, 2, 0), np.tile(x, (2, 1, 3)), np.pad(x, [(1, 0), (0, 2), (0, 0)])),
        [A],
    ),
    "picked": (
        lambda x: (
            op.take(x, np.array([2, 0]), 1),
            op.take(x, np.array([5])),
            op.strided_slice(x, [-1], [1], [4], [2]),
            op.triu(x),
            op.tril(x, -1),
        ),
        lambda x: (x[:, [2, 0]], x.reshape(-1)[[5]], x[..., 1:4:2], np.triu(x), np.tril(x, -1)),
        [A],
    ),
    "made": (
        lambda x: (
            op.zeros(x.shape) + op.ones((4,)),
            op.full((2,), 7, "int64"),
            op.arange(5),
            op.arange(9, 2, -3, "float32"),
            op.arange(x.shape[0], dtype="int32"),
        ),
        lambda x: (
            np.ones_like(x),
            np.full(2, 7),
            np.arange(5),
            np.arange(9, 2, -3, np.float32),
            np.arange(len(x), dtype=np.int32),
        ),
        [A],
    ),
    "products": (
        lambda x, y: (
            x @ op.permute(y, (0, 2, 1)),
            op.matmul(x, np.ones(4, np.float32)),
            op.linear(x, y.reshape(-1, 4)),
        ),
        lambda x, y: (x @ y.transpose(0, 2, 1), x @ np.ones(4, np.float32), x @ y.reshape(-1, 4).T),
        [A, B],
    ),
    "softmax": (
        lambda x: (op.softmax(x), op.log_softmax(x, 1), op.softplus(x)),
        lambda x: (softmax(x), np.log(softmax(x, 1)), np.log1p(np.exp(x))),
        [A],
    ),
    "norms": (
        lambda x: (op.layer_norm(x, (3, 4)), op.rms_norm(x, nn.Tensor(nn.tensor.to_expr(np.ones(4, np.float32))))),
        lambda x: (
            (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5),
            x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5),
        ),
        [A],
    ),
    "group_norm": (
        lambda x: op.group_norm(x, 2),
        lambda x: (lambda g: (g - g.mean(2, keepdims=True)) / np.sqrt(g.var(2, keepdims=True) + 1e-5))(
            x.reshape(len(x), 2, -1)
        ).reshape(x.shape),
        [IMAGE],
    ),
    "pools": (
        lambda x: (op.max_pool(x, 2), op.avg_pool(x, (3, 4)), op.interpolate(x, scale_factor=2.0)),
        lambda x: (
            x.reshape(len(x), 4, 3, 2, 4, 2).max((3, 5)),
            x.reshape(len(x), 4, 2, 3, 2, 4).mean((3, 5)),
            x.repeat(2, 2).repeat(2, 3),
        ),
        [IMAGE],
    ),
    "attention": (
        lambda q, k, v: op.scaled_dot_product_attention(q, k, v),
        lambda q, k, v: np.einsum("bhqk,bkhd->bqhd", softmax(np.einsum("bqhd,bkhd->bhqk", q, k) / 2), v),
        [SEQUENCE, SEQUENCE[::-1].copy(), SEQUENCE + 1],
    ),
    "masked attention": (
        lambda q, mask: op.scaled_dot_product_attention(q, q, q, mask, scale=0.25),
        lambda q, mask: np.einsum("bhqk,bkhd->bqhd", softmax(np.einsum("bqhd,bkhd->bhqk", q, q) / 4 + mask), q),
        [SEQUENCE, RANDOM.standard_normal((2, 2, 5, 5)).astype(np.float32)],
    ),
    "timesteps": (
        lambda x: op.get_timestep_embedding(x, 7, downscale_freq_shift=0.0),
        lambda x: np.pad(
            np.concatenate([f(x[:, None] * 10000 ** (-np.arange(3) / 3)) for f in (np.sin, np.cos)], 1),
            [(0, 0), (0, 1)],
        ).astype(np.float32),
        [np.array([0, 1, 5], np.float32)],
    ),
}


@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name: str, is_symbolic: bool) -> None:
    function, expected, arrays = CASES[name]
    shapes = [("n" if is_symbolic else array.shape[0], *array.shape[1:]) for array in arrays]
    results, wanted = traced(function, arrays, shapes), expected(*arrays)
    wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
    assert len(results) == len(wanted)
    for result, array in zip(results, wanted, strict=True):
        assert result.shape == array.shape
        assert result.dtype == array.dtype
        assert_allclose(result, array)


def filled(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.data = RANDOM.standard_normal(parameter.shape).astype(parameter.dtype)
    return module


LAYERS = {
    "Identity": (nn.Identity(), (2, 3)),
    "Conv1D": (nn.Conv1D(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
    "Conv2D": (nn.Conv2D(4, 6, (3, 1), padding=(1, 0), bias=False), (2, 4, 6, 8)),
    "Conv3D": (nn.Conv3D(2, 3, 2, dilation=2), (1, 2, 4, 5, 6)),
    "ConvTranspose1D": (nn.ConvTranspose1D(4, 6, 3, stride=2, output_padding=1), (2, 4, 5)),
    "LayerNorm": (nn.LayerNorm(4), (2, 3, 4)),
    "LayerNorm without weights": (nn.LayerNorm((3, 4), elementwise_affine=False), (2, 3, 4)),
    "RMSNorm": (nn.RMSNorm(4), (2, 3, 4)),
    "GroupNorm": (nn.GroupNorm(2, 4), (2, 4, 5, 5)),
    "GELU": (nn.ModuleList([nn.GELU(), nn.GELU(approximate=True), nn.SiLU()]), (2, 3)),
    "Timesteps": (nn.ModuleList([nn.Timesteps(6), nn.TimestepEmbedding(6, 8, out_dim=3)]), (4,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compile_to_what_they_mean(name: str) -> None:
    module, shape = LAYERS[name]
    x = RANDOM.standard_normal(shape).astype(np.float32)
    model = nn.ModuleSpec(filled(module), {"forward": {"x": nn.spec.Tensor(["n", *shape[1:]])}})
    (expected,) = evaluate(model.to_ir(), [x], "forward")
    assert_allclose(ky.compile(model)(x).numpy(), expected)


def test_a_convolution_against_its_definition() -> None:
    layer = filled(nn.Conv1D(2, 3, 2, stride=2, padding=1))
    x = RANDOM.standard_normal((1, 2, 5)).astype(np.float32)
    weight, bias = layer.weight.data, layer.bias.data
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1)])
    expected = np.stack([np.einsum("nci,oci->no", padded[..., i : i + 2], weight) + bias for i in (0, 2, 4)], -1)
    model = nn.ModuleSpec(layer, {"forward": {"x": nn.spec.Tensor(x.shape)}})
    assert_allclose(ky.compile(model, backends=[])(x).numpy(), expected)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.op.conv2d_transpose, ((1, 2, 3, 4), (2, 3, 2, 2))),
        (nn.op.conv3d_transpose, ((1, 2, 3, 4, 3), (2, 3, 2, 2, 1))),
    ],
)
def test_transposed_convolutions(layer, shape) -> None:
    x, weight = (np.ones(s, np.float32) for s in shape)
    (result,) = traced(lambda a, b: layer(a, b, np_bias(), stride=2), [x, weight], shape)
    assert result.shape[1:3] == (3, 6)
    assert math.isclose(result.sum(), x.size * weight[0].size + 0.5 * result.size, rel_tol=1e-5)


def np_bias() -> nn.Tensor:
    return nn.Tensor(nn.tensor.to_expr(np.full(3, 0.5, np.float32)))


def test_resizing() -> None:
    line = np.array([[[0, 1]]], np.float32)

    def function(x):
        return (
            op.interpolate(x, scale_factor=2, mode="linear"),
            op.interpolate(x, 3, mode="linear", align_corners=True),
            op.interpolate(x, 3),
            op.interpolate(x, scale_factor=1.5),
        )

    results = [result.reshape(-1).tolist() for result in traced(function, [line], [(1, 1, "n")])]
    assert results == [[0, 0.25, 0.75, 1], [0, 0.5, 1], [0, 0, 1], [0, 0, 1]]


def test_prelu_has_a_slope_for_each_channel() -> None:
    slope = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    (result,) = traced(op.prelu, [IMAGE, slope], [IMAGE.shape, slope.shape])
    assert_allclose(result, np.where(IMAGE > 0, IMAGE, IMAGE * slope[:, None, None]))


def test_sizes_stay_symbolic() -> None:
    n = dims.symbol("n")
    seen = {}

    def function(x):
        seen["flat"] = op.flatten(x).shape
        seen["open"] = x.reshape(2, -1).shape
        seen["joined"] = op.concat([x, x]).shape
        seen["halves"] = op.split(op.concat([x, x]), 2)[0].shape
        return x

    Applied(function).export({"forward": {"a": nn.spec.Tensor(["2 * n", 3])}})
    assert seen == {"flat": (6 * n,), "open": (2, 3 * n), "joined": (4 * n, 3), "halves": (2 * n, 3)}
    assert repr(nn.spec.Tensor(["2 * n"])) == "spec.Tensor((n * 2,), 'float32')"


def test_every_function_is_documented() -> None:
    for name in op.__all__:
        assert getattr(op, name).__doc__, name
