"""Share pages of the KV cache between sequences by reference counts, and keep them for prefixes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from kernelyard_llm.cache import CachePages
from kernelyard_llm.configuration import PAGE, ModelConfig

# What tables are filled with behind the pages of a sequence; its rows never count.
NO_PAGE = 0


class PagePool:
    """Pages of keys and values of all layers. count: pages there are, besides one that stays empty.

    A page that is full can be found by the tokens up to its end, also when no sequence has it any more; such pages are
    given to others the longest unused first.
    """

    def __init__(self, config: ModelConfig, count: int) -> None:
        self.cache, self.count = CachePages(config, count + 1), count
        self._free = list(range(count, 0, -1))
        self._users = [0] * (count + 1)
        self._digests: dict[int, bytes] = {}  # of pages that can be found
        self._found: dict[bytes, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()  # pages that can be found and that no sequence has

    @property
    def available(self) -> int:
        """Return the number of pages that can be taken."""
        return len(self._free) + len(self._unused)

    @property
    def used(self) -> int:
        """Return the number of pages that sequences hold."""
        return self.count - self.available

    def take(self) -> int:
        """Return a page for one sequence alone; there has to be one available."""
        if self._free:
            page = self._free.pop()
            self.cache.reserve(page + 1)
        else:
            page, _ = self._unused.popitem(last=False)
            del self._found[self._digests.pop(page)]
        self._users[page] = 1
        return page

    def share(self, digest: bytes) -> int | None:
        """Return the page with that digest for one more sequence, None where there is none."""
        page = self._found.get(digest)
        if page is not None:
            self._users[page] += 1
            self._unused.pop(page, None)
        return page

    def release(self, page: int) -> None:
        """Let go of a page that a sequence had."""
        self._users[page] -= 1
        if self._users[page]:
            return
        if page in self._digests:
            self._unused[page] = None
        else:
            self._free.append(page)

    def publish(self, page: int, digest: bytes) -> None:
        """Let a full page be found by its digest, unless another has it already."""
        if digest not in self._found and page not in self._digests:
            self._found[digest], self._digests[page] = page, digest


def digests(tokens: Sequence[int]) -> list[bytes]:
    """Return for each full page of tokens a digest of all tokens up to its end."""
    found: list[bytes] = []
    before = b""
    for start in range(0, len(tokens) - PAGE + 1, PAGE):
        before = blake2b(before + np.array(tokens[start : start + PAGE], np.int64).tobytes(), digest_size=16).digest()
        found.append(before)
    return found


@dataclass
class PageTable:
    """The pages of a sequence. window: how far back any layer sees (None: without end); length: rows that are written.

    published: pages that can be found by others; dropped: pages at the beginning that were let go of.
    """

    pool: PagePool
    window: int | None = None
    pages: list[int] = field(default_factory=list)
    length: int = 0
    published: int = 0
    dropped: int = 0

    def reuse(self, tokens: Sequence[int]) -> int:
        """Share the pages that others computed for the same beginning, but for the last token; returns their rows."""
        for digest in digests(tokens[:-1]):
            page = self.pool.share(digest)
            if page is None:
                break
            self.pages.append(page)
        self.length, self.published = len(self.pages) * PAGE, len(self.pages)
        return self.length

    def reserve(self, rows: int) -> None:
        """Take pages until there is room for so many rows; they have to be available."""
        while len(self.pages) * PAGE < rows:
            self.pages.append(self.pool.take())

    def places(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return page and row of each of the next rows."""
        rows = np.arange(self.length, self.length + count)
        return np.array(self.pages, np.int64)[rows // PAGE], rows % PAGE

    def advance(self, count: int, tokens: Sequence[int]) -> None:
        """Count rows that were written, those of `tokens`; full pages can be found, those behind a window are left."""
        self.length += count
        full = self.length // PAGE
        if full > self.published:
            for number, digest in enumerate(digests(tokens[: full * PAGE])):
                if number >= max(self.published, self.dropped):
                    self.pool.publish(self.pages[number], digest)
            self.published = full
        if self.window is not None:
            self._drop((self.length - self.window) // PAGE)

    def release(self) -> None:
        """Let go of all pages."""
        for page in self.pages[self.dropped :]:
            self.pool.release(page)
        self.pages, self.dropped = [], 0

    def _drop(self, count: int) -> None:
        """Let go of the first pages, which no layer sees any more."""
        for number in range(self.dropped, count):
            self.pool.release(self.pages[number])
            self.pages[number] = NO_PAGE
        self.dropped = max(self.dropped, count)
