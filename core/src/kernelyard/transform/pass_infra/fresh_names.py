"""Names that are not taken yet, found in time that does not grow with their number."""

from __future__ import annotations

import re
from collections.abc import Iterable


class FreshNames:
    """Gives names for functions that a pass adds to a module; each is given once.

    Example:
        >>> names = FreshNames(["main", "acme_0"])
        >>> names.numbered("acme"), names.numbered("acme"), names.unique("main")
        ('acme_1', 'acme_2', 'main_1')
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def numbered(self, stem: str) -> str:
        """Return `<stem>_<number>`, numbers from 0; an identifier, so that any codegen can use it."""
        return self._search(re.sub(r"\W", "_", stem), 0)

    def unique(self, wanted: str) -> str:
        """Return `wanted`, or `wanted` with a number appended."""
        if wanted in self._taken:
            return self._search(wanted, 1)
        self._taken.add(wanted)
        return wanted

    def _search(self, stem: str, first: int) -> str:
        number = self._next.get(stem, first)
        while f"{stem}_{number}" in self._taken:
            number += 1
        self._next[stem] = number + 1
        name = f"{stem}_{number}"
        self._taken.add(name)
        return name
