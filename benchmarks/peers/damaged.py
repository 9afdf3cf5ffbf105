"""Damage to inputs of parsers: in bits, bytes, numbers, words and brackets, and pieces of other inputs."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.parsers import Parser

EXTREMES = (0, 1, -1, 127, 255, 1 << 15, (1 << 31) - 1, -(1 << 31), (1 << 32) - 1, (1 << 62), (1 << 63) - 1, -(1 << 63))
WORD = re.compile(rb"[A-Za-z_][\w.]*|-?\d+|\"[^\"]*\"|[^\s\w]")
NUMBERS = (
    b"0",
    b"-1",
    b"1e999",
    b"99999999999999999999",
    b"9223372036854775807",
    b"1000000000",
    b"0.5",
    b"true",
    b"null",
    b'""',
    b"[]",
)


def damaged(rng: random.Random, parser: Parser) -> bytes:
    """Return a seed of a parser, damaged once to four times; containers keep their digests right."""
    at = rng.randrange(len(parser.seeds))
    if parser.repack is not None and rng.random() < 0.7:
        return parser.repack(parser.seeds[at], lambda part: _several(rng, part, parser))
    return _several(rng, parser.seeds[at], parser)


def _several(rng: random.Random, data: bytes, parser: Parser) -> bytes:
    is_text = parser.is_text or data[:1] in (b"{", b"[")  # a part of a container may be one
    kinds = (_words, _words, _words, _nested, _bits) if is_text else (_bits, _numbers, _cut, _bits)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if rng.random() < 0.2:
            data = _spliced(rng, data, rng.choice(parser.seeds))
        else:
            data = rng.choice(kinds)(rng, data)
    return data


def _bits(rng: random.Random, data: bytes) -> bytes:
    array = bytearray(data)
    at = rng.randrange(len(array) or 1)
    if array:
        array[at] = rng.choice((array[at] ^ 1 << rng.randrange(8), 0, 0xFF, rng.randrange(256)))
    return bytes(array)


def _numbers(rng: random.Random, data: bytes) -> bytes:
    """An integer of 1, 2, 4 or 8 bytes is another one, mostly where integers lie: early, often at multiples of 4."""
    size = rng.choice((1, 2, 4, 8))
    end = max(len(data) - size, 1)
    at = rng.randrange(min(end, 256) if rng.random() < 0.5 else end)
    at = at // 4 * 4 if rng.random() < 0.6 else at
    value = rng.choice(EXTREMES) & ((1 << 8 * size) - 1)
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def _cut(rng: random.Random, data: bytes) -> bytes:
    at, length = rng.randrange(len(data) or 1), rng.choice((1, 2, 4, 8, 64))
    kind = rng.randrange(4)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at + length :]
    inserted = rng.randbytes(length) if kind == 2 else data[at : at + length] * 2
    return data[:at] + inserted + data[at:]


def _words(rng: random.Random, data: bytes) -> bytes:
    """A word is gone, twice there, another one, or a number that is out of the ordinary."""
    words = list(WORD.finditer(data))
    if not words:
        return data
    word, other = rng.choice(words), rng.choice(words)
    put = rng.choice((b"", word[0] + b" " + word[0], other[0], rng.choice(NUMBERS)))
    return data[: word.start()] + put + data[word.end() :]


def _nested(rng: random.Random, data: bytes) -> bytes:
    at, depth = rng.randrange(len(data) or 1), rng.choice((1, 2, 50, 3000))
    opening, closing = rng.choice(((b"[", b"]"), (b"{", b"}"), (b"(", b")"), (b'{"a":', b"}")))
    return data[:at] + opening * depth + closing * rng.choice((0, depth)) + data[at:]


def _spliced(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start, end = sorted(rng.randrange(len(other) or 1) for _ in range(2))
    at = rng.randrange(len(data) or 1)
    return data[:at] + other[start : min(end, start + 200)] + data[at + rng.choice((0, end - start)) :]
