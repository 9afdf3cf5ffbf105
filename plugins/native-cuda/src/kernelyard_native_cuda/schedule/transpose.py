"""Transpose: an elementwise kernel that reads one tensor across.

Square tiles go through shared memory, so that reads and writes are both coalesced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Axis, Const, Declined, IterVar, Load, Select, Stage
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import computed_type
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import finish_point
from kernelyard_native_cuda.schedule.rule import Schedule

SIDE = 32
ROWS = 8  # that the threads take at a time
THREADS = SIDE * ROWS
LEAST_EXTENT = 8


@dataclass(frozen=True)
class Crossing:
    """across: the axis along which the load's memory runs; along: the one along which the output's does."""

    stage: Stage
    load: Load
    across: IterVar
    along: IterVar

    @property
    def rest(self) -> tuple[IterVar, ...]:
        return tuple(axis for axis in self.stage.spatial if axis not in (self.across, self.along))

    def tiles(self, axis: IterVar) -> Dim:
        return dims.ceildiv(axis.extent, SIDE)


def transpose(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that reads one tensor across."""
    found = _crossing(stages[0])
    if found is None:
        return Declined("no operand is read transposed")
    return Schedule(1, _write(found, name), f"tiles of {SIDE} by {SIDE} elements through shared memory")


def _crossing(stage: Stage) -> Crossing | None:
    if stage.reduce or not stage.first.writes_spatial_axes or stage.first.output in stage.first.reads:
        return None
    wide = {axis.name: axis for axis in stage.spatial if _is_wide(axis)}
    along = next((axis for axis in reversed(stage.spatial) if axis.extent != 1), None)
    if along is None or not _is_wide(along):
        return None
    for load in stage.input_loads:
        names = _find_permuted_axes(load)
        if along.name in names[:-1] and names[-1] in wide and _is_read_always(load, stage):
            return Crossing(stage, load, wide[names[-1]], along)
    return None


def _is_wide(axis: IterVar) -> bool:
    return not isinstance(axis.extent, int) or axis.extent >= LEAST_EXTENT


def _find_permuted_axes(load: Load) -> list[str]:
    """Return the axes that index a load, the last along its memory; none where it reads no permutation of them."""
    names = [index.name for index in load.indices if isinstance(index, Axis)]
    is_permutation = len(names) == len(set(names)) and all(isinstance(i, (Axis, Const)) for i in load.indices)
    return names if names and is_permutation and load.indices[-1] == Axis(names[-1]) else []


def _is_read_always(load: Load, stage: Stage) -> bool:
    """Return True when no condition guards the load: then each point may read it."""
    body = stage.first.body
    return body == load or (load in body.children and not isinstance(body, Select))


def _write(it: Crossing, name: str) -> WrittenKernel:
    kernel = Kernel(it.stage.written, THREADS)
    writer = kernel.writer
    across, along = kernel.dim(it.tiles(it.across)), kernel.dim(it.tiles(it.along))
    writer.line(f"const long long across_start = blockIdx.x % {across} * {SIDE};")
    writer.line(f"const long long along_start = blockIdx.x / {across} % {along} * {SIDE};")
    rest = kernel.axes_at(writer.define("long long", f"blockIdx.x / ({across} * {along})"), it.rest)
    writer.line(f"const int lane = threadIdx.x % {SIDE};")
    writer.line(f"SHARED({computed_type(it.load.dtype)}, tile, {SIDE * (SIDE + 1)});")
    for is_reading in (True, False):
        with writer.block(f"for (int row = threadIdx.x / {SIDE}; row < {SIDE}; row += {ROWS})"):
            fast, slow = ("across", "along") if is_reading else ("along", "across")
            writer.line(f"const long long {fast} = {fast}_start + lane, {slow} = {slow}_start + row;")
            inside = f"across < {kernel.dim(it.across.extent)} && along < {kernel.dim(it.along.extent)}"
            with writer.block(f"if ({inside})"):
                here = kernel.expressions({**rest, it.across.name: "across", it.along.name: "along"})
                if is_reading:
                    writer.line(f"tile[row * {SIDE + 1} + lane] = {here.value(it.load)};")
                else:
                    here.known[it.load] = writer.define(computed_type(it.load.dtype), f"tile[lane * {SIDE + 1} + row]")
                    finish_point(kernel, here, it.stage)
        if is_reading:
            writer.line("__syncthreads();")
    return kernel.finish(name, it.tiles(it.across) * it.tiles(it.along) * dims.product(a.extent for a in it.rest))
