"""The operators that have no legalization rule, and why each needs none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

WITHOUT_RULE: Mapping[str, str] = MappingProxyType(
    {
        "alloc_tensor": "memory is a register of the program",
        "call_dps_packed": "what it calls is compiled already",
        "call_tir": "what it calls is loop-level code already",
        "if": "the program's steps branch",
        "nonzero": "the size of its result is known only once it is there",
        "while": "the program's steps loop",
    }
)
