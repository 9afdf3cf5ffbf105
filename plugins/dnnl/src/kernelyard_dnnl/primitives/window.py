"""Attributes of windows: of convolutions and of pools."""

from __future__ import annotations

from collections.abc import Sequence


def padding_attributes(padding: Sequence[int]) -> dict[str, list[int]]:
    """Return the paddings of operators (the begins of all axes, then the ends) as nodes have them."""
    rank = len(padding) // 2
    return {"padding_begin": list(padding[:rank]), "padding_end": list(padding[rank:])}
