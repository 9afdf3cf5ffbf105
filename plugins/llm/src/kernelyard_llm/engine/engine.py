"""Engine: continuous batching; prompts are computed in chunks between decoding steps."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard_llm.configuration import PAGE
from kernelyard_llm.engine.batch import BatchRunner
from kernelyard_llm.engine.generation import Event, Generation, Reason
from kernelyard_llm.engine.pages import PagePool, PageTable
from kernelyard_llm.engine.prefill import Chunk, allot, calls
from kernelyard_llm.errors import EngineBusyError, EngineStoppedError, LanguageModelError
from kernelyard_llm.model import LanguageModel
from kernelyard_llm.sampling import Sampler, Sampling, Scored

_CACHE_TOKENS = 16384
# Prompt tokens that are computed between two decoding steps: so long do running requests wait for new ones.
_PREFILL_BUDGET = 256


@dataclass(frozen=True)
class EngineOptions:
    """Limits of an engine. sequences: requests in the batch; waiting: requests in the queue.

    cache_tokens: tokens in the KV cache, prefixes kept for later requests included; None for 16384, or the model's
    context where that is more.
    """

    sequences: int = 32
    waiting: int = 128
    cache_tokens: int | None = None


@dataclass
class EngineCounts:
    """Totals since the start."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0


class Engine:
    """Generate tokens for many requests at once, in a thread of its own.

    Example:
        with Engine(model) as engine:
            tokens = list(engine.stream(model.encode("Once"), 16))
    """

    def __init__(self, model: LanguageModel, options: EngineOptions | None = None) -> None:
        self.model, self.options, self.counts = model, options or EngineOptions(), EngineCounts()
        tokens = self.options.cache_tokens or max(_CACHE_TOKENS, model.context)
        self.pool = PagePool(model.config, max(1, tokens // PAGE))
        windows = [layer.window for layer in model.config.layers]
        known = [window for window in windows if window is not None]
        self._window = max(known) if len(known) == len(windows) else None
        self._runner = BatchRunner(model.executable, model.config, self.pool)
        self._waiting: deque[Generation] = deque()
        self._prefilling: deque[Generation] = deque()
        self._decoding: list[Generation] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="kernelyard-llm engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Return True once it accepts no more requests."""
        return self._is_closed

    @property
    def waiting(self) -> int:
        """Return the number of requests in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Return the number of requests in the batch, or in prefill."""
        return len(self._prefilling) + len(self._decoding)

    # --- callers ------------------------------------------------------------------------------------------------------
    def submit(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        tell: Callable[[Event], None],
        sampling: Sampling | None = None,
        ignore_eos: bool = False,
    ) -> Generation:
        """Queue a request; `tell` is called with its tokens and its end, in the engine's thread.

        Raises: EngineBusyError where the queue is full; EngineStoppedError; LanguageModelError for unknown tokens, and
        for a prompt longer than the context.
        """
        how = sampling or Sampling()
        self.model.check(ids, max_new_tokens)
        sampler = Sampler(how, ids, self.model.tokenizer)
        ends = () if ignore_eos else self.model.tokenizer.ends
        table = PageTable(self.pool, self._window)
        made = Generation(len(ids), list(ids), max_new_tokens, how, sampler, ends, tell, table)
        self._check_length(made)
        with self._changed:
            if self._is_closed:
                raise EngineStoppedError("the engine is stopping")
            if len(self._waiting) >= self.options.waiting:
                raise EngineBusyError(
                    "the queue is full", found=len(self._waiting), expected=f"at most {self.options.waiting}"
                )
            self._waiting.append(made)
            self._changed.notify()
        return made

    def _check_length(self, made: Generation) -> None:
        room = min(self.model.context, self.pool.count * PAGE)
        if not made.prompt:
            raise LanguageModelError("there are no tokens to compute", hint="give at least one")
        if made.prompt > room:
            raise LanguageModelError(
                "the text is longer than the context", found=f"{made.prompt} tokens", expected=f"at most {room}"
            )
        made.most = min(made.most, room - made.prompt + 1)

    def stream(
        self, ids: Sequence[int], max_new_tokens: int, sampling: Sampling | None = None, ignore_eos: bool = False
    ) -> Iterator[int]:
        """Yield the tokens that follow `ids`; from several threads, they are computed together. Raises: as `submit`."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        made = self.submit(ids, max_new_tokens, events.put, sampling, ignore_eos)
        try:
            while isinstance(event := events.get(), Scored):
                yield event.token
            if isinstance(event, Exception):
                raise event
        finally:
            self.cancel(made)

    def cancel(self, made: Generation) -> None:
        """End a request at the next step, if it has not ended."""
        made.cancel()
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """End all requests, and the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    # --- steps --------------------------------------------------------------------------------------------------------
    def _loop(self) -> None:
        while True:
            with self._changed:
                while not (self._is_closed or self._waiting or self._prefilling or self._decoding):
                    self._changed.wait()
                if self._is_closed:
                    break
            self._drop_cancelled()
            self._admit()
            self._prefill()
            self._decode_all()
        for made in [*self._waiting, *self._prefilling, *self._decoding]:
            self._end(made, "cancelled")

    def _drop_cancelled(self) -> None:
        with self._changed:
            everything = (self._waiting, self._prefilling, self._decoding)
            gone = [made for part in everything for made in part if made.is_cancelled]
            for made in gone:
                next(part for part in everything if made in part).remove(made)
        for made in gone:
            self._end(made, "cancelled")

    def _admit(self) -> None:
        """Admit requests from the queue, in order, while there are pages for all that each may need."""
        while self._waiting and self.running < self.options.sequences:
            made = self._waiting[0]
            made.reused = made.table.reuse(made.tokens)
            if -(-made.rows // PAGE) - len(made.table.pages) > self.pool.available:
                made.table.release()
                made.table.length = made.table.published = 0
                return
            made.table.reserve(made.rows)
            self.counts.prompt_tokens += made.prompt
            self.counts.reused_tokens += made.reused
            with self._changed:
                self._waiting.popleft()
                self._prefilling.append(made)

    def _prefill(self) -> None:
        """Spend the prefill budget; prompts that are complete join the batch, one that is not goes to the back."""
        shares = allot(self._prefilling, _PREFILL_BUDGET)
        complete: dict[Generation, np.ndarray] = {}
        for call in calls(shares):
            self._prefill_call([chunk for chunk in call if chunk.made in self._prefilling], complete)
        for share in shares:
            if share.made in self._prefilling:
                self._prefilling.remove(share.made)
                if share.made not in complete:
                    self._prefilling.append(share.made)
        if not complete:
            return
        try:
            logits = self._runner.logits(np.stack(list(complete.values())))
        except Exception as error:  # ends the requests whose first token it was for, not the engine
            for made in complete:
                self._end(made, error)
            return
        self._decoding += [made for made, row in zip(complete, logits, strict=True) if not self._choose(made, row)]

    def _prefill_call(self, call: Sequence[Chunk], complete: dict[Generation, np.ndarray]) -> None:
        """Compute chunks of prompts, and keep the hidden states at the ends of those that are complete."""
        if not call:
            return
        try:
            chunks = [chunk.made.tokens[chunk.start : chunk.end] for chunk in call]
            hidden = self._runner.extend(chunks, [chunk.made.table for chunk in call])
        except Exception as error:  # ends the requests that are in the call, not the engine
            for chunk in call:
                self._prefilling.remove(chunk.made)
                self._end(chunk.made, error)
            return
        for chunk, last in zip(call, hidden, strict=True):
            chunk.made.table.advance(chunk.end - chunk.start, chunk.made.tokens)
            if chunk.end == chunk.made.prompt:
                complete[chunk.made] = last

    def _decode_all(self) -> None:
        """Compute the next token of every request in the batch."""
        batch = self._decoding
        if not batch:
            return
        self.counts.steps += 1
        try:
            logits = self._runner.decode([made.tokens[-1] for made in batch], [made.table for made in batch])
        except Exception as error:  # a failing step ends the requests that are in it, not the engine
            self._decoding = []
            for made in batch:
                self._end(made, error)
            return
        for made in batch:
            made.table.advance(1, made.tokens)
        self._decoding = [made for made, row in zip(batch, logits, strict=True) if not self._choose(made, row)]

    def _choose(self, made: Generation, logits: np.ndarray) -> bool:
        """Choose a token and report it; return True where the request has ended."""
        try:
            scored = made.sampler.sample_with_score(logits) if made.sampling.log_probabilities is not None else None
            chosen = scored or Scored(made.sampler.choose(logits), 0.0)
        except LanguageModelError as error:
            self._end(made, error)
            return True
        made.tokens.append(chosen.token)
        self.counts.new_tokens += 1
        made.tell(chosen)
        reason: Reason | None = None
        if chosen.token in made.ends or made.sampler.is_done:
            reason = "stop"
        elif len(made.tokens) - made.prompt >= made.most:
            reason = "length"
        if reason is not None:
            self._end(made, reason)
        return reason is not None

    def _end(self, made: Generation, why: Reason | Exception) -> None:
        made.table.release()
        if isinstance(why, Exception):
            self.counts.failed += 1
        elif why == "cancelled":
            self.counts.cancelled += 1
        else:
            self.counts.finished += 1
        made.tell(why)
