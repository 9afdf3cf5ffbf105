"""Answers of a request: generations of an engine, whose tokens come to the event loop as text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from kernelyard_llm.engine.engine import Engine
from kernelyard_llm.engine.generation import Event, Generation
from kernelyard_llm.sampling import Sampling, Scored
from kernelyard_llm.server.counts import ServerCounts
from kernelyard_llm.text_stream import TextStream


@dataclass(frozen=True)
class Piece:
    """Text of a choice that has become certain, with the tokens since the piece before, and at its end the reason."""

    index: int
    text: str
    scores: tuple[Scored, ...] = ()
    reason: str | None = None


class Answer:
    """The choices of a request: computed from when it is made on; `async for piece in answer.pieces()`.

    Raises: EngineBusyError, LanguageModelError.
    """

    def __init__(
        self,
        engine: Engine,
        counts: ServerCounts,
        prompts: Sequence[Sequence[int]],
        samplings: Sequence[Sampling],
        new_tokens: int,
        stops: tuple[str, ...],
    ) -> None:
        self._engine, self._counts = engine, counts
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._texts: list[TextStream] = []
        self._made: list[Generation] = []
        self.prompt_tokens, self.new_tokens = sum(map(len, prompts)), 0
        self._begin = time.perf_counter()
        try:
            for prompt in prompts:
                for sampling in samplings:
                    tell = partial(self._tell, len(self._made))
                    self._made.append(engine.submit(prompt, new_tokens, tell, sampling))
                    self._texts.append(TextStream(engine.model.decode, stops))
        except BaseException:
            self.cancel()
            raise

    @property
    def choices(self) -> int:
        """Return the number of choices."""
        return len(self._made)

    def cancel(self) -> None:
        """Give up what has not ended: nobody reads it."""
        for each in self._made:
            self._engine.cancel(each)

    def _tell(self, index: int, event: Event) -> None:
        """Hand an event of the engine's thread to the loop, which may be gone."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the texts of all choices as they come. Raises: what failed."""
        scores: list[list[Scored]] = [[] for _ in self._made]
        latest = [self._begin] * self.choices
        still = set(range(self.choices))
        try:
            while still:
                index, event = await self._events.get()
                if index not in still:
                    continue
                if isinstance(event, Exception):
                    raise event
                text, reason = self._texts[index], None
                if isinstance(event, Scored):
                    latest[index] = self._count(latest[index])
                    scores[index].append(event)
                    certain = text.push(event.token)
                    reason = "stop" if text.is_ended else None
                else:
                    certain, reason = text.finish(), event
                if certain or reason:
                    yield Piece(index, certain, tuple(scores[index]), reason)
                    scores[index] = []
                if reason:
                    still.discard(index)
                    self._engine.cancel(self._made[index])
        finally:
            self.cancel()

    def _count(self, before: float) -> float:
        """Take down a token; returns the time."""
        now = time.perf_counter()
        self._counts.token(now - before, is_first=before == self._begin)
        self.new_tokens += 1
        return now
