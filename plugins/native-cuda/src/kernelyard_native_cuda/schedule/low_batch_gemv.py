"""LowBatchGEMV: a few vectors times a matrix; as GEMV, and what is read of the matrix serves all of them.

Where the number of vectors is not known, there are two kernels: one for a few, and tiles for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelyard import dims
from kernelyard.plugins.codegen_api import Declined, Stage
from kernelyard_native_cuda.codegen.kernel import launch_where
from kernelyard_native_cuda.schedule.contraction import Contraction, contraction_of
from kernelyard_native_cuda.schedule.gemv import (
    MOST_VECTORS,
    Product,
    product_in,
    product_of,
    write_product,
)
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.matmul import FEWEST, write_contraction
from kernelyard_native_cuda.schedule.rule import Schedule
from kernelyard_native_cuda.schedule.wgmma import write_warp_group_contraction


def low_batch_gemv(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that multiplies a few vectors by a matrix."""
    it = contraction_of(stages[0])
    if it is None or not it.a.own or not it.b.own:
        return Declined("the stage is not a product of several vectors and a matrix")
    product = _of_unknown(it, machine) or product_in(it, machine)
    if isinstance(product, Declined):
        return product
    made = Schedule(1, write_product(product, name, machine), f"{product.count} vectors, {product.description}")
    return made if product.few.extent == product.count else _or_tiles(made, product, name, machine)


def _of_unknown(it: Contraction, machine: Machine) -> Product | Declined | None:
    """Return a product of an unknown number of vectors, which may be few, and a matrix of known size."""
    for few, many in ((it.a, it.b), (it.b, it.a)):
        if isinstance(few.extent, int) or not isinstance(many.extent, int) or many.extent <= MOST_VECTORS:
            continue
        if dims.evaluate(few.extent, dict.fromkeys(dims.symbols_of(few.extent), 1)) <= MOST_VECTORS:
            product = product_of(Product(it, few, many, MOST_VECTORS), machine)
            return replace(product, count=FEWEST) if isinstance(product, Product) and product.in_tiles else product
    return None


def _or_tiles(made: Schedule, product: Product, name: str, machine: Machine) -> Schedule:
    are_many = dims.minimum(1, dims.floordiv(product.few.extent, product.count + 1))
    rule, tiles = "wgmma", write_warp_group_contraction(product.it, f"{name}_tiles", machine)
    if isinstance(tiles, Declined):
        rule, tiles = "matmul", write_contraction(product.it, f"{name}_tiles", machine)
    more = replace(tiles.kernel, text=f"// {rule}: {tiles.reason}\n{tiles.kernel.text}")
    reason = f"up to {made.reason}; for more {tiles.reason}"
    return Schedule(1, launch_where(made.kernel, 1 - are_many), reason, (launch_where(more, are_many),))
