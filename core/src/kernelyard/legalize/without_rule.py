"""The operators that have no legalization rule, and why each needs none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

WITHOUT_RULE: Mapping[str, str] = MappingProxyType(
    {
        "alloc_tensor": "memory is a register of the program",
        "call_dps_packed": "what it calls is compiled already",
        "call_tir": "what it calls is loop-level code already",
        "det": "elimination with pivots is no loop of fixed order",
        "if": "the program's steps branch",
        "invoke_closure": "what it calls is a function of the program",
        "make_closure": "its result is a function, not a tensor",
        "nonzero": "the size of its result is known only once it is there",
        "image.non_max_suppression": "the size of its result is known only once it is there",
        "image.roi_align": "the number of samples of a region depends on its size",
        "image.roi_max_pool": "the extent of a window depends on its region",
        "random.normal": "a generator of random numbers has a state",
        "random.uniform": "a generator of random numbers has a state",
        "reinterpret": "loops compute with numbers, not with bits",
        "round_to_format": "no processor has the formats",
        "tensor_to_shape": "its result has sizes and no memory",
        "unique": "the size of its result is known only once it is there",
        "while": "the program's steps loop",
    }
)
