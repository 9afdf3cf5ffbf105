"""Steps of text generation (domain com.microsoft): one new token, its position, repeated n-grams, alignment."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from microsoft_cases import RNG, Case, Inputs, assert_agrees, case, f, i32, model_of, results_of

from kernelyard.errors import UnsupportedOperatorError
from kernelyard_onnx.session import Session

B, N, H = 2, 4, 8
D = N * H


def new_token_cases() -> list[Case]:
    """In a buffer, as onnxruntime has it for CPUs, and of another text."""
    new: Inputs = {"q": f(B, 1, D), "k": f(B, 1, D), "v": f(B, 1, D)}
    state: Inputs = {"pk": f(B, N, 8, H), "pv": f(B, N, 8, H), "n": i32(5)}
    beams: Inputs = {"wide": i32(2), "origin": RNG.integers(0, 2, (1, 2, 8)).astype(np.int32)}
    attrs, outputs = {"num_heads": N, "past_present_share_buffer": 1}, ("y", "pk_", "pv_")
    nothing: Inputs = {"m": None, "a": None}
    op = "DecoderMaskedMultiHeadAttention"
    return [
        Case(op, {**new, **nothing, **state}, {**attrs, "scale": 0.2}, outputs),
        Case(op, {**new, **nothing, **state, **beams}, attrs, outputs),
        Case(op, {**new, **nothing, **state, **beams, "b": f(3 * D)}, attrs, outputs),
        Case(op, {**new, "m": RNG.integers(0, 2, (B, 6)).astype(np.int32), "a": None, **state}, attrs, outputs),
        Case(op, {"q": f(B, 1, D), "k": f(B, N, 6, H), "v": f(B, N, 6, H)}, {"num_heads": N}),
    ]


def rotary_cases() -> list[Case]:
    angles = np.outer(np.arange(16), 1 / 10 ** np.arange(4)).astype(np.float32)
    tables: Inputs = {"wc": np.cos(angles), "ws": np.sin(angles)}
    part = {"num_heads": N, "rotary_embedding_dim": 8}
    kinds = ((f(B, N, 5, 8), {}), (f(B, N, 5, 12), part), (f(B, 5, 48), part))
    return [
        Case("MRotaryEmbedding", {"x": x, "p": RNG.integers(0, 16, (3, B, 5)), **tables}, {**attrs, **how})
        for (x, attrs), layout, turn, sections in itertools.product(kinds, (0, 1), (0, 1), ([2, 1, 1], [4, 0, 0]))
        for how in [{"mrope_layout": layout, "interleaved": turn, "mrope_section": sections}]
    ]


CASES = [
    *new_token_cases(),
    *rotary_cases(),
    *(
        case("NGramRepeatBlock", i=RNG.integers(0, 3, (3, length)), s=f(3, 5), ngram_size=size)
        for length, size in ((9, 1), (9, 2), (9, 3), (2, 4), (3, 3))
    ),
    *(case("DynamicTimeWarping", x=f(*shape)) for shape in ((3, 4), (1, 4), (4, 1), (1, 1), (1, 6, 7), (9, 70))),
    case("DynamicTimeWarping", x=RNG.integers(0, 3, (6, 9)).astype(np.float32)),
    case("RotaryEmbedding", x=f(B, 5, D), p=np.array([3]), wc=f(16, 4), ws=f(16, 4), is_packed_batching=1, scale=2.0),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_against_onnxruntime(case: Case, make) -> None:
    assert_agrees(case, make)


def test_a_path_through_a_matrix_of_open_size_is_one_program(make) -> None:
    model, _ = model_of(case("DynamicTimeWarping", x=f(3, 4)), make, {"x": ["rows", "columns"]})
    session, theirs = Session(model, []), onnxruntime.InferenceSession(model.SerializeToString())
    assert session.executable is not None
    for shape in ((3, 4), (8, 5), (1, 3)):
        feeds = {"x": f(*shape)}
        np.testing.assert_array_equal(session.run(feeds)[0], theirs.run(None, feeds)[0])


@pytest.mark.parametrize("op", ["DecoderMaskedMultiHeadAttention", "packed", "DecoderMaskedSelfAttention"])
def test_a_new_token_after_a_growing_state(op: str, make) -> None:
    """Onnxruntime has it for GPUs alone: the expected numbers are those of its attention of any length."""
    past, x, weight, shift = f(2, B, N, 5, H), f(B, 1, D), f(D, 3 * D), f(3 * D)
    attrs = {"num_heads": N, "scale": 0.3}
    whole = Case("Attention", {"x": x, "w": weight, "b": shift, "m": None, "p": past}, attrs, ("y", "present"))
    model, data = model_of(whole, make)
    expected, present = onnxruntime.InferenceSession(model.SerializeToString()).run(None, data)

    product = x @ weight
    state: Inputs = {"m": None, "a": None, "pk": past[0], "pv": past[1]}
    if op == "DecoderMaskedSelfAttention":
        found, made = results_of(Case(op, {**whole.inputs, "a": None, "n": i32(5)}, attrs, ("y", "present")), make)
        np.testing.assert_allclose(made, present, rtol=1e-4, atol=1e-5)
    else:
        given: Inputs = dict(zip("qkv", np.split(product, 3, axis=2), strict=True))
        given = {"q": product, "k": None, "v": None} if op == "packed" else given
        rest: Inputs = {"n": None, "wide": None, "origin": None, "b": shift}
        case = Case("DecoderMaskedMultiHeadAttention", {**given, **state, **rest}, attrs, ("y", "pk_", "pv_"))
        found, *made = results_of(case, make)
        np.testing.assert_allclose(np.stack(made), present, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_whole_search_is_refused(make) -> None:
    model, _ = model_of(
        case("GreedySearch", i=i32(1, 2).reshape(1, 2), wn=i32(9), pad_token_id=0, eos_token_id=1), make
    )
    with pytest.raises(UnsupportedOperatorError, match="compile the decoder"):
        Session(model, [])
