"""MergeCompositeFunctions: neighbouring composites of one backend become one region, as large as it can be."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.ir import Call, Expr, GlobalVar, IRModule
from kernelyard.patterns.composite import COMPOSITE
from kernelyard.patterns.registry import backend_of
from kernelyard.transform.partition.region_merging import RegionFilter, RegionMerging
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


class MergeCompositeFunctions(Pass):
    """Puts calls of composites into regions (attributes "Codegen" = backend and "global_symbol").

    Composites of one backend that feed each other share a region wherever that makes no cycle with what lies outside.
    A region that is needed in several places returns a tuple. Works on every entry function.

    backends: those to treat, default all. Calls that are in regions already stay as they are. is_wanted: whether a
    region may be made of some calls; it gets the region's function, and the bindings.
    """

    name = "MergeCompositeFunctions"
    is_required = True

    def __init__(self, backends: Sequence[str] | None = None, is_wanted: RegionFilter | None = None) -> None:
        self.backends = backends
        self.is_wanted = is_wanted

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        merging = RegionMerging(module, lambda value: self._backend(value, module), is_wanted=self.is_wanted)
        for name, function in module.entry_functions().items():
            merging.rewrite(name, function)
        return merging.finish()

    def _backend(self, value: Expr, module: IRModule) -> str | None:
        """Return the backend of a call of a composite; None for anything else."""
        backend = composite_backend(value, module)
        return backend if self.backends is None or backend in self.backends else None


def composite_backend(value: Expr, module: IRModule) -> str | None:
    """Return the backend of the composite that a value calls; None for anything else."""
    if not isinstance(value, Call) or not isinstance(value.op, GlobalVar) or value.op.name not in module:
        return None
    composite = module[value.op.name].attrs.get(COMPOSITE)
    return backend_of(composite) if composite else None
