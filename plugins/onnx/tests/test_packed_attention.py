"""Batches without padding, and biases by distance (domain com.microsoft): onnxruntime has them for GPUs alone.

The expected numbers are those of padded batches, in onnxruntime or NumPy.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from microsoft_cases import Case, f, i32, model_of, results_of

from kernelyard_onnx.session import Session

COUNTS, LENGTH, WIDTH, HEADS = (2, 5, 3), 5, 8, 2
B = len(COUNTS)
PLACES = [i * LENGTH + t for i, count in enumerate(COUNTS) for t in range(count)]
PADDING = [place for place in range(B * LENGTH) if place not in PLACES]
OFFSETS = i32(*PLACES, *PADDING).reshape(B, LENGTH)
ENDS = i32(0, *np.cumsum(COUNTS))


def tokens_of(x: np.ndarray) -> np.ndarray:
    return x.reshape(B * LENGTH, -1)[PLACES]


def padded(tokens: np.ndarray) -> np.ndarray:
    whole = np.zeros((B * LENGTH, tokens.shape[1]), tokens.dtype)
    whole[PLACES] = tokens
    return whole.reshape(B, LENGTH, -1)


@pytest.mark.parametrize("is_open", [False, True])
def test_padding_is_removed(is_open: bool, make) -> None:
    x = f(B, LENGTH, WIDTH)
    case = Case("RemovePadding", {"x": x, "n": i32(*COUNTS)}, {}, ("y", "offsets", "ends", "most"))
    model, data = model_of(case, make, {"x": ["b", "s", WIDTH], "n": ["b"]} if is_open else None)
    session = Session(model, [])
    assert session.executable is not None
    for found, expected in zip(session.run(data), (tokens_of(x), OFFSETS, ENDS, i32(max(COUNTS))), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_padding_is_restored(make) -> None:
    tokens = f(len(PLACES), WIDTH)
    (found,) = results_of(Case("RestorePadding", {"x": tokens, "to": OFFSETS}, {}), make)
    np.testing.assert_array_equal(found, padded(tokens))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("op", ["PackedAttention", "PackedMultiHeadAttention", "packed heads"])
def test_attention_stays_within_sequences(op: str, with_bias: bool, make) -> None:
    tokens, weight, shift = f(len(PLACES), WIDTH), f(WIDTH, 3 * WIDTH), f(3 * WIDTH)
    bias = f(1, HEADS, LENGTH, LENGTH) if with_bias else None
    whole = {"x": padded(tokens), "w": weight, "b": shift, "m": i32(*COUNTS), "p": None, "a": bias}
    model, data = model_of(Case("Attention", whole, {"num_heads": HEADS}), make)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, data)

    packing = {"to": OFFSETS, "ends": ENDS, "a": bias}
    product = tokens @ weight
    given = {"x": tokens, "w": weight, "b": shift}
    if op == "PackedMultiHeadAttention":
        given = {**dict(zip("qkv", np.split(product, 3, axis=1), strict=True)), "b": shift}
    elif op == "packed heads":
        op = "PackedMultiHeadAttention"
        by_head = np.stack(np.split(product + shift, 3, axis=1), 1).reshape(-1, 3, HEADS, WIDTH // HEADS)
        given = {"q": by_head.transpose(0, 2, 1, 3).copy(), "k": None, "v": None, "b": None}
    (found,) = results_of(Case(op, {**given, **packing}, {"num_heads": HEADS}), make)
    np.testing.assert_allclose(found, tokens_of(expected), rtol=1e-4, atol=1e-5)


def bucket(distance: int, count: int, most: int, both_ways: bool) -> int:
    """The bucket of a distance from query to key, as T5 defines it."""
    if both_ways:
        return (count // 2 if distance > 0 else 0) + bucket(-abs(distance), count // 2, most, False)
    back, exact = max(-distance, 0), count // 2
    if back < exact:
        return back
    wide = exact + int(np.log(back / exact) / np.log(most / exact) * (count - exact))
    return min(wide, count - 1)


@pytest.mark.parametrize("both_ways", [False, True])
def test_a_bias_by_distance(both_ways: bool, make) -> None:
    rows, count = 70, 32
    table = f(count, HEADS)
    inputs = {"x": table, "wq": np.array([rows]), "wk": np.array([rows])}
    case = Case("RelativePositionBias", inputs, {"max_distance": 50, "is_bidirectional": int(both_ways)})
    (found,) = results_of(case, make)
    distances = np.arange(rows) - np.arange(rows)[:, None]
    buckets = np.vectorize(lambda distance: bucket(int(distance), count, 50, both_ways))(distances)
    np.testing.assert_array_equal(found, table.reshape(HEADS, count)[:, buckets][None])


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_bias_with_gates(is_packed: bool, make) -> None:
    size, columns = WIDTH // HEADS, 6
    tokens, shift, bias = f(len(PLACES), WIDTH), f(WIDTH), f(1, HEADS, LENGTH, LENGTH)
    weight, offset, scale = f(size, columns), f(columns), f(1, HEADS, 1, 1)
    query = tokens if is_packed else padded(tokens + shift) - shift
    inputs = {
        "q": query,
        "b": shift,
        "r": bias,
        "w": weight,
        "o": offset,
        "e": scale,
        "to": OFFSETS if is_packed else None,
    }
    (found,) = results_of(Case("GatedRelativePositionBias", inputs, {"num_heads": HEADS}), make)

    heads = padded(tokens + shift).reshape(B, LENGTH, HEADS, size).transpose(0, 2, 1, 3)
    sums = (heads @ weight + offset).reshape(B, HEADS, LENGTH, 2, columns // 2).sum(-1)
    update, reset = np.split(1 / (1 + np.exp(-sums)), 2, axis=-1)
    np.testing.assert_allclose(found, (update * (reset * scale - 1) + 2) * bias, rtol=1e-4, atol=1e-5)
