"""Count the words of texts without making them: what changes case, splits and counts is one step of a text prefix.

Where tokens are runs of some characters, as in `[a-zA-Z0-9_]+`, all texts are joined, what is in no token becomes
spaces, and one split finds the tokens of all. Texts beyond ASCII, whose case may change with what is around it, take
the steps one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from kernelyard_onnx.text_steps import ChangeCase, CountWords, Flatten, Tokenize

NamedStep = tuple[tuple[str, ...], str, Callable[..., np.ndarray]]
_RUN = re.compile(r"(\[(?:\\.|[^\]\\])+\]|\\w)\+")  # one or more characters of a class
_ASCII = [chr(code) for code in range(128)]
_END = "\n"  # between texts: a token of its own


@dataclass(frozen=True)
class CountWordsOfTexts:
    """Count the words of texts, each in its column.

    steps: that do the same, one after the other. spaces: by ASCII character, what it becomes. columns: by token, the
    end of a text among them.
    """

    steps: Sequence[Callable[[np.ndarray], np.ndarray]]
    change: Callable[[str], str]
    spaces: str
    columns: Mapping[str, int]
    counts: CountWords
    is_flat: bool

    def __call__(self, x: np.ndarray) -> np.ndarray:
        texts = x.ravel().tolist()
        joined = self._join(texts)
        if joined is None:
            for step in self.steps:
                x = step(x)
            return x
        tokens = self.change(joined).translate(self.spaces).split(" ")
        if len(texts) == 1:
            known = [place for place in map(self.columns.get, tokens) if place is not None]
            return self.counts.of_places(np.fromiter(known, np.int64, len(known)), self._rows(x.shape))
        width = self.counts.width
        found = np.fromiter(map(self.columns.get, tokens, repeat(-1)), np.int64, len(tokens))
        is_end = found == width
        row = np.cumsum(is_end)
        if self.is_flat:
            row //= max(x.size // max(len(x), 1), 1)
        return self.counts.of_places((row * width + found)[(found >= 0) & ~is_end], self._rows(x.shape))

    def _rows(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[:1] if self.is_flat else shape

    def _join(self, texts: list[Any]) -> str | None:
        """Return the texts as one; None for none, and where they cannot be told apart afterwards."""
        try:
            joined = f" {_END} ".join(texts)
        except TypeError:  # something else than text
            return None
        return joined if texts and joined.isascii() and joined.count(_END) == len(texts) - 1 else None


def merge_counts(steps: Sequence[NamedStep], results: Collection[str]) -> tuple[NamedStep, ...]:
    """Return the steps of a prefix with those merged that count words; what others read, or a result, is made still."""
    made = {output: number for number, (_, output, _) in enumerate(steps)}
    kept: list[NamedStep | None] = list(steps)
    for number, (_, output, step) in enumerate(steps):
        if not isinstance(step, CountWords):
            continue
        chain = _chain(steps, made, number)
        between = [steps[each] for each in chain[:-1]]
        read = [name for each, (read, _, _) in enumerate(steps) if each not in chain for name in read]
        merged = None if any(name in read or name in results for _, name, _ in between) else _merge(steps, chain)
        if merged is not None:
            for each in chain:
                kept[each] = None
            kept[number] = steps[chain[0]][0], output, merged
    return tuple(step for step in kept if step is not None)


def _chain(steps: Sequence[NamedStep], made: Mapping[str, int], last: int) -> list[int]:
    """Return the numbers of the steps from the one that changes case, or that splits, to the one that counts."""
    found = [last]
    for kind in (Flatten, Tokenize, ChangeCase):
        before = made.get(steps[found[0]][0][0])
        if before is not None and isinstance(steps[before][2], kind):
            found.insert(0, before)
    return found


def _merge(steps: Sequence[NamedStep], chain: Sequence[int]) -> CountWordsOfTexts | None:
    functions: list[Any] = [steps[number][2] for number in chain]
    by_kind = {type(each): each for each in functions}
    tokens, counts, flat = by_kind.get(Tokenize), by_kind[CountWords], by_kind.get(Flatten)
    if tokens is None:
        return None
    spaces = _spaces(tokens)
    if spaces is None or tokens.filler in counts.columns or (flat is not None and flat.axis != 1):
        return None
    columns = {word: place for word, place in counts.columns.items() if len(word) >= max(tokens.least, 1)}
    change = by_kind[ChangeCase].change if ChangeCase in by_kind else str
    return CountWordsOfTexts(functions, change, spaces, {**columns, _END: counts.width}, counts, flat is not None)


def _spaces(tokens: Tokenize) -> str | None:
    """Return what each ASCII character becomes: a space, where it is in no token; None where tokens are others."""
    run = _RUN.fullmatch(tokens.expression.pattern)
    if run is None or tokens.is_marked or tokens.expression.flags != re.compile("").flags:
        return None
    characters = re.compile(run[1])
    members = {character for character in _ASCII if characters.fullmatch(character)}
    if members.intersection(f" {_END}"):
        return None
    return "".join(each if each in members or each == _END else " " for each in _ASCII)
