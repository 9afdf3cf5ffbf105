"""Borders of regions: tensors that a backend reorders because generated kernels, or the caller, have them row-major.

Between regions of backends that name the same order nothing is reordered (`AgreeBorderLayouts`). A region that gains
less than its reorders cost is not worth its layout.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kernelyard.ir import Binding, Call, Expr, Function, GlobalVar, IRModule, TupleGetItem, Var, operands
from kernelyard.ir.types import tensors_of
from kernelyard.patterns.composite import CODEGEN
from kernelyard.plugins.support.roofline import BYTES_PER_SECOND, nbytes_of
from kernelyard.transform.partition.region import Region

if TYPE_CHECKING:
    from kernelyard.plugins.interfaces.backend import Backend

log = logging.getLogger(__name__)


def regions_of(function: Function, module: IRModule, backend: str) -> Mapping[Var, Region]:
    """Return the regions of a backend that a function calls, by the variable of the call."""
    found: dict[Var, Region] = {}
    for binding in function.bindings:
        value = binding.value
        if isinstance(value, Call) and isinstance(value.op, GlobalVar):
            callee = module[value.op.name]
            if isinstance(callee, Function) and callee.attrs.get(CODEGEN) == backend:
                found[binding.var] = Region(value.op.name, backend, callee, module)
    return found


class Borders:
    """The tensors at the borders of a backend's regions in one function."""

    def __init__(self, function: Function, regions: Mapping[Var, Region], backend: Backend) -> None:
        self._backend = backend
        self._calls = {binding.var: binding.value for binding in function.bindings if binding.var in regions}
        self._items: dict[Var, dict[int, Var]] = {var: {} for var in regions}
        self._inside: set[Expr] = set(regions)
        for binding in function.bindings:
            if isinstance(binding.value, TupleGetItem) and binding.value.tuple_value in regions:
                self._items[binding.value.tuple_value][binding.value.index] = binding.var  # pyright: ignore[reportArgumentType]
                self._inside.add(binding.var)
        self._read_outside = {value for binding in function.bindings for value in self._outside(binding, regions)}
        self._read_outside |= {function.result, *operands(function.result)}

    def _outside(self, binding: Binding, regions: Mapping[Var, Region]) -> Iterator[Expr]:
        """Yield what a binding reads, unless it is one of the regions or names one of their results."""
        if binding.var not in regions and binding.var not in self._inside:
            yield from operands(binding.value)

    def seconds(self, var: Var, region: Region) -> float:
        """Return what it takes to reorder the tensors that a region has in its own order, and others row-major.

        A reorder reads and writes what is in a cache, at twice the rate of memory.
        """
        try:
            layouts = self._backend.border_layouts(region)
        except Exception:  # a vendor's code; the pass that asks next records it
            log.warning("%s failed when it was asked for layouts", self._backend.name, exc_info=True)
            return 0.0
        if layouts is None:
            return 0.0
        call, results = self._calls[var], self.results(var)
        assert isinstance(call, Call)
        read = zip(call.args, layouts.reads, strict=False)
        moved = [arg for arg, order in read if order is not None and arg not in self._inside]
        written = zip(results, layouts.writes, strict=False)
        moved += [result for result, order in written if order is not None and result in self._read_outside]
        return sum(nbytes_of(tensor) for each in moved for tensor in tensors_of(each.type)) / BYTES_PER_SECOND

    def results(self, var: Var) -> list[Var]:
        """Return the results of a region, by the variable of its call."""
        items = self._items[var]
        return [items[index] for index in sorted(items)] if items else [var]
