"""Placement: which backend gets which ops, and the report of it.

For every installed backend there is a function `partition_for_<name>`:

    from kernelyard.placement import partition_for_dnnl
"""

from __future__ import annotations

from functools import partial
from typing import Any

_PREFIX = "partition_for_"


def __getattr__(name: str) -> Any:
    if not name.startswith(_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kernelyard.placement.partition import partition_for

    return partial(partition_for, name.removeprefix(_PREFIX).replace("_", "-"))  # names of backends have hyphens
