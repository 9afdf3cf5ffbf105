"""MergeCompilerRegions: neighbouring regions of one target become one, as large as they can be."""

from __future__ import annotations

from kernelyard.ir import IRModule
from kernelyard.ir.visitor import callees, reachable_functions
from kernelyard.transform.interprocedural.inline_functions import inline_into
from kernelyard.transform.partition.region_merging import RegionMerging
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext
from kernelyard_tvm_compat.annotate_target import region_backend


class MergeCompilerRegions(Pass):
    """Merge regions that feed each other, unless something outside lies on a path from the one to the other.

    The restriction is checked on the graph of regions, so that no two regions ever need each other, whatever path leads
    from one to the other. Items of a tuple go with the region that makes it. A branch or a loop lies outside: a path
    through it, by its condition or by an operand, restricts a merge like any other. Works on every entry function, and
    so inside branches.
    """

    name = "MergeCompilerRegions"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        entries = module.entry_functions()
        marked = {
            name for f in entries.values() for name in callees(f) if name in module and "Codegen" in module[name].attrs
        }
        if not marked:
            return module
        merging = RegionMerging(
            module,
            lambda value: region_backend(value, module),
            lambda function: inline_into(function, module, marked),
        )
        for name, function in entries.items():
            merging.rewrite(name, function)
        merged = merging.finish()
        others = tuple(name for name in merged.functions if name not in marked)
        return merged.without_functions(marked - reachable_functions(merged, others))
