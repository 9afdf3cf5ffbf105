"""The cases of `kernels.py`: modules of one operator or a few, by the shape classes that networks have."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_cases import attention, convolutions, maps, movements, products, reductions, rows
from kernel_cases.case import Case

__all__ = ["Case", "cases"]


def cases() -> Iterator[Case]:
    """All of them."""
    for family in (products, attention, convolutions, maps, movements, rows, reductions):
        yield from family.cases()
