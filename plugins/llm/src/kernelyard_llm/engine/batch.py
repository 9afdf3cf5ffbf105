"""Run steps of many sequences: the program's functions over a cache in pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernelyard import Executable, VirtualMachine
from kernelyard_llm.configuration import DECODE, DECODE_BATCH, EXTEND, HEAD, PAGE, ModelConfig
from kernelyard_llm.engine.pages import NO_PAGE, PagePool, PageTable
from kernelyard_llm.errors import LanguageModelError

# Batch sizes and chunk lengths are rounded up to these, as each has a plan of its own, whose memory stays.
_SMALL = (1, 2, 4)
_STEP = 4
_LENGTHS = (1, 4, 8, 16, 24, 32)
CHUNK = _LENGTHS[-1]
_PLANS = 256


class BatchRunner:
    """Computes tokens of sequences whose keys and values lie in a pool.

    Raises: LanguageModelError for an artifact that lacks a function, as those saved by an earlier version do.
    """

    def __init__(self, executable: Executable, config: ModelConfig, pool: PagePool) -> None:
        lacking = [name for name in (EXTEND, HEAD, DECODE, DECODE_BATCH) if name not in executable.entries]
        if lacking:
            raise LanguageModelError(
                "the artifact lacks a function that batches need",
                found=", ".join(executable.entries),
                expected=", ".join(lacking),
                hint="it was saved by an earlier version: compile the model's file again",
            )
        machine = VirtualMachine(executable, contexts=1)
        executable.max_plans = max(executable.max_plans, _PLANS)
        self._extend, self._head = machine[EXTEND], machine[HEAD]
        self._decode, self._decode_batch = machine[DECODE], machine[DECODE_BATCH]
        self._pool = pool

    def extend(self, chunks: Sequence[Sequence[int]], tables: Sequence[PageTable]) -> np.ndarray:
        """Compute a chunk of each sequence and write it to the cache; its table does not advance.

        chunks: at most CHUNK tokens each, padded to the longest. Returns the hidden states (sequences, width) of the
        last token of each.
        """
        counts = np.array([len(chunk) for chunk in chunks])
        hidden = self._run(self._extend, chunks, tables, round_up_length(int(counts.max())))
        return hidden[np.arange(len(chunks)), counts - 1]

    def decode(self, tokens: Sequence[int], tables: Sequence[PageTable]) -> np.ndarray:
        """Compute a token of each sequence, as `extend`; returns the logits (sequences, vocabulary)."""
        function = self._decode if len(tokens) == 1 else self._decode_batch
        return self._run(function, [[token] for token in tokens], tables, 1)[: len(tokens)]

    def _run(
        self, function: Callable[..., Any], chunks: Sequence[Sequence[int]], tables: Sequence[PageTable], length: int
    ) -> np.ndarray:
        """Return the first result of a function of chunks, padded to `length`; write the others to the cache."""
        tokens, is_token = (
            np.zeros((_round_up_batch(len(chunks)), length), np.int64),
            np.zeros((len(chunks), length), bool),
        )
        for row, chunk in enumerate(chunks):
            tokens[row, : len(chunk)], is_token[row, : len(chunk)] = chunk, True
        result, *new = function(tokens, *self._pad_tables(len(tokens), tables), *self._pool.cache.arguments)
        sequences, offsets = np.nonzero(is_token)
        places = (table.places(len(chunk)) for table, chunk in zip(tables, chunks, strict=True))
        pages, rows = (np.concatenate(part) for part in zip(*places, strict=True))
        self._pool.cache.write(pages, rows, [part.numpy()[:, sequences, offsets] for part in new])
        return result.numpy()

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Return the logits (rows, vocabulary) of hidden states (rows, width)."""
        count, width = hidden.shape
        padded = np.zeros((_round_up_batch(count), width), np.float32)
        padded[:count] = hidden
        return self._head(padded).numpy()[:count]

    def _pad_tables(self, batch: int, tables: Sequence[PageTable]) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths (batch,) and page tables (batch, columns) of sequences, padded with empty ones."""
        lengths = np.zeros(batch, np.int64)
        lengths[: len(tables)] = [table.length for table in tables]
        places = np.full((batch, _columns(max(1, int(-(-lengths.max() // PAGE))))), NO_PAGE, np.int32)
        for row, table in enumerate(tables):
            used = -(-table.length // PAGE)
            places[row, :used] = table.pages[:used]
        return lengths, places


def round_up_length(count: int) -> int:
    """Return the next chunk length that has a plan."""
    return next(length for length in _LENGTHS if length >= count)


def _round_up_batch(count: int) -> int:
    """Return the next batch size that has a plan."""
    return next((size for size in _SMALL if size >= count), -(-count // _STEP) * _STEP)


def _columns(count: int) -> int:
    """Return the next number of pages that has a plan: a power of two, or one and a half, so that they are few."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power
