"""The state of a conversation: keys and values of the tokens so far, in pages of a fixed number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernelyard import VirtualMachine
from kernelyard_llm.cache import CachePages
from kernelyard_llm.configuration import DECODE, EXTEND, HEAD, PAGE, ModelConfig
from kernelyard_llm.errors import LanguageModelError

# Tokens that are computed at once: enough for products to be bound by arithmetic. Scores of more leave the second-level
# cache, and more of them are computed in vain, for tokens that come later.
CHUNK = 32


class State:
    """A sequence of tokens that the network has seen. New rows are written behind those that are there."""

    def __init__(self, machine: VirtualMachine, config: ModelConfig, capacity: int) -> None:
        self._extend, self._head, self._decode = (machine[name] for name in (EXTEND, HEAD, DECODE))
        self.capacity, self.length, self._width = capacity, 0, config.width
        count = -(-capacity // PAGE)
        self._pages, self._table = CachePages(config, count), np.arange(count, dtype=np.int32)[None]

    def clear(self) -> None:
        """Forget all tokens."""
        self.length = 0

    def truncate(self, length: int) -> None:
        """Forget the tokens from a position on."""
        self.length = min(self.length, length)

    def append(self, tokens: Sequence[int]) -> np.ndarray:
        """Compute tokens behind those that are there; the logits (vocabulary,) of what follows the last one."""
        if len(tokens) == 1:
            self._check(tokens)
            return self._run(self._decode, tokens)[0]
        return self._logits(self._compute(tokens)[-1][-1:])[0]

    def append_all(self, tokens: Sequence[int]) -> np.ndarray:
        """As `append`, for the logits (tokens, vocabulary) behind every one."""
        return np.concatenate([self._logits(hidden) for hidden in self._compute(tokens)])

    def _compute(self, tokens: Sequence[int]) -> list[np.ndarray]:
        """Return the hidden states, chunk by chunk."""
        self._check(tokens)
        chunks = (tokens[start : start + CHUNK] for start in range(0, len(tokens), CHUNK))
        return [self._run(self._extend, chunk)[0] for chunk in chunks]

    def _check(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise LanguageModelError("there are no tokens to compute", hint="give at least one")
        if self.length + len(tokens) > self.capacity:
            raise LanguageModelError(
                "the text is longer than the context",
                found=f"{self.length + len(tokens)} tokens",
                expected=f"at most {self.capacity}",
                hint="shorten it, or load the model with a larger context",
            )

    def _run(self, function: Callable[..., Any], tokens: Sequence[int]) -> np.ndarray:
        """Return the first result of a function, and keep the new rows of the cache, which are the others."""
        # Whole pages are given to the program: lengths on one page share a plan.
        begin, end = self.length, self.length + len(tokens)
        self._pages.reserve(-(-end // PAGE))
        table = self._table[:, : max(1, -(-begin // PAGE))]
        result, *new = function(
            np.array([tokens], np.int64), np.array([begin], np.int64), table, *self._pages.arguments
        )
        if len(tokens) == 1:
            self._pages.write(*divmod(begin, PAGE), [part.numpy()[:, 0, 0] for part in new])
        else:
            self._pages.write(*divmod(np.arange(begin, end), PAGE), [part.numpy()[:, 0] for part in new])
        self.length = end
        return result.numpy()

    def _logits(self, hidden: np.ndarray) -> np.ndarray:
        return self._head(hidden).numpy()
