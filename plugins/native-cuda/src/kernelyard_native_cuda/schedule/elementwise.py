"""Elementwise: kernels that read every tensor at the point they write, or at one place; 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard import dims
from kernelyard.plugins.codegen_api import Axis, Const, Declined, Expr, Load, Stage, element_at_zeros, step_along
from kernelyard_native_cuda.codegen.expressions import from_stored, to_stored
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import stored_type
from kernelyard_native_cuda.schedule.access import lanes_in
from kernelyard_native_cuda.schedule.lanes import MOST_LANES, PIECE, finish_lanes, lanes_of
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import finish_point
from kernelyard_native_cuda.schedule.rule import Schedule

THREADS = 256


def elementwise(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that reads where it writes."""
    stage = stages[0]
    across, most = _lanes_across(stage), _most_lanes(stage)
    if _applies(stage) and across < most:  # the last thread of all has fewer
        return Schedule(1, _write(stage, most, name), f"{most} contiguous elements per thread")
    if across > 1:
        reason = f"{across} contiguous elements per thread, which read one row"
        return Schedule(1, _write_lanes(stage, across, name), reason)
    return Declined("loads are neither all contiguous nor uniform")


def _applies(stage: Stage) -> bool:
    shape = tuple(axis.extent for axis in stage.spatial)
    if stage.reduce or not any(extent != 1 for extent in shape):
        return False
    for block in stage.blocks:
        if not block.writes_spatial_axes or block.output.shape != shape or block.output in block.reads:
            return False
        places = (load for load in block.loads if not _is_one_place(load))
        if not all(load.indices == element_at_zeros(block).indices and load.buffer.shape == shape for load in places):
            return False
    return not any(_uses_axes(block.body) for block in stage.blocks)


def _lanes_across(stage: Stage) -> int:
    """Return the vector width of an elementwise kernel that reads some tensors by rows or by columns.

    1: none.
    """
    if stage.reduce or any(block.output in block.reads for block in stage.blocks):
        return 1
    last = [axis.name for axis in stage.spatial if axis.extent != 1][-1:]
    if any(step_along(load, name) not in (0, 1) for load in stage.input_loads for name in last):
        return 1
    return lanes_of(stage, stage.spatial) if last else 1


def _most_lanes(stage: Stage) -> int:
    """Return how many elements of each result are stored at once: 16 bytes of the widest."""
    results = [block.output for block in stage.blocks if block.output not in stage.inside]
    return min([MOST_LANES, *(lanes_in(buffer.dtype, PIECE) for buffer in results)])


def _write_lanes(stage: Stage, lanes: int, name: str) -> WrittenKernel:
    kernel = Kernel(stage.written, THREADS)
    point = kernel.define_point(stage.spatial, f"(blockIdx.x * {THREADS}ll + threadIdx.x) * {lanes}")
    with kernel.writer.block(f"if ({point} < {kernel.dim(stage.points)})"):
        finish_lanes(kernel, stage, {}, stage.spatial, point, lanes)
    return kernel.finish(name, dims.ceildiv(stage.points, THREADS * lanes))


def _is_one_place(load: Load) -> bool:
    return all(isinstance(index, Const) for index in load.indices)


def _uses_axes(expr: Expr) -> bool:
    """Return True for an axis outside of loads: a thread knows its elements' numbers, not their axes."""
    seen: set[int] = set()
    stack = [expr]
    while stack:
        part = stack.pop()
        if isinstance(part, Axis):
            return True
        if id(part) not in seen and not isinstance(part, Load):
            seen.add(id(part))
            stack.extend(part.children)
    return False


def _write(stage: Stage, lanes: int, name: str) -> WrittenKernel:
    kernel = Kernel(stage.written, THREADS)
    writer, total = kernel.writer, kernel.dim(stage.points)
    point = writer.define("long long", f"(blockIdx.x * {THREADS}ll + threadIdx.x) * {lanes}")
    written = [block.output for block in stage.blocks]
    loads = dict.fromkeys(stage.input_loads)
    with writer.block(f"if ({point} < {total})"):
        count = writer.define("int", f"{total} - {point} < {lanes} ? (int)({total} - {point}) : {lanes}")
        known: dict[Expr, str] = {}
        for load in (load for load in loads if not _is_one_place(load)):
            type_ = f"Pack<{stored_type(load.dtype)}, {lanes}>"
            some = writer.define(
                type_, f"some_at<{lanes}, {stored_type(load.dtype)}>({kernel.tensor(load.buffer)}, {point}, {count})"
            )
            known[load] = from_stored(f"{some}.at[lane]", load.dtype)
        results = {buffer: writer.fresh("some") for buffer in written if buffer not in stage.inside}
        for buffer, some in results.items():
            writer.line(f"Pack<{stored_type(buffer.dtype)}, {lanes}> {some};")
        writer.line("#pragma unroll")
        with writer.block(f"for (int lane = 0; lane < {lanes}; ++lane)"):
            finish_point(
                kernel,
                kernel.expressions({}, known),
                stage,
                store=lambda block, value: writer.line(
                    f"{results[block.output]}.at[lane] = {to_stored(value, block.output.dtype)};"
                ),
            )
        for buffer, some in results.items():
            writer.line(
                f"put_some<{lanes}, {stored_type(buffer.dtype)}>({kernel.tensor(buffer)}, {point}, {count}, {some});"
            )
    return kernel.finish(name, dims.ceildiv(stage.points, THREADS * lanes))
