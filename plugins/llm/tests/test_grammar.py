"""Forms of answers: what a model of random weights may say is what the form allows."""

from __future__ import annotations

import json
import re
import sys

import pytest

from kernelyard_llm import LanguageModel, LanguageModelError, Sampling
from kernelyard_llm.sampling import Sampler

ASKED = [{"role": "user", "content": "the"}]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_regular_expression(llama: LanguageModel, temperature: float) -> None:
    form = "(the ){1,3}thing[0-9]{2,4}"
    assert re.fullmatch(form, llama.chat(ASKED, max_new_tokens=60, regex=form, temperature=temperature, seed=1))
    assert llama.chat(ASKED, regex="no|yes") in ("no", "yes")


def test_a_json_schema(llama: LanguageModel) -> None:
    fields = {"name": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    schema["x-guidance"] = {"whitespace_flexible": False}  # random weights like tabs for ever
    for given in (schema, json.dumps(schema)):
        answer = json.loads(llama.chat(ASKED, max_new_tokens=200, json_schema=given, temperature=1.0, seed=2))
        assert answer["name"] in ("a", "b")
        assert 0 <= answer["count"] <= 99


def test_a_grammar(llama: LanguageModel) -> None:
    assert re.fullmatch("the|th", llama.chat(ASKED, grammar='start: "th" "e"?'))


def test_forms_keep_the_scores_of_the_model(llama: LanguageModel) -> None:
    tokens = llama.generate(llama.prompt(ASKED), 5, regex="the", log_probabilities=2)
    assert llama.decode(tokens) == "the"
    assert llama.scores is not None
    assert [each.token for each in llama.scores] == tokens
    assert all(len(each.best) == 2 and each.log_probability <= each.best[0][1] for each in llama.scores)
    llama.generate(llama.prompt(ASKED), 1, ignore_eos=True)
    assert llama.scores is None


@pytest.mark.parametrize("form", [{"regex": "(a"}, {"grammar": "start: {{"}, {"json_schema": {"type": "foo"}}])
def test_a_form_that_cannot_be_read(llama: LanguageModel, form: dict) -> None:
    with pytest.raises(LanguageModelError, match="form of the answer"):
        llama.chat(ASKED, **form)


def test_one_form_at_most_and_a_tokenizer_for_it() -> None:
    with pytest.raises(LanguageModelError, match="one form"):
        Sampling(regex="a", grammar="b")
    with pytest.raises(LanguageModelError, match="tokenizer"):
        Sampler(Sampling(regex="a"))


def test_without_the_library_it_says_what_to_install(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(LanguageModelError, match="llguidance") as caught:
        llama.chat(ASKED, regex="a")
    assert "kernelyard-llm[grammar]" in str(caught.value.hint)
