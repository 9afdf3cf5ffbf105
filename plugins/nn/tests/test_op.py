"""Functions over tensors: each against NumPy, with symbolic sizes and with known ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, nn
from kernelyard.errors import FrontendError
from kernelyard.ir import parse_module, to_text
from kernelyard.nn import op
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.tir import PrimFunc
from kernelyard.transform import get_pipeline

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


def exported(function, arrays, shapes):
    names = "abcdef"[: len(arrays)]
    spec = {n: nn.spec.Tensor(s, a.dtype.name) for n, a, s in zip(names, arrays, shapes, strict=True)}
    return Applied(function).export({"forward": spec})[0]


def traced(function, arrays, shapes):
    return evaluate(exported(function, arrays, shapes), list(arrays), "forward")


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
    "functions": (
        lambda x: [
            getattr(op, name)(x)
            for name in ("asinh", "atan", "sinh", "cosh", "expm1", "sign", "trunc", "softsign", "reciprocal", "mish")
        ],
        lambda x: [
            *(f(x) for f in (np.arcsinh, np.arctan, np.sinh, np.cosh, np.expm1, np.sign, np.trunc)),
            x / (1 + np.abs(x)),
            1 / x,
            x * np.tanh(np.log1p(np.exp(x))),
        ],
        [A],
    ),
    "functions of some numbers": (
        lambda x: (op.acos(x), op.asin(x), op.atanh(x), op.log1p(x), op.acosh(1 + x), op.softplus(x, 2.0)),
        lambda x: (
            np.arccos(x),
            np.arcsin(x),
            np.arctanh(x),
            np.log1p(x),
            np.arccosh(1 + x),
            np.log1p(np.exp(2 * x)) / 2,
        ),
        [np.tanh(POSITIVE)],
    ),
    "more activations": (
        lambda x: (op.elu(x, 0.5), op.celu(x, 0.5), op.selu(x), op.hard_sigmoid(3 * x), op.hard_swish(3 * x)),
        lambda x: (
            np.where(x > 0, x, np.float32(0.5) * np.expm1(x)),
            np.where(x > 0, x, np.float32(0.5) * np.expm1(2 * x)),
            np.float32(1.0507010) * np.where(x > 0, x, np.float32(1.6732632) * np.expm1(x)),
            np.clip(x / 2 + np.float32(0.5), 0, 1),
            3 * x * np.clip(x / 2 + np.float32(0.5), 0, 1),
        ),
        [A],
    ),
    "bits": (
        lambda x, y: (
            op.bitwise_and(x, y),
            op.bitwise_or(x, y),
            op.bitwise_xor(x, y),
            op.bitwise_not(x),
            op.left_shift(x, 2),
            op.right_shift(x, 1),
            op.mod(x - 40, 7),
            op.fmod(x - 40, 7),
        ),
        lambda x, y: (x & y, x | y, x ^ y, ~x, x << 2, x >> 1, np.mod(x - 40, 7), np.fmod(x - 40, 7)),
        [RANDOM.integers(0, 99, (2, 5)), RANDOM.integers(0, 99, (2, 5))],
    ),
    "infinities": (
        lambda x: (op.isnan(x), op.isinf(x), op.isfinite(x), op.logical_xor(op.isnan(x), op.isinf(x))),
        lambda x: (np.isnan(x), np.isinf(x), np.isfinite(x), np.isnan(x) ^ np.isinf(x)),
        [np.array([[1, np.nan], [np.inf, -np.inf]], np.float32)],
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
    "truth": (
        lambda x: (op.all(x > 0, 1), op.any(x > 1, [0, -1], keepdims=True), op.any(x > 9)),
        lambda x: ((x > 0).all(1), (x > 1).any((0, 2), keepdims=True), np.asarray(False)),
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
    "cumulative product": (lambda x: op.cumprod(x, 1), lambda x: np.cumprod(x, 1), [A]),
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
    "places": (
        lambda x, at: (op.gather(x, at, 1), op.flip(x, [0, -1]), op.flip(x, 1), op.one_hot(at, 3), op.repeat(x, 2)),
        lambda x, at: (
            np.take_along_axis(x, at, 1),
            x[::-1, :, ::-1],
            x[:, ::-1],
            np.eye(3, dtype=np.float32)[at],
            np.repeat(x, 2),
        ),
        [A, RANDOM.integers(0, 3, (2, 2, 4))],
    ),
    "made": (
        lambda x: (
            op.zeros(x.shape) + op.ones((4,)),
            op.full((2,), 7, "int64"),
            op.arange(5),
            op.arange(9, 2, -3, "float32"),
            op.arange(x.shape[0], dtype="int32"),
            op.empty((2, 3)).shape[0] * x,
        ),
        lambda x: (
            np.ones_like(x),
            np.full(2, 7),
            np.arange(5),
            np.arange(9, 2, -3, np.float32),
            np.arange(len(x), dtype=np.int32),
            2 * x,
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
    "products in another dtype": (
        lambda x, y: (op.matmul(x, y, "float32"), op.linear(x, y, None, "float32"), op.matmul(x, y, "float16")),
        lambda x, y: (np.float32(x) @ np.float32(y), np.float32(x) @ np.float32(y).T, x @ y),
        [A[0, :, :3].astype(np.float16), B[1, :, :3].astype(np.float16)],
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
    "attention after a while": (
        lambda q, k: op.scaled_dot_product_attention(q, k, k, is_causal="bottom_right"),
        lambda q, k: np.einsum(
            "bhqk,bkhd->bqhd",
            softmax(np.einsum("bqhd,bkhd->bhqk", q, k) / 2 + np.where(np.tri(2, 5, 3, bool), 0, -np.inf)).astype("f"),
            k,
        ),
        [SEQUENCE[:, :2], SEQUENCE],
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
    module, wanted = exported(function, arrays, shapes), expected(*arrays)
    wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
    compiled = ky.compile(module, backends=[])(*arrays)
    compiled = compiled if isinstance(compiled, tuple) else (compiled,)
    for results in (evaluate(module, list(arrays), "forward"), compiled):
        assert len(results) == len(wanted)
        for result, array in zip(results, wanted, strict=True):
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


@pytest.mark.parametrize("cross", [False, True])
def test_attention_against_its_definition(cross: bool) -> None:
    layer = filled(nn.Attention(6, 8 if cross else None, heads=2, dim_head=4, bias=True, norm_num_groups=3))
    x, other = (RANDOM.standard_normal((2, rows, size)).astype(np.float32) for rows, size in ((5, 6), (3, 8)))
    spec = {"hidden_states": nn.spec.Tensor(["n", 5, 6])}
    if cross:
        spec |= {"encoder_hidden_states": nn.spec.Tensor(["n", 3, 8])}
    state = layer.state_dict()

    def linear(name, y):
        return y @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    groups = x.reshape(2, 5, 3, 2)
    spread = (groups - groups.mean((1, 3), keepdims=True)) / np.sqrt(groups.var((1, 3), keepdims=True) + 1e-5)
    hidden = spread.reshape(x.shape) * state["group_norm.weight"] + state["group_norm.bias"]
    seen = other if cross else hidden
    q, k, v = (linear(f"to_{c}", y).reshape(2, -1, 2, 4) for c, y in zip("qkv", (hidden, seen, seen), strict=True))
    y = np.einsum("bhqk,bkhd->bqhd", softmax(np.einsum("bqhd,bkhd->bhqk", q, k) / 2), v)
    expected = linear("to_out.0", y.reshape(2, 5, 8)).astype(np.float32)
    for backends in ([], ["dnnl"]):
        exe = ky.compile(nn.ModuleSpec(layer, {"forward": spec}), backends=backends)
        assert_allclose(exe(*([x, other] if cross else [x])).numpy(), expected)


PROBABILITIES = np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.5, 0]], np.float32)
UNIFORM = np.array([[0.0], [0.35], [0.99], [0.3]], np.float32)
ROWS = np.array([[0], [0], [1], [1]])


def run(function, *arrays):
    """The results of compiled code, and those of the reference, which are the same."""
    module = exported(function, arrays, [array.shape for array in arrays])
    compiled = ky.compile(module, backends=[])(*arrays)
    assert_allclose(compiled.numpy(), evaluate(module, list(arrays), "forward")[0])
    return compiled.numpy()


def test_sampling() -> None:
    assert run(op.multinomial_from_uniform, PROBABILITIES, UNIFORM, ROWS).tolist() == [[0], [2], [2], [1]]
    assert run(op.multinomial_from_uniform, PROBABILITIES, UNIFORM[2:]).tolist() == [[3], [1]]
    assert run(op.multinomial_from_uniform, np.float32([[0.5, 0.4]]), UNIFORM[2:3]).tolist() == [[1]]


def test_sampling_from_the_most_likely() -> None:
    order = np.argsort(-PROBABILITIES, 1, kind="stable")
    ordered = np.take_along_axis(PROBABILITIES, order, 1)  # 0.4 0.3 0.2 0.1 and 0.5 0.25 0.25 0
    top_p, top_k = np.array([[0.6], [1.0]], np.float32), np.array([[4], [2]])
    function = op.sample_top_p_top_k_from_sorted_prob
    # the first row keeps 0.4 and 0.3, the second 0.5 and 0.25
    chosen = run(function, ordered, order, top_p, top_k, UNIFORM, ROWS)
    assert chosen.tolist() == [[3], [3], [0], [2]]
    assert run(function, ordered, order, top_p, top_k, np.float32([[0.6], [0.7]])).tolist() == [[2], [0]]
    none = np.zeros((2, 1), np.float32)
    assert run(function, ordered, order, none, top_k, np.float32([[0.9], [0.9]])).tolist() == [[3], [2]]
    kept = run(op.renormalize_top_p_top_k_prob, PROBABILITIES, ordered, top_p, top_k)
    assert_allclose(kept, np.float32([[0, 0, 3 / 7, 4 / 7], [0.25, 0.25, 0.5, 0]]))


def test_a_loop_level_function() -> None:
    x = np.float32([[-1, 2]])
    legal = get_pipeline("legalize")(exported(lambda a: op.exp(op.relu(a)), [x], [("n", 2)]))
    (primfunc,) = (function for function in legal.functions.values() if isinstance(function, PrimFunc))

    def function(a):
        return op.negative(op.tensor_ir_op(primfunc, "mine", [op.tensor_ir_op(primfunc, "mine", [a])]))

    module = exported(function, [x], [("n", 2)])
    assert list(module) == ["forward", "mine"]
    assert parse_module(to_text(module)).functions.keys() == module.functions.keys()
    expected = -np.exp(np.maximum(np.exp(np.maximum(x, 0)), 0))
    assert_allclose(evaluate(module, [x], "forward")[0], expected)
    assert_allclose(ky.compile(module, backends=[])(x).numpy(), expected)
    with pytest.raises(FrontendError, match="mine got arguments of the wrong types"):
        exported(lambda a: op.tensor_ir_op(primfunc, "mine", [op.concat([a, a])]), [x], [("n", 2)])
    with pytest.raises(FrontendError, match="take tensors"):
        exported(lambda a: op.tensor_ir_op(primfunc, "mine", [1]), [x], [("n", 2)])


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
