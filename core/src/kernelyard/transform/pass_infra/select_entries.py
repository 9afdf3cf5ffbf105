"""Select the entry functions of a pass that takes an optional list of names."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.errors import IRError
from kernelyard.ir import Function, IRModule
from kernelyard.ir.module import PRIVATE
from kernelyard.ir.visitor import reachable_functions


def select_entries(module: IRModule, names: Sequence[str] | None) -> dict[str, Function]:
    """Return the entry functions of these names, with the branches and bodies of loops that they call; None: all of
    them.

    Raises: IRError for a name that no entry function has.
    """
    entries = module.entry_functions()
    if names is None:
        return entries
    for name in names:
        if name not in entries:
            raise IRError(f"@{name} is no entry function of the module", expected=", ".join(f"@{n}" for n in entries))
    reached = reachable_functions(module, tuple(names))
    return {n: f for n, f in entries.items() if n in names or (n in reached and f.attrs.get(PRIVATE))}
