"""Conv: contractions one of whose operands is read in windows. They are matmuls whose operand is never stored
(implicit GEMM): a tile's elements are found by their place in the window, and padding is a condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelyard.plugins.codegen_api import Declined, Stage, axes_of, is_index
from kernelyard_native_cuda.schedule.contraction import Contraction, contraction_of, loads_of, names_of
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.matmul import write_contraction
from kernelyard_native_cuda.schedule.rule import Schedule


def conv(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that multiplies windows by filters."""
    it = contraction_of(stages[0])
    if it is None or not _has_windows(it):
        return Declined("no operand is read in windows")
    if not it.a.own or not it.b.own:
        return Declined("each filter has windows of its own (depthwise): there is no data reuse")
    made = write_contraction(it, name, machine)
    return replace(made, reason=f"implicit GEMM on {made.reason}")


def _has_windows(it: Contraction) -> bool:
    """Return True where an index depends on an axis of the result and on one of the sum."""
    summed = names_of(it.reduce)
    return any(
        is_index(at) and axes_of(at) & summed and axes_of(at) & names_of(operand.own)
        for operand in (it.a, it.b)
        for load in loads_of(operand.expr)
        for at in load.indices
    )
