"""Reduction: a block of threads for each point; its threads share out what is reduced, and combine what they found."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import ComputeBlock, Declined, Stage, extent_of, step_along
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.expressions import Expressions
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import computed_type
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import Store, finish_point
from kernelyard_native_cuda.schedule.row_loop import emit_element_loop
from kernelyard_native_cuda.schedule.rule import Schedule

EXTREMES = {"argmax": "true", "argmin": "false"}  # whether it is the greatest
LEAST_EXTENT = 32
USUAL_THREADS = 256
MOST_THREADS = 1024
MOST_EACH = 32  # elements of a thread, before there are more threads than usual


def reduction(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that reduces enough, neighbours in memory last."""
    stage = stages[0]
    block = stage.first
    is_known = block.reducer in (*operations.REDUCERS, *EXTREMES)
    if not is_known or not block.reduce_axes or not _is_worth_it(block):
        return Declined("the stage has no reduction, a short one, or one along a strided axis")
    return Schedule(1, _write(stage, name), f"{threads_for(extent_of(stage.reduce))} threads per result")


def _is_worth_it(block: ComputeBlock) -> bool:
    extent = extent_of(block.reduce_axes)
    if isinstance(extent, int) and extent < LEAST_EXTENT:
        return False
    last = [axis.name for axis in block.reduce_axes if axis.extent != 1][-1:]
    return any(step_along(load, name) == 1 for load in block.loads for name in last)


def threads_for(extent: Dim) -> int:
    """Return the number of threads that share that many elements."""
    if not isinstance(extent, int):
        return USUAL_THREADS // 2
    threads = 32
    while threads < USUAL_THREADS and threads * 4 < extent:
        threads *= 2
    while threads < MOST_THREADS and threads * MOST_EACH < extent:
        threads *= 2
    return threads


def emit_block_reduction(kernel: Kernel, outer: Expressions, block: ComputeBlock) -> str:
    """Return a block's value at one point, by all threads; every thread gets it. The name of it."""
    assert block.reducer in operations.REDUCERS
    writer, dtype = kernel.writer, block.output.dtype
    total = writer.fresh("total")
    writer.line(f"{computed_type(dtype)} {total} = {operations.neutral(block.reducer, dtype)};")

    def add(here: Expressions, place: str, store: Store | None) -> None:
        assert block.reducer is not None
        here.expect(block.body)
        writer.line(f"{total} = {operations.combine(block.reducer, total, here.value(block.body), dtype)};")

    emit_element_loop(kernel, outer, block.reduce_axes, [block], add)
    writer.line(f"{total} = block_reduced<{operations.REDUCERS[block.reducer]}, {kernel.threads}>({total});")
    if block.init is None:
        return total
    start = outer.value(block.init)
    return writer.define(computed_type(dtype), operations.combine(block.reducer, start, total, dtype))


def emit_block_extreme(kernel: Kernel, outer: Expressions, block: ComputeBlock) -> str:
    """Return `arg` at a block's first extreme point, found by all threads; every thread gets it. The name of it."""
    assert block.reducer in EXTREMES
    assert block.arg is not None
    writer, type_ = kernel.writer, computed_type(block.body.dtype)
    best, place = writer.fresh("best"), writer.fresh("place")
    writer.line(f"{type_} {best} = 0;")
    writer.line(f"long long {place} = -1;")
    greatest = EXTREMES[block.reducer]

    def compare(here: Expressions, at: str, store: Store | None) -> None:
        here.expect(block.body)
        value = writer.define(type_, here.value(block.body))
        comes_first = f"comes_first<{greatest}, {type_}>({value}, {at}, {best}, {place})"
        writer.line(f"if ({comes_first}) {best} = {value}, {place} = {at};")

    emit_element_loop(kernel, outer, block.reduce_axes, [block], compare)
    found = writer.define("long long", f"place_of_first<{greatest}, {kernel.threads}, {type_}>({best}, {place})")
    axes = kernel.axes_at(kernel.define_point(block.reduce_axes, found), block.reduce_axes)
    inner = kernel.expressions({**outer.axes, **axes}, outer.known, outer.kept)
    inner.expect(block.arg)
    return writer.define("long long", inner.value(block.arg))


def _write(stage: Stage, name: str) -> WrittenKernel:
    kernel = Kernel(stage.written, threads_for(extent_of(stage.reduce)))
    point = kernel.define_point(stage.spatial, "blockIdx.x")
    here = kernel.expressions(kernel.axes_at(point, stage.spatial))
    share = emit_block_extreme if stage.first.reducer in EXTREMES else emit_block_reduction
    total = share(kernel, here, stage.first)
    with kernel.writer.block("if (threadIdx.x == 0)"):
        finish_point(kernel, here, stage, total)
    return kernel.finish(name, stage.points)
