"""Attention that is spelled out, with masks as models write them, is the operator for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import Call, Function, FunctionBuilder, IRModule, Var, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.pipelines import get_pipeline

B, S, T, N, H = 2, 3, 5, 4, 8
LENGTH = dims.symbol("n")
ZERO, HIDDEN, LOWEST = (np.array(number, np.float32) for number in (0, -np.inf, np.finfo(np.float32).min))

Mask = Callable[[FunctionBuilder, Var], Var]  # scores -> scores of which some are hidden


def spelled_out(mask: Mask, guard: str = "", rows: Dim = S, columns: Dim = T, group: int = 1) -> Function:
    """Queries, keys and values (B, heads, rows or columns, H) -> the result. guard: what is done to rows of weights
    that see nothing."""
    b = FunctionBuilder()
    q = b.input("q", (B, N, rows, H))
    k, v = (b.input(name, (B, N // group, columns, H)) for name in "kv")
    k, v = (repeated(b, x, columns, group) if group > 1 else x for x in (k, v))
    scores = b.op("multiply", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 1, 3, 2))), 0.4)
    weights = b.op("nn.softmax", mask(b, scores), axis=3)
    if guard == "isnan":
        weights = b.op("where", b.op("isnan", weights), ZERO, weights)
    if guard == "any":
        (visible,) = (param for param in b.params if param.name == "mask")
        weights = b.op("where", b.op("any", visible, axes=(3,), keepdims=True), weights, ZERO)
    return b.function(b.op("matmul", weights, v))


def repeated(b: FunctionBuilder, x: Var, columns: Dim, group: int) -> Var:
    x = b.op("reshape", x, shape=(B, N // group, 1, columns, H))
    x = b.op("broadcast_to", x, shape=(B, N // group, group, columns, H))
    return b.op("reshape", x, shape=(B, N, columns, H))


def composed(function: Function, sizes: dict[str, int] | None = None) -> list[Call]:
    """The calls of a function for GPUs, which means the same, rows that see nothing included."""
    before = get_pipeline("simplify")(IRModule({"main": function}))
    after = verify(get_pipeline("compose_attention")(before))
    random = np.random.default_rng(0)
    feeds: list[np.ndarray] = []
    for param in function.params:
        shape = [dims.evaluate(dim, sizes or {}) for dim in param.tensor_type.shape]
        values = random.uniform(-1, 1, shape)
        if param.tensor_type.dtype == "bool":
            feeds.append(values > 0)
            feeds[-1][0] = False
        else:
            feeds.append(values.astype(param.tensor_type.dtype))
    assert_same_meaning(before, after, feeds)
    return [each.value for each in after.graph_functions()["main"].bindings if isinstance(each.value, Call)]


def attention_of(calls: list[Call]) -> Call:
    """The attention, beside which no product and no softmax is left."""
    names = [call.op_name for call in calls]
    assert not {"matmul", "nn.softmax"} & set(names), names
    (found,) = [call for call in calls if call.op_name.startswith("nn.attention")]
    return found


def merged_heads(rows: Dim, columns: Dim, group: int) -> Function:
    """Attention whose products have three axes, as PyTorch's `bmm` does: (B, rows or columns, heads, H) -> alike."""
    b = FunctionBuilder()
    q = b.input("q", (B, rows, N, H))
    k, v = (b.input(name, (B, columns, N // group, H)) for name in "kv")
    if group > 1:
        k, v = (b.op("reshape", x, shape=(B, columns, N // group, 1, H)) for x in (k, v))
        k, v = (b.op("broadcast_to", x, shape=(B, columns, N // group, group, H)) for x in (k, v))
        k, v = (b.op("reshape", x, shape=(B, columns, N, H)) for x in (k, v))

    def flat(x: Var, length: Dim) -> Var:
        return b.op("reshape", b.op("permute_dims", x, axes=(0, 2, 1, 3)), shape=(B * N, length, H))

    scores = b.op("matmul", flat(q, rows), b.op("permute_dims", flat(k, columns), axes=(0, 2, 1)))
    weights = b.op("nn.softmax", b.op("multiply", scores, 0.4), axis=2)
    result = b.op("reshape", b.op("matmul", weights, flat(v, columns)), shape=(B, N, rows, H))
    return b.function(b.op("permute_dims", result, axes=(0, 2, 1, 3)))


def visible(b: FunctionBuilder, scores: Var) -> Var:
    return b.op("where", b.input("mask", (B, 1, 1, T), "bool"), scores, HIDDEN)


def hidden(b: FunctionBuilder, scores: Var) -> Var:
    return b.op("where", b.input("mask", (B, 1, S, T), "bool"), HIDDEN, scores)


def added(b: FunctionBuilder, scores: Var) -> Var:
    return b.op("add", scores, b.op("where", b.input("mask", (B, 1, 1, T), "bool"), ZERO, HIDDEN))


def with_positions(mask: Mask) -> Mask:
    """Relative positions are added before scores are hidden, as MPNet, T5 and windowed transformers do."""
    return lambda b, scores: mask(b, b.op("add", scores, b.input("positions", (1, N, S, T))))


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("columns", [T, LENGTH])
@pytest.mark.parametrize("rows", [S, LENGTH])
def test_heads_merged_with_the_batch(rows: Dim, columns: Dim, group: int) -> None:
    attention = attention_of(composed(merged_heads(rows, columns, group), {"n": 6}))
    assert attention.op_name == "nn.attention"
    assert attention.attrs["scale"] == pytest.approx(0.4)


@pytest.mark.parametrize("mask", [visible, hidden, added])
def test_positions_and_a_mask_become_one_bias(mask: Mask) -> None:
    assert attention_of(composed(spelled_out(with_positions(mask)))).op_name == "nn.attention_bias"


@pytest.mark.parametrize(("mask", "guard"), [(visible, ""), (hidden, ""), (added, ""), (visible, "any")])
def test_masks_of_booleans_become_a_bias(mask: Mask, guard: str) -> None:
    assert attention_of(composed(spelled_out(mask, guard))).op_name == "nn.attention_bias"


def test_rows_without_numbers_are_those_that_the_bias_hides() -> None:
    calls = composed(spelled_out(added, "isnan"))
    assert attention_of(calls).op_name == "nn.attention_bias"
    assert "isnan" not in {call.op_name for call in calls}


def test_a_mask_that_hides_by_another_number_stays() -> None:
    """A row that sees nothing would get other weights."""

    def mask(b: FunctionBuilder, scores: Var) -> Var:
        return b.op("where", b.input("mask", (B, 1, 1, T), "bool"), scores, np.array(-1e4, np.float32))

    assert "nn.softmax" in {call.op_name for call in composed(spelled_out(mask))}


# --- causal -----------------------------------------------------------------------------------------------------------
def lower(rows: Dim, columns: Dim, b: FunctionBuilder) -> Any:
    if isinstance(rows, int) and isinstance(columns, int):
        return np.tri(rows, columns, dtype=bool)
    row = b.op("reshape", b.op("arange", count=rows), shape=(rows, 1))
    return b.op("less_equal", b.op("arange", count=columns), row)


@pytest.mark.parametrize("rows", [S, LENGTH], ids=str)
@pytest.mark.parametrize(("is_added", "number"), [(False, HIDDEN), (True, HIDDEN), (True, LOWEST)])
def test_what_hides_later_keys_is_causal(rows: Dim, is_added: bool, number: np.ndarray) -> None:
    if not is_added and number == LOWEST:
        pytest.skip("only -inf is selected: see test_a_mask_that_hides_by_another_number_stays")

    def mask(b: FunctionBuilder, scores: Var) -> Var:
        seen = lower(rows, rows, b)
        if is_added:
            return b.op("add", scores, b.op("where", seen, ZERO, number))
        return b.op("where", seen, scores, number)

    found = attention_of(composed(spelled_out(mask, rows=rows, columns=rows), {"n": 6}))
    assert (found.op_name, found.attrs["causal"]) == ("nn.attention", "top_left")


def test_a_guard_of_causal_rows_goes() -> None:
    b = FunctionBuilder()
    q, k, v = (b.input(name, (B, N, LENGTH, H)) for name in "qkv")
    scores = b.op("multiply", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 1, 3, 2))), 0.4)
    seen = lower(LENGTH, LENGTH, b)
    weights = b.op("nn.softmax", b.op("where", seen, scores, HIDDEN), axis=3)
    weights = b.op("where", b.op("any", seen, axes=(1,), keepdims=True), weights, ZERO)
    calls = composed(b.function(b.op("matmul", weights, v)), {"n": 6})
    assert attention_of(calls).attrs["causal"] == "top_left"
    assert not {"where", "any"} & {call.op_name for call in calls}


@pytest.mark.parametrize("diagonal", [-1, 1])
def test_another_diagonal_is_a_bias(diagonal: int) -> None:
    seen = np.tri(S, S, diagonal, dtype=bool)
    found = attention_of(composed(spelled_out(lambda b, x: b.op("where", seen, x, HIDDEN), columns=S)))
    assert found.op_name == "nn.attention_bias"


# --- heads and scales -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mask", [lambda b, scores: scores, added])
def test_repeated_heads_become_fewer(mask: Mask) -> None:
    calls = composed(spelled_out(mask, group=2))
    assert attention_of(calls).args[1].tensor_type.shape == (B, T, N // 2, H)
    assert "broadcast_to" not in {call.op_name for call in calls}


def test_scales_of_queries_and_keys_are_a_scale() -> None:
    """As exporters to ONNX write it, which merge batch and heads to transpose the keys."""
    b = FunctionBuilder()
    q, k, v = (b.input(name, (B, rows, N, H)) for name, rows in (("q", S), ("k", T), ("v", T)))
    q, k, v = (b.op("permute_dims", x, axes=(0, 2, 1, 3)) for x in (q, k, v))
    transposed = b.op("permute_dims", b.op("reshape", k, shape=(B * N, T, H)), axes=(0, 2, 1))
    transposed = b.op("reshape", transposed, shape=(B, N, H, T))
    scores = b.op("matmul", b.op("multiply", q, 0.5), b.op("multiply", transposed, 0.5))
    result = b.op("matmul", b.op("nn.softmax", scores, axis=3), v)
    calls = composed(b.function(b.op("permute_dims", result, axes=(0, 2, 1, 3))))
    assert [call.op_name for call in calls] == ["nn.attention"]
    assert calls[0].attrs["scale"] == pytest.approx(0.25)


@pytest.mark.parametrize("what", ["weights", "scores"])
def test_what_others_read_is_not_computed_twice(what: str) -> None:
    b = FunctionBuilder()
    q, k, v = b.input("q", (B, N, S, H)), b.input("k", (B, N, H, T)), b.input("v", (B, N, T, H))
    scores = b.op("add", b.op("matmul", q, k), b.input("bias", (T,)))
    weights = b.op("nn.softmax", scores, axis=3)
    calls = composed(b.function(b.tuple(b.op("matmul", weights, v), weights if what == "weights" else scores)))
    assert [call.op_name for call in calls].count("matmul") == 2
