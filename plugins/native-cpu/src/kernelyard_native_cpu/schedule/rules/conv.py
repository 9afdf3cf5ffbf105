"""Convolutions, and other contractions over several axes: a tile of the result stays in registers."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.plugins.codegen_api import Declined
from kernelyard_native_cpu.schedule.loops import Loops
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules.few_rows import with_few_rows
from kernelyard_native_cpu.schedule.tiling import dot_products, outer_product, with_tiles


def conv(loops: Loops) -> Plan | Declined:
    """Plan any contraction, with vectors along output pixels or output channels, whichever costs less."""
    vector = loops.vector
    if loops.in_order or vector is None or not loops.stage.is_contraction:
        return Declined("the stage is not a contraction with operand reuse, or has no vectorizable axis")
    plan = replace(loops.scalar(), vector=vector, lanes=loops.lanes(vector), masked=loops.is_masked(vector))
    if vector in loops.reduce:
        return with_few_rows(loops, replace(plan, tiles=dot_products(loops, vector)))
    tiles, width = outer_product(loops, vector)
    return with_few_rows(loops, with_tiles(loops, plan, tiles, width))
