"""Choosing tokens: each filter against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard_llm import LanguageModelError, Sampling
from kernelyard_llm.model import _held_back
from kernelyard_llm.sampling import Sampler

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


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"min_p": 1.5}, {"seed": -1}])
def test_numbers_out_of_range(wrong: dict) -> None:
    with pytest.raises(LanguageModelError, match="out of range") as caught:
        Sampling(**wrong)
    assert caught.value.code == "KY750"


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    assert _held_back("abc", ("cd",)) == 1
    assert _held_back("ab\ufffd", ()) == 1
    assert _held_back("abc", ("x",)) == 0
    assert _held_back("abc###", ("####",)) == 3
