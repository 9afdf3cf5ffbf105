"""Fallbacks: regions that a library may refuse at run time are compiled twice, once as if no backend had taken them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelyard.driver.lowering.lower import Lowered, lower
from kernelyard.ir import Function, IRModule
from kernelyard.ir.types import symbols_of
from kernelyard.ir.visitor import callees
from kernelyard.runtime.program.program import Program
from kernelyard.transform.interprocedural.inline_functions import inline_into
from kernelyard.transform.partition.region import Region
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES

FALLBACK_OF = "fallback_of"  # attribute of a function: the symbol of the region whose operators it has


def attach_fallbacks(module: IRModule, regions: Iterable[Region]) -> IRModule:
    """Return the module with an entry function for each of these regions that is compiled in it."""
    compiled = {symbol for each in module.attrs.get(EXTERNAL_MODULES, ()) for symbol in each.symbols()}
    for region in regions:
        if region.symbol in compiled:
            name = module.fresh_name(f"{region.symbol}_fallback")
            module = module.with_functions({name: _plain(region)})
    return module


def _plain(region: Region) -> Function:
    """Return the region's operators, without composites."""
    function = region.function
    plain = inline_into(function, region.module, set(callees(function)))
    names = tuple(f"x{number}" for number in range(len(function.params)))
    attrs = {FALLBACK_OF: region.symbol, "input_names": names}
    return Function(function.params, plain.bindings, plain.result, attrs)


def remove_fallbacks(module: IRModule) -> IRModule:
    """Return the module without the functions that `attach_fallbacks` added."""
    return module.without_functions({n for n, f in module.graph_functions().items() if FALLBACK_OF in f.attrs})


def lower_fallbacks(
    module: IRModule, module_of: Mapping[str, int], reference_module: int
) -> dict[str, Lowered[Program]]:
    """Lower the functions that `attach_fallbacks` added, by the region's symbol; the arguments are those of `lower`."""
    functions = [function for function in module.entry_functions().values() if FALLBACK_OF in function.attrs]
    lowered: dict[str, Lowered[Program]] = {}
    for function in functions:
        symbol: str = function.attrs[FALLBACK_OF]
        symbols = symbols_of(binding.var.type for binding in function.bindings)
        lowered[symbol] = lower(symbol, function, module_of, reference_module, symbols=symbols)
    return lowered
