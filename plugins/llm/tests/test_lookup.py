"""Guesses of the next tokens, and texts that are generated with them."""

from __future__ import annotations

import pytest

from kernelyard_llm import LanguageModel, LanguageModelError
from kernelyard_llm.lookup import Lookup

TEXT = [5, 77, 130, 9, 44, 201, 5, 77, 130]


def test_guesses_are_what_followed_the_last_time() -> None:
    lookup = Lookup(4, [1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 8, 9, 1, 2])
    assert lookup.guess() == []
    lookup.push(3)
    assert lookup.guess() == [6, 7, 8, 9]


def test_a_short_round_goes_on_in_a_circle() -> None:
    assert Lookup(5, [8, 1, 2, 1, 2, 1]).guess() == [2, 1, 2, 1, 2]
    assert Lookup(3, [4, 4, 4, 4]).guess() == [4, 4, 4]


@pytest.mark.parametrize("draft", [1, 3, 7])
def test_tokens_are_those_without_guesses(draft: int, llama: LanguageModel) -> None:
    expected = llama.generate(TEXT, 60, ignore_eos=True)
    assert llama.generate(TEXT, 60, ignore_eos=True, draft=draft) == expected
    assert llama.stats is not None
    assert 0 < llama.stats.accepted_tokens <= llama.stats.drafted_tokens
    assert llama.stats.new_tokens == 60


def test_random_tokens_are_those_without_guesses(llama: LanguageModel) -> None:
    how = {"temperature": 0.3, "seed": 5, "repetition_penalty": 1.1, "ignore_eos": True}
    assert llama.generate(TEXT, 40, draft=3, **how) == llama.generate(TEXT, 40, **how)


def test_guesses_end_with_the_context(llama: LanguageModel) -> None:
    long = (TEXT * 100)[: llama.context - 4]
    assert llama.generate(long, 50, ignore_eos=True, draft=8) == llama.generate(long, 50, ignore_eos=True)


def test_probabilities_are_kept_of_every_token(llama: LanguageModel) -> None:
    tokens = llama.generate(TEXT, 20, ignore_eos=True, draft=3, log_probabilities=1)
    assert llama.scores is not None
    assert [each.token for each in llama.scores] == tokens


def test_a_draft_of_less_than_nothing(llama: LanguageModel) -> None:
    with pytest.raises(LanguageModelError, match="draft"):
        llama.generate(TEXT, 4, draft=-1)
