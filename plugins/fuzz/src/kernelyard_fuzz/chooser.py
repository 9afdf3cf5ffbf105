"""Choosers: where choices come from. A seed, for speed; or hypothesis, which makes a failing graph small."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Chooser(ABC):
    """Makes every choice of a generator; the first alternative is the simplest."""

    @abstractmethod
    def below(self, count: int) -> int:
        """Return a number from 0 to count - 1."""

    def pick(self, items: Sequence[T]) -> T:
        """Return one of some things."""
        return items[self.below(len(items))]

    def chance(self, percent: int) -> bool:
        """Return True in so many of 100 cases."""
        return self.below(100) >= 100 - percent

    def between(self, low: int, high: int) -> int:
        """Return a number from low to high, both included."""
        return low + self.below(high - low + 1)


class SeededChooser(Chooser):
    """Choices that follow from a seed.

    Example:
        >>> SeededChooser(7).below(10) == SeededChooser(7).below(10)
        True
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return int(self._random.random() * count)


class DrawingChooser(Chooser):
    """Choices that hypothesis makes; draw: what a composite strategy is given."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def below(self, count: int) -> int:
        return self._draw(st.integers(0, count - 1)) if count > 1 else 0
