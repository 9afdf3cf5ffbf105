"""Collapse axes that every access of a stage walks as if they were one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Affine


@dataclass(frozen=True)
class Access:
    """One load or store: its offset, the bytes of an element, and whether it is done at every point of a reduction
    (or once, before or after it)."""

    offset: Affine
    itemsize: int
    is_store: bool = False
    is_inner: bool = True


def collapse(
    axes: Sequence[str], extents: Mapping[str, Dim], accesses: Sequence[Access], fixed: frozenset[str]
) -> tuple[list[str], dict[str, Dim]]:
    """Merge neighbouring axes that every access walks as if they were one.

    Returns the axes that stay and all extents: a merged axis has the product of the extents, those that went have 1.
    fixed: axes that may not be merged.
    """
    kept = list(axes)
    sizes = dict(extents)
    for inner_index in range(len(kept) - 1, 0, -1):
        outer, inner = kept[inner_index - 1], kept[inner_index]
        if {outer, inner} & fixed or not _walk_as_one(outer, inner, sizes[inner], accesses):
            continue
        # The outer one takes part in nothing any more; the next pair is (its predecessor, the merged axis).
        sizes[inner], sizes[outer] = sizes[outer] * sizes[inner], 1
        kept[inner_index - 1] = inner
        del kept[inner_index]
    return kept, sizes


def _walk_as_one(outer: str, inner: str, size: Dim, accesses: Sequence[Access]) -> bool:
    for access in accesses:
        far, near = access.offset.coefficient(outer), access.offset.coefficient(inner)
        if far is None or near is None or far != near * size:
            return False
    return True
