"""A step's prefill: within its budget, every token once and in order, in calls of a bounded size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard_llm import LanguageModel
from kernelyard_llm.engine.batch import CHUNK, round_up_length
from kernelyard_llm.engine.generation import Generation
from kernelyard_llm.engine.pages import PagePool, PageTable
from kernelyard_llm.engine.prefill import allot, calls
from kernelyard_llm.sampling import Sampler, Sampling


@pytest.fixture(scope="module")
def pool(llama: LanguageModel) -> PagePool:
    return PagePool(llama.config, 1)


def request(pool: PagePool, length: int, computed: int = 0) -> Generation:
    table = PageTable(pool, length=computed)
    return Generation(length, [5] * length, 1, Sampling(), Sampler(Sampling(), []), (), print, table)


@given(sizes=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), max_size=12), budget=st.integers(1, 256))
def test_tokens_are_computed_once_and_in_order(pool: PagePool, sizes: list[tuple[int, int]], budget: int) -> None:
    prompts = [request(pool, computed + rest, computed) for computed, rest in sizes]
    shares = allot(prompts, budget)
    assert [share.made for share in shares] == prompts[: len(shares)]
    assert sum(share.end - share.start for share in shares) == min(budget, sum(rest for _, rest in sizes))
    assert all(share.end == share.made.prompt for share in shares[:-1])
    done = {made: made.table.length for made in prompts}
    for call in calls(shares):
        assert len(call) * max(round_up_length(chunk.end - chunk.start) for chunk in call) <= CHUNK
        for chunk in call:
            assert chunk.start == done[chunk.made] < chunk.end
        done |= {chunk.made: chunk.end for chunk in call}
        assert len({chunk.made for chunk in call}) == len(call)
    assert done == {made: made.table.length for made in prompts} | {share.made: share.end for share in shares}


def test_short_prompts_share_a_call(pool: PagePool) -> None:
    lengths = [3, 8, 40, 4, 20, 1, 7, 1, 64]
    found = calls(allot([request(pool, length) for length in lengths], 256))
    assert [[chunk.end - chunk.start for chunk in call] for call in found] == [
        *([32], [32], [32]),
        *([1, 1], [3, 4], [8, 8, 7], [20]),
    ]
