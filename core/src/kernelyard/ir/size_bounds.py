"""Bounds of the symbolic sizes of functions, which an attribute keeps: {symbol: (least, largest or None)}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelyard.dims import Bounds
from kernelyard.dims.interval import check_bounds
from kernelyard.errors import OptionError
from kernelyard.ir.expr import Function
from kernelyard.ir.module import IRModule
from kernelyard.ir.types import symbols_of

BOUNDS = "bounds"


def size_bounds(function: Function) -> dict[str, Bounds]:
    """Return the bounds of a function's symbols. Raises: OptionError where the attribute is malformed."""
    return check_bounds(function.attrs.get(BOUNDS))


def bounds_attribute(bounds: Mapping[str, Bounds]) -> dict[str, Any]:
    """Return the attribute that keeps bounds, for a function that is made of parts of another; empty without bounds."""
    return {BOUNDS: dict(bounds)} if bounds else {}


def with_bounds(module: IRModule, bounds: Mapping[str, Bounds]) -> IRModule:
    """Return the module whose public functions keep these bounds of the symbols that their parameters have.

    Raises: OptionError for a name that is none of these symbols.
    """
    if not bounds:
        return module
    known: set[str] = set()
    changed: dict[str, Function] = {}
    for name, function in module.public_functions().items():
        own = symbols_of([param.type for param in function.params])
        known |= own
        kept = {**size_bounds(function), **{symbol: pair for symbol, pair in bounds.items() if symbol in own}}
        changed[name] = function.with_attrs(**bounds_attribute(kept))
    unknown = sorted(bounds.keys() - known)
    if unknown:
        raise OptionError(
            f"bounds are given for {unknown[0]!r}, which is no symbolic size of the model's inputs",
            expected=", ".join(sorted(known)) or "no bounds: all sizes are fixed",
        )
    return module.with_functions(changed)
