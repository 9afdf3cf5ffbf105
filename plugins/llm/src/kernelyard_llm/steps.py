"""Continue one text token by token, or by guesses that are computed together and kept as far as they are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kernelyard_llm.lookup import Lookup
from kernelyard_llm.state import State


class Steps:
    """The tokens behind those that a state has seen. choose: a token of logits; drafted, accepted: guesses so far."""

    def __init__(self, state: State, choose: Callable[[np.ndarray], int], lookup: Lookup | None) -> None:
        self._state, self._choose, self._lookup = state, choose, lookup
        self.drafted = self.accepted = 0

    def tokens(self, token: int) -> Iterator[int]:
        """Yield the first token, and those that follow while there is room for them."""
        self._push(token)
        yield token
        while self._state.length < self._state.capacity:
            guesses, begin = self._guesses(), self._state.length
            for right, logits in enumerate(self._compute([token, *guesses])):
                token = self._choose(logits)
                self._push(token)
                is_guessed = right < len(guesses) and token == guesses[right]
                if not is_guessed:
                    self._state.truncate(begin + 1 + right)
                self.accepted += is_guessed
                yield token
                if not is_guessed:
                    break

    def _guesses(self) -> list[int]:
        found = self._lookup.guess() if self._lookup else []
        found = found[: self._state.capacity - self._state.length - 1]
        self.drafted += len(found)
        return found

    def _compute(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits (tokens, vocabulary) behind each of them."""
        return self._state.append(tokens)[None] if len(tokens) == 1 else self._state.append_all(tokens)

    def _push(self, token: int) -> None:
        if self._lookup:
            self._lookup.push(token)
