"""User-facing names of torch's symbols: those of `torch.export.Dim`, else the first input and axis that has one."""

from __future__ import annotations

import sympy
import torch
from torch.fx import Graph

# The name that stands for "one that nobody named" in `torch.export`.
_HIDDEN = "__DimHint"


def symbol_names(graph: Graph) -> dict[str, str]:
    """Return names by torch's own: s77 -> batch."""
    names = _read_names(graph)
    for node in graph.nodes:
        if node.op != "placeholder" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        for axis, size in enumerate(node.meta["val"].shape):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                names.setdefault(str(size.node.expr), f"{node.name}_{axis}")
    return names


def _read_names(graph: Graph) -> dict[str, str]:
    sizes = (
        size
        for node in graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
        for size in node.meta["val"].shape
    )
    environment = next((size.node.shape_env for size in sizes if isinstance(size, torch.SymInt)), None)
    if environment is None:
        return {}
    names: dict[str, str] = {}
    for source, name in environment.source_name_to_debug_name.items():
        expr = environment.source_to_var.get(source)
        expr = environment.replace(expr) if expr is not None else None
        if isinstance(expr, sympy.Symbol) and name.isidentifier() and not name.startswith(("_", _HIDDEN)):
            names.setdefault(str(expr), name)
    return names
