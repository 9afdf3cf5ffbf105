"""Tokens to text, piece by piece: each piece is decoded once, and held back only while it may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"  # what bytes of a character that is not whole yet decode to
_MOST_UNFINISHED = 16  # tokens of one character; more are none


class TextStream:
    """Give the text of tokens as soon as it is certain: neither half of a character, nor what may begin a stop string.

    decode: tokens to text; of each call there are few, however long the text is. stops: strings that end it.
    is_ended: one was found.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, tuple(stop for stop in stops if stop)
        self._ids: list[int] = []
        self._read = 0  # of these tokens, the text is given; they stay for what decoders do between tokens
        self._held = ""
        self.is_ended = False

    def push(self, token: int) -> str:
        """Return the text that a token makes certain."""
        self._ids.append(token)
        return self._certain(self._new(is_last=False), is_last=False)

    def finish(self) -> str:
        """Return the text that was held back."""
        return self._certain(self._new(is_last=True), is_last=True)

    def _new(self, is_last: bool) -> str:
        """Return the text of tokens whose characters are whole."""
        before, whole = self._decode(self._ids[: self._read]), self._decode(self._ids)
        is_whole = len(whole) > len(before) and not whole.endswith(_UNFINISHED)
        if not is_whole and not is_last and len(self._ids) - self._read < _MOST_UNFINISHED:
            return ""
        self._ids, self._read = self._ids[self._read :], len(self._ids) - self._read
        return whole[len(before) :]

    def _certain(self, text: str, is_last: bool) -> str:
        if self.is_ended:
            return ""
        held = self._held + text
        ends = [place for place in (held.find(stop) for stop in self._stops) if place >= 0]
        if ends:
            self.is_ended, self._held = True, ""
            return held[: min(ends)]
        safe = len(held) if is_last else len(held) - count_held_back(held, self._stops)
        self._held = held[safe:]
        return held[:safe]


def count_held_back(text: str, stops: Sequence[str]) -> int:
    """Return how many characters at the end may be the beginning of a stop string.

    Example:
        >>> count_held_back("abc", ("cd",))
        1
    """
    held = 0
    for stop in stops:
        longest = min(len(stop) - 1, len(text))
        held = max([held, *(size for size in range(1, longest + 1) if text.endswith(stop[:size]))])
    return held
