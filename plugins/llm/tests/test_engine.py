"""Many texts at once: the same tokens as one after another, pages that are shared and given back, limits."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import numpy as np
import pytest
from small_llama import CONTEXT, TOKENS

from kernelyard_llm import LanguageModel, LanguageModelError, Sampling
from kernelyard_llm.configuration import DECODE_BATCH, PAGE
from kernelyard_llm.engine.engine import Engine, EngineOptions
from kernelyard_llm.engine.generation import Event
from kernelyard_llm.engine.pages import PagePool, PageTable, digests
from kernelyard_llm.errors import EngineBusyError, EngineStoppedError
from kernelyard_llm.sampling import Scored

RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(3, len(TOKENS), size).tolist() for size in (5, 70, 130, 300, 64, 65, 1)]


@pytest.fixture
def engine(llama: LanguageModel) -> Iterator[Engine]:
    with Engine(llama) as made:
        yield made


def together(engine: Engine, prompts: list[list[int]], count: int = 12) -> list[list[int]]:
    def one(prompt: list[int]) -> list[int]:
        return list(engine.stream(prompt, count, ignore_eos=True))

    with ThreadPoolExecutor(len(prompts)) as threads:
        return list(threads.map(one, prompts))


def test_texts_together_get_the_tokens_of_each_alone(engine: Engine, llama: LanguageModel) -> None:
    alone = [llama.generate(prompt, 12, ignore_eos=True) for prompt in PROMPTS]
    assert together(engine, PROMPTS) == alone
    assert engine.counts.steps < 12 * len(PROMPTS) / 2  # most steps computed several
    assert (engine.counts.finished, engine.pool.used) == (len(PROMPTS), 0)
    assert together(engine, PROMPTS[:3]) == alone[:3]  # from pages that were kept
    assert engine.counts.reused_tokens == sum((len(prompt) - 1) // PAGE * PAGE for prompt in PROMPTS[:3])


def test_no_plan_is_made_for_each_length(engine: Engine) -> None:
    together(engine, PROMPTS[:3])
    misses = engine.model.executable.cache_info()["plans"].misses
    together(engine, [[*prompt, 7] for prompt in PROMPTS[:3]])
    assert engine.model.executable.cache_info()["plans"].misses <= misses + 2  # of texts that begin at other times


def test_a_text_that_is_cancelled_gives_its_pages_back(engine: Engine) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    made = engine.submit(PROMPTS[3], 200, events.put, ignore_eos=True)
    events.get(timeout=30)
    assert engine.pool.used > 0
    engine.cancel(made)
    while isinstance(last := events.get(timeout=30), tuple):
        pass
    assert last == "cancelled"
    assert engine.pool.used == 0
    assert len(list(engine.stream(PROMPTS[0], 3, ignore_eos=True))) == 3


def test_what_does_not_fit_waits_and_too_many_are_refused(llama: LanguageModel) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    options = EngineOptions(sequences=4, waiting=2, cache_tokens=5 * PAGE)
    with Engine(llama, options) as engine:
        submitted = [engine.submit([5] * 200, 60, events.put, ignore_eos=True)]
        events.get(timeout=30)  # it runs, and takes all pages but one
        submitted += [engine.submit([7] * 200, 60, events.put, ignore_eos=True) for _ in range(2)]
        with pytest.raises(EngineBusyError, match="queue is full"):
            engine.submit([5], 1, events.put)
        for each in submitted:
            engine.cancel(each)
        ends = []
        while len(ends) < 3:
            ends += [event for event in [events.get(timeout=30)] if not isinstance(event, tuple)]
        assert ends == ["cancelled"] * 3
        assert list(engine.stream([5] * 250, 50, ignore_eos=True))  # evicts what was kept
    with pytest.raises(EngineStoppedError):
        engine.submit([5], 1, events.put)


def test_what_cannot_be_continued_is_refused_at_once(engine: Engine) -> None:
    for ids, match in (([], "no tokens"), ([len(TOKENS)], "unknown token"), ([5] * (CONTEXT + 1), "longer than")):
        with pytest.raises(LanguageModelError, match=match):
            list(engine.stream(ids, 4))
    assert len(list(engine.stream([5] * (CONTEXT - 2), 9, ignore_eos=True))) == 3


def test_an_artifact_of_an_earlier_version_is_to_be_compiled_again(
    llama: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(llama.executable.programs, DECODE_BATCH)
    with pytest.raises(LanguageModelError, match="lacks a function") as caught:
        Engine(llama)
    assert caught.value.expected == DECODE_BATCH
    assert "compile the model's file again" in str(caught.value)


def test_each_text_is_sampled_as_it_asks(engine: Engine, llama: LanguageModel) -> None:
    how = Sampling(temperature=1.5, seed=4)
    alone = llama.generate(PROMPTS[0], 8, temperature=1.5, seed=4, ignore_eos=True)
    assert list(engine.stream(PROMPTS[0], 8, how, ignore_eos=True)) == alone


def test_a_failure_while_a_text_is_computed_ends_that_text(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(engine._runner, "extend", fail)
        with pytest.raises(MemoryError):
            list(engine.stream(PROMPTS[0], 3))
    assert (engine.counts.failed, engine.pool.used) == (1, 0)
    assert len(list(engine.stream(PROMPTS[0], 3, ignore_eos=True))) == 3


def submitted_at_the_first_token(engine: Engine, first: list[int], others: list[list[int]], count: int) -> list[int]:
    """Return the tokens of `first`, at whose first token all others are in the queue."""
    ends: queue.SimpleQueue[Event] = queue.SimpleQueue()
    tokens: list[int] = []

    def tell(event: Event) -> None:
        if not isinstance(event, Scored):
            ends.put(event)
            return
        tokens.append(event.token)
        if len(tokens) == 1:
            for prompt in others:
                engine.submit(prompt, count, lambda event: None if isinstance(event, Scored) else ends.put(event))

    engine.submit(first, count, tell, ignore_eos=True)
    assert [ends.get(timeout=30) for _ in range(len(others) + 1)] == ["length"] * (len(others) + 1)
    return tokens


def test_prompts_of_one_step_join_the_batch_together(engine: Engine, llama: LanguageModel) -> None:
    prompts = [RNG.integers(3, len(TOKENS), size).tolist() for size in (5, 30, 1, 3, 40, 5, 33)]
    tokens = submitted_at_the_first_token(engine, [9, 8, 7], prompts, 12)
    assert tokens == llama.generate([9, 8, 7], 12, ignore_eos=True)
    assert engine.counts.steps == 12  # 11 tokens follow the first one of each, and the first request is a step ahead


def test_running_requests_wait_for_a_budget_of_prompts_at_most(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []  # tokens of each call, or 0 for a decoding step
    extend, decode = engine._runner.extend, engine._runner.decode

    def spy(chunks: list[list[int]], tables: list[PageTable]) -> np.ndarray:
        calls.append(sum(map(len, chunks)))
        return extend(chunks, tables)

    def step(tokens: list[int], tables: list[PageTable]) -> np.ndarray:
        before = len(calls)
        logits = decode(tokens, tables)
        calls[before:] = [0]
        return logits

    monkeypatch.setattr(engine._runner, "extend", spy)
    monkeypatch.setattr(engine._runner, "decode", step)
    prompts = [RNG.integers(3, len(TOKENS), size).tolist() for size in (300, 200, 90, 90, 90)]
    submitted_at_the_first_token(engine, [9, 8, 7], prompts, 12)
    waits = [sum(group) for is_step, group in groupby(calls, key=lambda count: count == 0) if not is_step]
    assert sum(waits) == 3 + sum(map(len, prompts))
    assert waits == [3, 256, 256, 256, 2]


def test_pages_are_shared_by_texts_that_begin_alike(llama: LanguageModel) -> None:
    pool = PagePool(llama.config, 4)
    tokens = list(range(3, 3 + 2 * PAGE + 5))
    first, second, other = (PageTable(pool) for _ in range(3))
    first.reserve(len(tokens))
    first.advance(len(tokens), tokens)
    assert second.reuse(tokens) == 2 * PAGE
    assert second.pages == first.pages[:2]
    assert other.reuse([4, *tokens[1:]]) == 0
    first.release()
    assert pool.used == 2
    second.release()
    assert pool.available == 4
    other.reserve(4 * PAGE)  # takes the pages that were kept, too
    assert pool.available == 0
    assert PageTable(pool).reuse(tokens) == 0


def test_pages_behind_a_window_are_given_back(llama: LanguageModel) -> None:
    pool = PagePool(llama.config, 4)
    table = PageTable(pool, window=PAGE)
    tokens = [5] * (4 * PAGE)
    table.reserve(len(tokens))
    table.advance(3 * PAGE, tokens)
    assert pool.used == 2
    pages, rows = table.places(2)
    assert set(pages) == {table.pages[3]}
    assert rows.tolist() == [0, 1]
    table.release()
    assert pool.used == 0


def test_digests_are_of_all_that_comes_before() -> None:
    first, second = [1] * PAGE, [2] * PAGE
    assert digests([*first, *second])[1] != digests([*second, *second])[1]
    assert digests([*first, 5]) == digests(first)
