"""`kernelyard chat` and `kernelyard bench-llm`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelyard_llm import LanguageModel
from kernelyard_llm.bench_command import command as bench
from kernelyard_llm.chat_command import command as chat


@pytest.fixture(scope="session")
def artifact(llama: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "small.kyar"
    llama.save(path)
    return path


def test_chat_answers_what_the_model_answers(artifact: Path, llama: LanguageModel) -> None:
    result = CliRunner().invoke(chat, [str(artifact), "-p", "the", "--max-new-tokens", "5"])
    assert result.exit_code == 0, result.output
    expected = llama.chat([{"role": "user", "content": "the"}], max_new_tokens=5)
    assert result.stdout.removesuffix("\n") == expected


def test_a_talk_remembers_what_was_said(artifact: Path, llama: LanguageModel) -> None:
    result = CliRunner().invoke(chat, [str(artifact), "--json", "--max-new-tokens", "3"], input="the\nthing\n\n")
    assert result.exit_code == 0, result.output
    first, second = map(json.loads, result.stdout.splitlines())
    messages = [{"role": "user", "content": "the"}, {"role": "assistant", "content": first["content"]}]
    assert second["content"] == llama.chat([*messages, {"role": "user", "content": "thing"}], max_new_tokens=3)
    assert second["stats"]["new_tokens"] <= 3


def test_bench_measures_the_model(artifact: Path) -> None:
    arguments = ["--prompt-tokens", "8", "--new-tokens", "4", "--rounds", "1", "--threads", "1"]
    result = CliRunner().invoke(bench, [str(artifact), *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["prompt_tokens"], found["new_tokens"]) == (8, 4)
    assert min(found[name] for name in ("decode_tokens_per_second", "prefill_tokens_per_second")) > 0
    table = CliRunner().invoke(bench, [str(artifact), *arguments])
    assert "time to first token" in table.stdout


def test_bytes_per_token_are_those_of_the_file(llama: LanguageModel, llama_file: Callable[[str], Path]) -> None:
    stored = llama_file("Q4_1").stat().st_size
    assert 0.9 * stored < llama.description.bytes_per_token < stored
