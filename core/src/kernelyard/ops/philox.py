"""Philox4x32-10, a counter-based random number generator: any number of a sequence is computed by itself.

Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

WORDS = 4  # of 32 bits, for each counter
ROUNDS = 10
MASK = (1 << 32) - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(
    counter: Sequence[T], key: Sequence[T], xor: Callable[[T, T], T], shift_right: Callable[[T, int], T]
) -> tuple[T, T, T, T]:
    """Return four random words for a counter of four words and a key of two, each in an unsigned integer of 64 bits.

    The integers may be arrays or expressions: what `*`, `&` and `+` take, and the functions.

    Example:
        >>> [hex(word) for word in philox((0,) * 4, (0, 0), lambda a, b: a ^ b, lambda a, n: a >> n)]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = counter
    keys: list[Any] = list(key)
    for _ in range(ROUNDS):
        first: Any = a * _MULTIPLIERS[0]  # pyright: ignore[reportOperatorIssue]
        second: Any = c * _MULTIPLIERS[1]  # pyright: ignore[reportOperatorIssue]
        a, b = xor(xor(shift_right(second, 32), b), keys[0]), second & MASK
        c, d = xor(xor(shift_right(first, 32), d), keys[1]), first & MASK
        keys = [(word + step) & MASK for word, step in zip(keys, _WEYL, strict=True)]
    return a, b, c, d
