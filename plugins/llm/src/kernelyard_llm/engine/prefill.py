"""Schedule prefill: spend a step's budget of tokens on several prompts, in few calls of the program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from kernelyard_llm.engine.batch import CHUNK, round_up_length
from kernelyard_llm.engine.generation import Generation


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, end) of a prompt."""

    made: Generation
    start: int
    end: int


def allot(prompts: Iterable[Generation], budget: int) -> list[Chunk]:
    """Return what is computed of each prompt in a step: as many tokens as `budget` allows, of the first ones first."""
    shares: list[Chunk] = []
    for made in prompts:
        if budget == 0:
            break
        start = made.table.length
        shares.append(Chunk(made, start, min(start + budget, made.prompt)))
        budget -= shares[-1].end - start
    return shares


def calls(shares: Sequence[Chunk]) -> list[list[Chunk]]:
    """Return the calls of the program, in order: full chunks alone, then the rests of equal padded length together.

    A call computes at most CHUNK tokens: products of so many rows are bound by arithmetic, and more leave the cache.
    """
    full: list[list[Chunk]] = []
    rests: list[Chunk] = []
    for share in shares:
        last = share.start + (share.end - share.start) // CHUNK * CHUNK
        full += [[Chunk(share.made, start, start + CHUNK)] for start in range(share.start, last, CHUNK)]
        rests += [Chunk(share.made, last, share.end)] if last < share.end else []
    packed: list[list[Chunk]] = []
    for length, group in groupby(sorted(rests, key=_pad), _pad):
        alike, most = list(group), CHUNK // length
        packed += [alike[start : start + most] for start in range(0, len(alike), most)]
    return full + packed


def _pad(chunk: Chunk) -> int:
    return round_up_length(chunk.end - chunk.start)
