"""Attention: every layout, mask and kind of heads, on the emulator, and what is declined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, Var
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate

from .conftest import compiled, declined, feeds_of, module_of

B, S, T = symbol("b"), symbol("s"), symbol("t")
SIZES = ({"b": 1, "s": 3, "t": 5}, {"b": 2, "s": 7, "t": 7}, {"b": 2, "s": 1, "t": 9})


def operands(
    b: FunctionBuilder,
    heads: int = 4,
    shared: int = 4,
    size: int = 8,
    wide: int = 8,
    dtype: str = "float16",
    rows: Any = S,
    columns: Any = T,
) -> list[Var]:
    shapes = {"q": (B, rows, heads, size), "k": (B, columns, shared, size), "v": (B, columns, shared, wide)}
    return [b.input(name, shape, dtype) for name, shape in shapes.items()]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("shared", "wide"), [(4, 8), (2, 8), (1, 16)], ids=str)
@pytest.mark.parametrize("causal", ["none", "top_left"])
def test_attention_of_any_sizes(check: Any, dtype: str, shared: int, wide: int, causal: str) -> None:
    def build(b: FunctionBuilder) -> Var:
        return b.op("nn.attention", *operands(b, shared=shared, wide=wide, dtype=dtype), causal=causal, scale=0.4)

    check(build, "cudnn.attention", sizes=SIZES)


def test_causal_from_the_end(check: Any) -> None:
    """Where there are never more queries than keys: the first ones would see nothing."""

    def build(b: FunctionBuilder, rows: Any, columns: Any) -> Var:
        return b.op("nn.attention", *operands(b, rows=rows, columns=columns), causal="bottom_right")

    sizes = ({"b": 2, "s": 3, "t": 5}, {"b": 1, "s": 1, "t": 1})
    for rows, columns in ((1, T), (S, S), (3, 3)):
        check(lambda b, rows=rows, columns=columns: build(b, rows, columns), "cudnn.attention", sizes=sizes)
    (code, message), *_ = declined(lambda b: build(b, S, T))
    assert code == "attribute"
    assert "s queries and t keys" in message


@pytest.mark.parametrize("shape", [(B, 4, S, T), (1, 1, S, T), (B, 1, 1, T), (4, S, T), (T,), (1, 1, 1, 1)], ids=str)
def test_a_bias_of_every_shape(check: Any, shape: tuple[Any, ...]) -> None:
    def build(b: FunctionBuilder) -> Var:
        return b.op("nn.attention_bias", *operands(b), b.input("bias", shape, "float16"), causal="top_left")

    check(build, "cudnn.attention", sizes=SIZES[:2])


def test_heads_before_rows_are_strides(check: Any) -> None:
    """(B, N, S, H), as PyTorch has it, on both sides."""

    def build(b: FunctionBuilder) -> Var:
        inputs = [b.input(name, (B, 4, S, 8), "float16") for name in "qkv"]
        q, k, v = (b.op("permute_dims", x, axes=(0, 2, 1, 3)) for x in inputs)
        return b.op("permute_dims", b.op("nn.attention", q, k, v), axes=(0, 2, 1, 3))

    check(build, "cudnn.attention", sizes=({"b": 2, "s": 5},))


def padded(
    b: FunctionBuilder,
    least: float = -np.inf,
    start: int = 0,
    dtype: str = "int32",
    shape: Any = (B, 1, 1, 1),
    causal: str = "none",
) -> Var:
    q, k, v = operands(b, shared=2, columns=6)
    lengths = b.input("lengths", shape, dtype)
    positions = np.arange(start, start + 6, dtype=dtype)
    mask = b.op("where", b.op("less", positions, lengths), np.float16(0), np.float16(least))
    return b.op("nn.attention_bias", q, k, v, mask, causal=causal)


@pytest.mark.parametrize("causal", ["none", "top_left"])
def test_padding_masks_are_lengths(machine: Any, causal: str) -> None:
    module = module_of(lambda b: padded(b, causal=causal))
    exe = compiled(module)
    assert_offloaded(exe, "cudnn", "cudnn.padded_attention")
    q, k, v, _ = feeds_of(module, b=3, s=4)
    feeds = [q, k, v, np.array([1, 6, 4], np.int32).reshape(3, 1, 1, 1)]
    given = module.graph_functions()["main"].params
    feeds = [{"q": q, "k": k, "v": v, "lengths": feeds[3]}[param.name] for param in given]
    assert_allclose(np.asarray(machine(exe)(*feeds).numpy()), evaluate(module, feeds)[0])


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda b: padded(b, least=-1e4), "not 0 and minus infinity"),
        (lambda b: padded(b, start=1), "do not start at 0"),
        (lambda b: padded(b, dtype="int64"), "int32 of (b, 1, 1, 1) are needed"),
        (lambda b: padded(b, causal="bottom_right"), "together with a bias or with lengths"),
    ],
)
def test_masks_that_are_no_lengths(build: Any, reason: str) -> None:
    """They may still be a bias."""
    assert any(reason in message for _, message in declined(build))


def plain(**given: Any) -> Any:
    return lambda b: b.op("nn.attention", *operands(b, **given))


@pytest.mark.parametrize(
    ("build", "code", "reason"),
    [
        (plain(dtype="float32"), "dtype", "supported are float16 and bfloat16"),
        (plain(size=12), "attribute", "heads of 12 elements"),
        (plain(wide=20), "attribute", "heads of 20 elements"),
        (plain(size=symbol("h")), "dynamic-shape", "found h, h"),
        (
            lambda b: b.op(
                "nn.attention_bias", *operands(b), b.input("bias", (1, 1, 1, 1), "float16"), causal="bottom_right"
            ),
            "attribute",
            "together with a bias",
        ),
    ],
)
def test_what_is_declined(build: Any, code: str, reason: str) -> None:
    assert [c for c, message in declined(build) if reason in message] == [code]


# --- stacked ----------------------------------------------------------------------------------------------------------
def stacked(b: FunctionBuilder, axis: int = 2, order: tuple[int, int, int] = (0, 1, 2), shape: Any = (2, 5, 48)) -> Var:
    split = b.op("split", b.input("x", shape, "float16"), axis=axis, sections=(shape[axis] // 3,) * 3)
    pieces = [b.get(split, index) for index in order]
    q, k, v = (b.op("reshape", piece, shape=(2, 5, 2, 8)) for piece in pieces)
    return b.op("nn.attention", q, k, v)


@pytest.mark.parametrize("length", [5, symbol("s")])
def test_what_vision_transformers_permute_before_they_split_is_read_where_it_lies(check: Any, length: Any) -> None:
    def build(b: FunctionBuilder) -> Var:
        rows = b.op("reshape", b.input("x", (2, length, 48), "float16"), shape=(2, length, 3, 2, 8))
        split = b.op("split", b.op("permute_dims", rows, axes=(2, 0, 3, 1, 4)), axis=0, sections=(1, 1, 1))
        heads = (b.op("reshape", b.get(split, index), shape=(2, 2, length, 8)) for index in range(3))
        return b.op("nn.attention", *(b.op("permute_dims", each, axes=(0, 2, 1, 3)) for each in heads))

    check(build, "cudnn.attention.BS3NH", sizes=({"s": 5}, {"s": 9}) if length != 5 else ({},))


@pytest.mark.parametrize(
    ("shape", "axes", "axis"),
    [
        ((2, 5, 2, 3, 8), (3, 0, 2, 1, 4), 0),  # not the first factor of the columns
        ((2, 5, 3, 16), (0, 1, 3, 2), 3),  # what is split lies innermost
    ],
)
def test_other_pieces_are_what_they_were(machine: Any, shape: Any, axes: Any, axis: int) -> None:
    def build(b: FunctionBuilder) -> Var:
        rows = b.op("reshape", b.input("x", (2, 5, 48), "float16"), shape=shape)
        split = b.op("split", b.op("permute_dims", rows, axes=axes), axis=axis, sections=(1, 1, 1))
        heads = (b.op("reshape", b.get(split, index), shape=(2, 5, 2, 8)) for index in range(3))
        return b.op("nn.attention", *heads)

    module = module_of(build)
    exe = compiled(module)
    assert {"cudnn.attention"} == {each.pattern.removesuffix(".BS3NH") for each in exe.report.regions}
    feeds = feeds_of(module)
    assert_allclose(np.asarray(machine(exe)(*feeds).numpy()), evaluate(module, feeds)[0])


def test_pieces_in_another_order_begin_elsewhere(check: Any) -> None:
    check(lambda b: stacked(b, order=(2, 0, 1)), "cudnn.attention.BS3NH")


def test_pieces_along_another_axis_are_not_read_as_rows(machine: Any) -> None:
    """A defect of checks that look at the operators alone: what is split must lie in one row."""
    module = module_of(lambda b: stacked(b, axis=1, shape=(2, 15, 16)))
    exe = compiled(module)
    assert {r.pattern for r in exe.report.regions} == {"cudnn.attention"}, "the attention alone"
    assert any(each.code == "attribute" and "pieces along axis 1" in each.message for each in exe.report.declined)
    feeds = feeds_of(module)
    assert_allclose(np.asarray(machine(exe)(*feeds).numpy()), evaluate(module, feeds)[0])


def test_a_reshape_that_mixes_rows_is_no_head(machine: Any) -> None:
    def build(b: FunctionBuilder) -> Var:
        split = b.op("split", b.input("x", (2, 5, 48), "float16"), axis=2, sections=(16, 16, 16))
        q, k, v = (b.op("reshape", b.get(split, index), shape=(2, 2, 5, 8)) for index in range(3))
        return b.op("nn.attention", q, k, v)

    module = module_of(build)
    exe = compiled(module)
    assert any(each.code == "layout" for each in exe.report.declined)
    feeds = feeds_of(module)
    assert_allclose(np.asarray(machine(exe)(*feeds).numpy()), evaluate(module, feeds)[0])
