"""Guess the next tokens by what followed the last ones before: prompt lookup, speculation without a second model.

Source: Saxena, "Prompt Lookup Decoding", 2023; as n-gram speculation in vLLM and llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

# So many tokens have to be the same as before: fewer guess wrong too often.
_LENGTH = 3


class Lookup:
    """Guesses `count` tokens at a time of one text, which grows.

    Example:
        >>> Lookup(4, [7, 8, 9, 5, 6, 7, 8, 9]).guess()
        [5, 6, 7, 8]
    """

    def __init__(self, count: int, tokens: Sequence[int]) -> None:
        self._count = count
        self._tokens: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}  # tokens -> where what follows their last place begins
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        """Add the token that follows."""
        if len(self._tokens) >= _LENGTH:
            self._behind[self._last()] = len(self._tokens)
        self._tokens.append(token)

    def guess(self) -> list[int]:
        """Return `count` tokens that may follow, none where the last ones are new; short rounds go in a circle."""
        begin = self._behind.get(self._last())
        if begin is None:
            return []
        found = self._tokens[begin : begin + self._count]
        return [found[place % len(found)] for place in range(self._count)]

    def _last(self) -> tuple[int, ...]:
        return tuple(self._tokens[-_LENGTH:])
