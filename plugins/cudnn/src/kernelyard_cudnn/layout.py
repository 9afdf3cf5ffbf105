"""Orders: which axes lie outside and which inside in memory, as a tuple of axes, the outermost first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from kernelyard_cudnn.graph import Ints

Size = TypeVar("Size")


def channels_first(rank: int) -> Ints:
    """Return the axes in order: channels first.

    Example:
        >>> channels_first(4)
        (0, 1, 2, 3)
    """
    return tuple(range(rank))


def channels_last(rank: int) -> Ints:
    """Return the axes with axis 1 innermost: channels last.

    Example:
        >>> channels_last(4)
        (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def inverse(axes: Sequence[int]) -> Ints:
    """Return the permutation that undoes another.

    Example:
        >>> inverse((0, 3, 1, 2))
        (0, 2, 3, 1)
    """
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def sizes_in(order: Sequence[int], stored: Sequence[Size]) -> tuple[Size, ...]:
    """Return the sizes by axis of a tensor that is stored in an order.

    Example:
        >>> sizes_in((0, 2, 3, 1), (8, 5, 6, 3))
        (8, 3, 5, 6)
    """
    return tuple(stored[place] for place in inverse(order))


def strides_in(order: Sequence[int], dims: Sequence[int]) -> Ints:
    """Return the strides by axis of a dense tensor that is stored in an order.

    Example:
        >>> strides_in((0, 2, 3, 1), (8, 3, 5, 6))
        (90, 1, 18, 3)
    """
    strides, step = [0] * len(dims), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(dims[axis], 1)
    return tuple(strides)


def is_same_memory(order: Sequence[int], other: Sequence[int], dims: Sequence[Any]) -> bool:
    """Return True if two axis orders are one memory layout: axes of one element may be anywhere.

    Example:
        >>> is_same_memory((0, 1, 2, 3), (0, 2, 3, 1), (1, 8, 1, 1))
        True
    """
    one, two = ([axis for axis in each if dims[axis] != 1] for each in (order, other))
    return one == two
