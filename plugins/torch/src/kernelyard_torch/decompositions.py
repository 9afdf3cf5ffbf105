"""Which operators are taken apart before they are read: those that have no converter, where torch can."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.export.exported_program import default_decompositions

from kernelyard_torch import registry

Table = dict[Any, Callable[..., Any]]


@cache
def _own() -> Table:
    """Beyond torch's core set: what torch's core has as it is, and we do not."""
    return {op: how for op, how in decomposition_table.items() if _is_core(op) and registry.find(op) is None}


def _is_core(op: Any) -> bool:
    return isinstance(op, torch._ops.OpOverload) and torch.Tag.core in op.tags


def decompositions() -> Table:
    """The table for `ExportedProgram.run_decompositions`: operators with a converter stay whole."""
    table: Table = {**_own(), **default_decompositions()}
    for op in list(table):
        if registry.find(op) is not None:
            table.pop(op)
    return table
