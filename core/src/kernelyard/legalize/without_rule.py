"""The operators that have no legalization rule, and why each needs none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

WITHOUT_RULE: Mapping[str, str] = MappingProxyType(
    {
        "alloc_tensor": "memory is a register of the program",
        "call_dps_packed": "its callee is compiled already",
        "call_tir": "its callee is a loop-level function already",
        "det": "pivoting makes the loop order data-dependent",
        "if": "it is control flow: a branch of the program",
        "invoke_closure": "its callee is a function of the program",
        "make_closure": "its result is a function, not a tensor",
        "nonzero": "the size of its result is data-dependent",
        "image.box_candidates": "the size of its result is data-dependent",
        "image.non_max_suppression": "the size of its result is data-dependent",
        "image.roi_align_adaptive": "the number of samples of a region depends on its size",
        "image.roi_max_pool": "the extent of a window depends on its region",
        "random.key": "it is drawn from the entropy of the system",
        "random.normal": "it becomes arithmetic on random bits before",
        "random.uniform": "it becomes arithmetic on random bits before",
        "reinterpret": "the loop-level IR has no bit cast",
        "round_to_format": "no processor supports the formats",
        "tensor_to_shape": "its result is a shape without memory",
        "unique": "the size of its result is data-dependent",
        "while": "it is control flow: a loop of the program",
    }
)
