"""Templates of attention, and the rewriters that recognise it where it is spelled out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import Call, Function, FunctionBuilder, IRModule, Var, verify
from kernelyard.patterns import Accept, Answer, Decline, FusionPattern, Match, match
from kernelyard.patterns.attention_templates import (
    ROLES,
    are_thirds,
    attention,
    attention_rewriter,
    attention_rewriters,
    stacked_attention,
)
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.pipelines import get_pipeline

B, S, T, N, H = 2, 3, 5, 4, 8


def ops(function: Function) -> list[str]:
    return [binding.value.op_name for binding in function.bindings if isinstance(binding.value, Call)]


def qkv(b: FunctionBuilder) -> list[Var]:
    return [b.input("q", (B, S, N, H)), b.input("k", (B, T, N, H)), b.input("v", (B, T, N, H))]


def test_attention_plain_bias_and_var_len() -> None:
    b = FunctionBuilder()
    operands, bias = qkv(b), b.input("bias", (B, N, S, T))
    starts = [b.input(name, (3,), "int32") for name in ("sq", "sk")]
    longest = [b.input(name, (), "int32") for name in ("mq", "mk")]
    y = b.op("nn.attention", *operands)
    z = b.op("nn.attention_bias", *operands, bias)
    w = b.op("nn.attention_var_len", *operands, *starts, *longest)
    f = b.function(y, z, w)
    assert [match(attention(), y, f)[role] for role in ROLES] == operands
    assert match(attention(with_bias=True), z, f)["bias"] is bias
    found = match(attention(var_len=True), w, f)
    assert [found[name] for name in ("seqstart_q", "seqstart_k", "max_seqlen_q", "max_seqlen_k")] == starts + longest
    assert match(attention(), z, f) is None


def stacked(b: FunctionBuilder, start: str, layout: str, bias: bool, order: tuple[int, int, int] = (0, 1, 2)) -> Var:
    axis, size = (2, N * H) if layout == "BS3NH" else (3, H)
    x = b.input("x", (B, S, 3 * N * H) if layout == "BS3NH" else (S, B, N, 3 * H))
    if start == "split":
        parts = b.op("split", x, axis=axis, sections=(size,) * 3)
        pieces = [b.get(parts, i) for i in order]
    else:
        pieces = [
            b.op("strided_slice", x, axes=(axis,), begin=(i * size,), end=((i + 1) * size,), strides=(1,))
            for i in order
        ]
    if layout == "BS3NH":
        operands = [b.op("reshape", piece, shape=(B, S, N, H)) for piece in pieces]
    else:
        operands = [b.op("permute_dims", piece, axes=(1, 0, 2, 3)) for piece in pieces]
    name = "nn.attention_bias" if bias else "nn.attention"
    y = b.op(name, *operands, *([b.input("bias", (B, N, S, S))] if bias else []))
    return y if layout == "BS3NH" else b.op("permute_dims", y, axes=(1, 0, 2, 3))


@pytest.mark.parametrize("start", ["split", "strided_slice"])
@pytest.mark.parametrize("layout", ["BS3NH", "SBN3H"])
@pytest.mark.parametrize("bias", [False, True])
def test_stacked_attention(start: str, layout: str, bias: bool) -> None:
    b = FunctionBuilder()
    y = stacked(b, start, layout, bias)
    f = b.function(y)
    found = match(stacked_attention(start, bias, layout), y, f)
    assert found is not None
    assert found["stacked"] is f.params[0]
    assert ("bias" in found) == bias
    assert set(found.members) == {binding.var for binding in f.bindings}
    if start == "strided_slice":
        assert are_thirds(found)
    other = "strided_slice" if start == "split" else "split"
    assert match(stacked_attention(other, bias, layout), y, f) is None


@pytest.mark.parametrize("start", ["split", "strided_slice"])
@pytest.mark.parametrize("layout", ["BS3NH", "SBN3H"])
def test_stacked_attention_becomes_one_composite(start: str, layout: str) -> None:
    def check_thirds(found: Match) -> Answer:
        in_order = start == "split" or are_thirds(found)
        return Accept() if in_order else Decline("stack", "the slices are no thirds of the stack")

    for order, count in (((0, 1, 2), 1), ((2, 1, 0), 0)):
        b = FunctionBuilder()
        before = IRModule({"main": b.function(stacked(b, start, layout, bias=False, order=order))})
        pattern = FusionPattern("acme.stacked_attention", stacked_attention(start, layout=layout), check_thirds)
        after = verify(FuseOpsByPattern([pattern])(before))
        composites = [f for f in after.graph_functions().values() if "Composite" in f.attrs]
        assert len(composites) == count
        shape = before.graph_functions()["main"].params[0].tensor_type.shape
        x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        assert_same_meaning(before, after, [x])


def test_pieces_of_a_stack_in_another_order_are_no_stacked_attention() -> None:
    b = FunctionBuilder()
    y = stacked(b, "split", "BS3NH", bias=False, order=(1, 0, 2))
    assert match(stacked_attention("split"), y, b.function(y)) is None
    c = FunctionBuilder()
    z = stacked(c, "strided_slice", "BS3NH", bias=False, order=(1, 0, 2))
    assert not are_thirds(match(stacked_attention("strided_slice"), z, c.function(z)))


# --- spelled out ------------------------------------------------------------------------------------------------------
def spelled_out(
    layout: str,
    bias: tuple[Dim, ...] | None = None,
    cast: bool = False,
    repeat: bool = False,
    divide: bool = False,
    batch: Dim = B,
) -> Function:
    b = FunctionBuilder()
    dtype, shared = ("float16" if cast else "float32"), (2 if repeat else N)
    if layout == "BSH":
        q, k, v = (b.input(name, (batch, rows, H), dtype) for name, rows in (("q", S), ("k", T), ("v", T)))
    else:
        q = b.input("q", (batch, S, N, H), dtype)
        k, v = (b.input(name, (batch, T, shared, H), dtype) for name in "kv")

    def flat(x: Var, rows: int, repeats: bool = False) -> Var:
        if layout == "BSH":
            return x
        if repeats:
            x = b.op("reshape", x, shape=(batch, T, shared, 1, H))
            x = b.op("broadcast_to", x, shape=(batch, T, shared, N // shared, H))
            x = b.op("reshape", x, shape=(batch, T, N, H))
        return b.op("reshape", b.op("permute_dims", x, axes=(0, 2, 1, 3)), shape=(batch * N, rows, H))

    def converted(x: Var, to: str) -> Var:
        return b.op("astype", x, dtype=to) if cast else x

    scores = b.op("matmul", flat(q, S), b.op("permute_dims", flat(k, T, repeat), axes=(0, 2, 1)))
    scores = b.op("divide", scores, 2.5) if divide else b.op("multiply", scores, 0.4)
    if bias is not None:
        scores = b.op("add", scores, b.input("bias", bias, dtype))
    weights = converted(b.op("nn.softmax", converted(scores, "float32"), axis=2), "float16")
    y = b.op("matmul", weights, flat(v, T, repeat))
    if layout == "BSNH":
        y = b.op("permute_dims", b.op("reshape", y, shape=(batch, N, S, H)), axes=(0, 2, 1, 3))
    return b.function(y)


def check(before: Function, after: Function, **sizes: int) -> None:
    random = np.random.default_rng(0)
    inputs: list[Any] = []
    for param in before.params:
        shape = [dims.evaluate(dim, sizes) for dim in param.tensor_type.shape]
        inputs.append(random.uniform(-1, 1, shape).astype(param.tensor_type.dtype))
    assert_same_meaning(IRModule({"main": before}), verify(IRModule({"main": after})), inputs)


@pytest.mark.parametrize(("layout", "repeat"), [("BSNH", False), ("BSNH", True), ("BSH", False)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cast", [False, True])
def test_attention_rewrite(layout: str, bias: bool, cast: bool, repeat: bool) -> None:
    shape = ((B * N if layout == "BSNH" else B), S, T) if bias else None
    f = spelled_out(layout, shape, cast, repeat)
    name = "nn.attention_bias" if bias else "nn.attention"
    for rewriter in (attention_rewriter(layout, bias, cast, repeat), attention_rewriters()):
        g = rewriter(f)
        assert [op for op in ops(g) if op != "reshape"] == [name]
        check(f, g)


@pytest.mark.parametrize(
    ("layout", "shape", "wanted"),
    [
        ("BSNH", (B * N, S, T), (B, N, S, T)),
        ("BSNH", (B * N, 1, T), (B, N, 1, T)),
        ("BSH", (B, S, T), (B, 1, S, T)),
        ("BSH", (B, 1, T), (B, 1, 1, T)),
        ("BSNH", (1, S, T), (1, 1, S, T)),
        ("BSNH", (S, T), (1, 1, S, T)),
        ("BSNH", (1, 1, T), (1, 1, 1, T)),
        ("BSNH", (1, T), (1, 1, 1, T)),
        ("BSNH", (T,), (1, 1, 1, T)),
        ("BSNH", (S, 1), None),
        ("BSNH", (), None),
    ],
)
def test_a_bias_gets_four_axes_or_stays(layout: str, shape: tuple[int, ...], wanted: tuple[int, ...] | None) -> None:
    f = spelled_out(layout, shape)
    g = attention_rewriter(layout, with_bias=True)(f)
    if wanted is None:
        assert g is f
        return
    call = next(v.value for v in g.bindings if isinstance(v.value, Call) and v.value.op_name == "nn.attention_bias")
    assert call.args[3].tensor_type.shape == wanted
    check(f, g)


def test_a_divisor_is_a_scale_and_symbolic_sizes_are_proved() -> None:
    n = dims.symbol("n")
    f = spelled_out("BSNH", divide=True, batch=n)
    g = attention_rewriter("BSNH")(f)
    assert ops(g) == ["nn.attention"]
    assert g.bindings[0].value.attrs["scale"] == pytest.approx(0.4)
    check(f, g, n=2)


def test_a_softmax_over_another_axis_and_a_scale_that_is_no_number_stay() -> None:
    for axis, scale in ((1, 0.4), (2, np.full((S, T), 0.4, np.float32))):
        b = FunctionBuilder()
        q, k, v = b.input("q", (B, S, H)), b.input("k", (B, T, H)), b.input("v", (B, T, H))
        scores = b.op("multiply", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 2, 1))), scale)
        f = b.function(b.op("matmul", b.op("nn.softmax", scores, axis=axis), v))
        assert attention_rewriters()(f) is f


def heads_first(bias: tuple[int, ...] | None, cast: bool, scale: str, axes: bool = True) -> Function:
    """Attention with four axes as exporters write it."""
    dtype = "float16" if cast else "float32"
    b = FunctionBuilder()
    q, k, v = (b.input(name, (B, rows, N, H), dtype) for name, rows in (("q", S), ("k", T), ("v", T)))
    q, v = (b.op("permute_dims", x, axes=(0, 2, 1, 3)) for x in (q, v))
    scores = b.op("matmul", q, b.op("permute_dims", k, axes=(0, 2, 3, 1)))
    scores = b.op(scale, scores, np.array(2.5, dtype)) if scale else scores
    scores = scores if bias is None else b.op("add", scores, b.input("bias", bias, dtype))
    scores = b.op("astype", scores, dtype="float32") if cast else scores
    weights = b.op("nn.softmax", scores, axis=3)
    weights = b.op("astype", weights, dtype="float16") if cast else weights
    return b.function(b.op("permute_dims", b.op("matmul", weights, v), axes=(0, 2, 1, 3)))


@pytest.mark.parametrize("bias", [None, (B, 1, 1, T), (B, N, S, T), (S, T), (T,)], ids=str)
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("scale", ["divide", "multiply", ""])
def test_attention_with_heads_first(bias: tuple[int, ...] | None, cast: bool, scale: str) -> None:
    f = heads_first(bias, cast, scale)
    g = get_pipeline("clean")(IRModule({"main": attention_rewriters()(f)}))["main"]
    assert isinstance(g, Function)
    assert ops(g) == ["nn.attention" if bias is None else "nn.attention_bias"], "the permutations cancel"
    call = g.bindings[0].value
    assert isinstance(call, Call)
    assert call.attrs["scale"] == {"divide": 0.4, "multiply": 2.5, "": 1.0}[scale]
    check(f, g)


def test_a_bias_that_makes_the_scores_larger_stays() -> None:
    b = FunctionBuilder()
    q, k, v = (b.input(name, shape) for name, shape in (("q", (1, N, S, H)), ("k", (1, N, H, T)), ("v", (1, N, T, H))))
    scores = b.op("add", b.op("matmul", q, k), b.input("bias", (B, 1, S, T)))
    f = b.function(b.op("matmul", b.op("nn.softmax", scores, axis=3), v))
    assert attention_rewriters()(f) is f


SCENARIOS = {
    "make_attention_pattern (plain, bias, var_len)": test_attention_plain_bias_and_var_len,
    "make_stacked_attention_pattern (split and strided_slice, BS3NH and SBN3H)": test_stacked_attention,
    "make_attention_rewrite_pattern (layout, bias, cast, kv_repeat)": test_attention_rewrite,
    "make_attention_rewrite_pattern: shapes of the bias": test_a_bias_gets_four_axes_or_stays,
}
