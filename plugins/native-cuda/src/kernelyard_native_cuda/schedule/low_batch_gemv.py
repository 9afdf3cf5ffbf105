"""LowBatchGEMV: a few vectors times a matrix; as GEMV, and what is read of the matrix serves all of them."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard_native_cuda.schedule.contraction import contraction_of
from kernelyard_native_cuda.schedule.gemv import product_in, write_product
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.rule import Declined, Schedule
from kernelyard_native_cuda.schedule.stage import Stage


def low_batch_gemv(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """A kernel for a first stage that multiplies a few vectors by a matrix."""
    it = contraction_of(stages[0])
    if it is None or not it.a.own or not it.b.own:
        return Declined("the stage is no product of several vectors and a matrix")
    product = product_in(it)
    if isinstance(product, Declined):
        return product
    return Schedule(1, write_product(product, name, machine), f"{product.count} vectors, {product.description}")
