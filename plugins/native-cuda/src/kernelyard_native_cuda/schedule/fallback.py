"""Fallback: one thread for each point of the spatial axes; reduce axes are loops. It takes everything."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard import dims
from kernelyard.plugins.codegen_api import Stage
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import emit_reduction, emit_scoped, finish_point, loops
from kernelyard_native_cuda.schedule.rule import Schedule

THREADS = 256


def fallback(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule:
    """Return a kernel for the first stage."""
    return Schedule(1, _write(stages[0], name), "one thread per point")


def _write(stage: Stage, name: str) -> WrittenKernel:
    kernel = Kernel(stage.written, THREADS)
    point = kernel.define_point(stage.spatial, f"blockIdx.x * {THREADS}ll + threadIdx.x")
    with kernel.writer.block(f"if ({point} < {kernel.dim(stage.points)})"):
        here = kernel.expressions(kernel.axes_at(point, stage.spatial))
        if stage.is_ordered:
            with loops(kernel, stage.reduce):
                finish_point(kernel, emit_scoped(kernel, here, stage.reduce), stage)
        else:
            first = emit_reduction(kernel, here, stage.first) if stage.first.reducer else None
            finish_point(kernel, here, stage, first)
    return kernel.finish(name, dims.ceildiv(stage.points, THREADS))
