"""Choosing tokens: each filter against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies

from kernelyard_llm import LanguageModelError, Sampling
from kernelyard_llm.sampling import Sampler, Scored
from kernelyard_llm.text_stream import TextStream, count_held_back

LOGITS = np.random.default_rng(0).normal(0, 3, 6000).astype(np.float32)
PROBABILITIES = np.exp(LOGITS - LOGITS.max()).astype(np.float64)
PROBABILITIES /= PROBABILITIES.sum()
ORDER = np.argsort(-LOGITS, kind="stable")


def chosen(count: int = 400, **how: float) -> set[int]:
    sampler = Sampler(Sampling(**{"temperature": 1.0, "seed": 3, **how}))
    return {sampler.choose(LOGITS) for _ in range(count)}


def test_greedy() -> None:
    assert chosen(3, temperature=0) == {int(LOGITS.argmax())}


def test_top_k() -> None:
    assert chosen(top_k=3) == set(ORDER[:3].tolist())
    assert chosen(top_k=1) == {int(ORDER[0])}


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_top_p_keeps_the_least_tokens_that_reach_it(temperature: float) -> None:
    powers = PROBABILITIES ** (1 / temperature)
    sums = np.cumsum(powers[ORDER]) / powers.sum()
    kept = set(ORDER[: int(np.searchsorted(sums, 0.4)) + 1].tolist())
    found = chosen(3000, top_p=0.4, temperature=temperature)
    assert found <= kept
    assert int(ORDER[0]) in found


def test_min_p() -> None:
    kept = set(np.flatnonzero(0.3 * PROBABILITIES.max() <= PROBABILITIES).tolist())
    assert chosen(3000, min_p=0.3) == kept


def test_shares_are_those_of_the_softmax() -> None:
    logits = np.array([1.0, 0.0, 2.0, -5.0], np.float32)
    sampler = Sampler(Sampling(temperature=1.0, seed=1))
    counts = np.bincount([sampler.choose(logits) for _ in range(20000)], minlength=4) / 20000
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(counts, expected, atol=0.015)


def test_equal_seeds_give_equal_tokens() -> None:
    first, second, other = ([Sampler(Sampling(1.0, seed=s)).choose(LOGITS) for _ in range(3)] for s in (1, 1, 2))
    assert first == second
    assert Sampler(Sampling(1.0, seed=5)).choose(LOGITS) == Sampler(Sampling(1.0, seed=5)).choose(LOGITS)
    assert other


@pytest.mark.parametrize(
    "wrong",
    [
        *({"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"min_p": 1.5}, {"seed": -1}),
        *({"repetition_penalty": 0.0}, {"frequency_penalty": np.nan}, {"presence_penalty": np.inf}),
        *({"logit_bias": {3: np.nan}}, {"log_probabilities": -1}),
    ],
)
def test_numbers_out_of_range(wrong: dict) -> None:
    with pytest.raises(LanguageModelError, match="out of range") as caught:
        Sampling(**wrong)
    assert caught.value.code == "KY750"


def test_bias_and_penalties_are_those_of_the_definition() -> None:
    logits = np.array([4.0, 3.5, 3.0, -1.0, 2.0], np.float32)
    how = Sampling(repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=0.5, logit_bias={2: 0.3, 4: -9.0})
    sampler, counts, seen = Sampler(how, prompt=[0]), np.zeros(5), {0}
    for _ in range(12):
        expected = logits.astype(np.float64) - 0.25 * counts - 0.5 * (counts > 0)
        expected[2] += 0.3
        expected[4] -= 9.0
        for token in seen:
            expected[token] = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
        token = sampler.choose(logits)
        assert token == int(expected.argmax())
        counts[token] += 1
        seen.add(token)
    assert counts[:3].min() > 0
    np.testing.assert_array_equal(logits, np.array([4.0, 3.5, 3.0, -1.0, 2.0], np.float32))


def test_a_bias_may_forbid_and_must_name_tokens() -> None:
    assert Sampler(Sampling(logit_bias={int(ORDER[0]): -1e9})).choose(LOGITS) == ORDER[1]
    with pytest.raises(LanguageModelError, match="names no token"):
        Sampler(Sampling(logit_bias={LOGITS.size: 1.0})).choose(LOGITS)


def test_log_probabilities_are_the_models_own() -> None:
    found = Sampler(Sampling(log_probabilities=3, logit_bias={7: 99.0})).sample_with_score(LOGITS)
    assert found.token == 7
    assert found.log_probability == pytest.approx(np.log(PROBABILITIES[7]))
    assert [token for token, _ in found.best] == ORDER[:3].tolist()
    np.testing.assert_allclose([each for _, each in found.best], np.log(PROBABILITIES[ORDER[:3]]))
    assert Sampler(Sampling()).sample_with_score(LOGITS) == Scored(int(ORDER[0]), found.best[0][1])


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    assert count_held_back("abc", ("cd",)) == 1
    assert count_held_back("abc", ("x",)) == 0
    assert count_held_back("abc###", ("####",)) == 3


def pieces(tokens: list[bytes], *stops: str) -> tuple[list[str], int]:
    """Return the pieces of text of tokens, and how many tokens were decoded for them."""
    decoded = 0

    def decode(ids) -> str:
        nonlocal decoded
        decoded += len(ids)
        return b"".join(tokens[each] for each in ids).decode("utf-8", "replace")

    text, found = TextStream(decode, stops), []
    for number in range(len(tokens)):
        found.append(text.push(number))
        if text.is_ended:
            return found, decoded
    return [*found, text.finish()], decoded


def test_text_comes_in_whole_characters_up_to_a_stop() -> None:
    assert pieces([b"a", "é".encode()[:1], "é".encode()[1:], b"b"])[0] == ["a", "", "é", "b", ""]
    assert pieces([b"ab", b"c#", b"##", b"d"], "###")[0] == ["ab", "c", ""]
    assert pieces([b"ab", b"c#", b"#", b"d"], "###")[0] == ["ab", "c", "", "##d", ""]
    assert pieces([b"a", b"\xff"])[0] == ["a", "", "\ufffd"]


@given(text=strategies.text(max_size=40), cuts=strategies.lists(strategies.integers(1, 5), min_size=40, max_size=40))
def test_pieces_are_the_text(text: str, cuts: list[int]) -> None:
    data, tokens = text.encode(), []
    for size in cuts * 4:
        tokens.append(data[:size])
        data = data[size:]
    assert "".join(pieces(tokens)[0]) == text


def test_a_long_text_is_decoded_once() -> None:
    assert pieces([b"word "] * 2000)[1] < 4 * 2000
