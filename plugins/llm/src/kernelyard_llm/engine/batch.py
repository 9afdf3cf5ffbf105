"""Run steps of many sequences: the program's functions over a cache in pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard import Executable, VirtualMachine
from kernelyard_llm.configuration import EXTEND, HEAD, PAGE, ModelConfig
from kernelyard_llm.engine.pages import NO_PAGE, PagePool, PageTable

# Each has a plan of its own, whose memory stays; what is missing is filled up with rows that nobody reads.
_SMALL = (1, 2, 4)
_STEP = 4
_CHUNKS = (4, 8, 16, 32)
CHUNK = _CHUNKS[-1]
_PLANS = 256


class BatchRunner:
    """Computes tokens of sequences whose keys and values lie in a pool."""

    def __init__(self, executable: Executable, config: ModelConfig, pool: PagePool) -> None:
        machine = VirtualMachine(executable, contexts=1)
        executable.max_plans = max(executable.max_plans, _PLANS)
        self._extend, self._head = machine[EXTEND], machine[HEAD]
        self._pool, self._width = pool, config.width

    def prefill(self, tokens: Sequence[int], table: PageTable) -> np.ndarray:
        """Compute at most CHUNK tokens of a sequence; returns the hidden state (1, width) of the last one."""
        count = len(tokens)
        padded = next(size for size in _CHUNKS if size >= count)
        hidden = self._run(np.array([[*tokens, *[0] * (padded - count)]], np.int64), [table], count)
        return hidden[0, count - 1 : count]

    def decode(self, tokens: Sequence[int], tables: Sequence[PageTable]) -> np.ndarray:
        """Compute a token of each sequence; returns the logits (sequences, vocabulary)."""
        padded = _rounded(len(tokens))
        column = np.array([*tokens, *[0] * (padded - len(tokens))], np.int64)[:, None]
        hidden = self._run(column, tables, 1)
        return self.logits(hidden.reshape(padded, self._width))[: len(tokens)]

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Return the logits (rows, vocabulary) of hidden states (rows, width)."""
        return self._head(np.ascontiguousarray(hidden)).numpy()

    def _run(self, tokens: np.ndarray, tables: Sequence[PageTable], count: int) -> np.ndarray:
        """Return hidden states (batch, n, width), and write the first `count` new rows of each sequence."""
        lengths = np.zeros(len(tokens), np.int64)
        lengths[: len(tables)] = [table.length for table in tables]
        columns = _columns(max(1, *(-(-table.length // PAGE) for table in tables)))
        places = np.full((len(tokens), columns), NO_PAGE, np.int32)
        for row, table in enumerate(tables):
            used = -(-table.length // PAGE)
            places[row, :used] = table.pages[:used]
        hidden, *new = self._extend(tokens, lengths, places, *self._pool.cache.arguments)
        pages, rows = (np.concatenate(part) for part in zip(*(table.places(count) for table in tables), strict=True))
        written = (part.numpy()[:, : len(tables), :count] for part in new)
        self._pool.cache.write(pages, rows, [part.reshape(len(part), -1, *part.shape[3:]) for part in written])
        return hidden.numpy()


def _rounded(count: int) -> int:
    """Return the next size that has a plan."""
    return next((size for size in _SMALL if size >= count), -(-count // _STEP) * _STEP)


def _columns(count: int) -> int:
    """Return the next number of pages that has a plan: a power of two, or one and a half, so that they are few."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power
