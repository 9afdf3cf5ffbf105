"""GeneralReduction: chains of reductions and elementwise blocks over the same rows, such as softmax and norms.

A block of threads makes a row. What is reduced of a row stays in registers, where every thread has it. Rows of a known
length stay there too (`RegisterRow`), unless they are long, or are read at other places than they are written. Then
what stages hand on lies in shared memory where rows are short, else in the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    Axis,
    Buffer,
    ComputeBlock,
    Declined,
    IterVar,
    Stage,
    element_at_zeros,
    extent_of,
    extents_of,
)
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.expressions import Expressions, Keeper
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import computed_type
from kernelyard_native_cuda.schedule.contraction import contraction_of
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import Store, emit_reduction, finish_point
from kernelyard_native_cuda.schedule.reduction import emit_block_reduction, threads_for
from kernelyard_native_cuda.schedule.register_row import RegisterRow, RowShape, along, is_along_rows, row_shape
from kernelyard_native_cuda.schedule.rematerialize import rematerialize
from kernelyard_native_cuda.schedule.row_loop import emit_element_loop
from kernelyard_native_cuda.schedule.rule import Schedule

MOST_SHARED = 32 << 10  # bytes of rows in shared memory


@dataclass(frozen=True)
class Chain:
    """Stages over rows of the first `shared` spatial axes."""

    stages: tuple[Stage, ...]
    shared: int

    @property
    def rows(self) -> tuple[IterVar, ...]:
        return self.stages[0].spatial[: self.shared]

    def inner(self, stage: Stage) -> tuple[IterVar, ...]:
        """Return a stage's axes inside a row."""
        return stage.spatial[self.shared :]

    @property
    def work(self) -> Dim:
        """About how many elements a row has: the most that one of the stages is over."""
        sizes = [extent_of((*self.inner(stage), *stage.reduce)) for stage in self.stages]
        known = [size for size in sizes if isinstance(size, int)]
        return max(known) if len(known) == len(sizes) else next(s for s in sizes if not isinstance(s, int))


def general_reduction(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for the first stages that share rows; at least two, one of which reduces."""
    chain = _chain(stages)
    if chain is None:
        return Declined("no later stage shares rows with the first, or none has a reduction")
    reason = f"{len(chain.stages)} stages over the same rows, one thread block per row"
    return Schedule(len(chain.stages), _write(chain, stages[len(chain.stages) :], name), reason)


def _chain(stages: Sequence[Stage]) -> Chain | None:
    best: Chain | None = None
    for count in range(1, len(stages) + 1):
        taken = tuple(stages[:count])
        if not _may_join(taken[-1]):
            break
        shared = _find_shared_axes(taken)
        if shared is None or (best is not None and shared < best.shared):
            break
        best = Chain(taken, shared) if count > 1 else None
    if best is None or not any(stage.reduce for stage in best.stages):
        return None
    return best


def _may_join(stage: Stage) -> bool:
    block = stage.first
    reduces = block.reducer in operations.REDUCERS or not block.reduce_axes
    it = contraction_of(stage)
    return reduces and not (it and it.a.own) and all(b.output not in b.reads for b in stage.blocks)


def _find_shared_axes(stages: tuple[Stage, ...]) -> int | None:
    """Return the most leading axes such that no row needs what another one writes; None where there are none."""
    most = min(len(stage.spatial) for stage in stages)
    if len(stages) > 1 and all(len(stage.spatial) == most and not stage.reduce for stage in stages):
        most -= 1
    return next((shared for shared in range(most, 0, -1) if _share_rows(stages, shared)), None)


def _share_rows(stages: tuple[Stage, ...], shared: int) -> bool:
    leading = extents_of(stages[0].spatial[:shared])
    if any(extents_of(stage.spatial[:shared]) != leading for stage in stages):
        return False
    blocks = [block for stage in stages for block in stage.blocks]
    row = element_at_zeros(blocks[0]).indices[:shared]
    names = {f"s{number}" for number in range(shared)}
    if len(row) < shared or any(isinstance(e, Axis) and e.name not in names for e in row):
        return False
    written = {block.output for block in blocks}
    handed_on = [load for stage in stages for load in stage.loads if load.buffer in written]
    return all(each.indices[:shared] == row for each in (*map(element_at_zeros, blocks), *handed_on))


def _write(chain: Chain, later: Sequence[Stage], name: str) -> WrittenKernel:
    private = _private(chain, later)
    shape = row_shape([(stage, chain.inner(stage)) for stage in chain.stages], private)
    if shape is not None:
        return _write_in_registers(chain, private, shape, name)
    if all(is_along_rows(stage, chain.inner(stage)) for stage in chain.stages):
        chain = Chain(rematerialize(chain.stages, private), chain.shared)
        private &= _list_written(chain)
    kernel = Kernel(_list_written(chain), threads_for(chain.work), private)
    kept = _keep_rows(kernel, chain, private)
    point = kernel.define_point(chain.rows, "blockIdx.x")
    row = kernel.expressions(kernel.axes_at(point, chain.rows), kept=kept)
    pending: set[Buffer] = set()  # written since the last barrier
    for number, stage in enumerate(chain.stages):
        if any(load.buffer in pending and load not in row.known for load in stage.loads):
            kernel.writer.line("__syncthreads();")
            pending.clear()
        if extent_of(chain.inner(stage)) == 1:
            unread = private - _read_from_memory(stage, chain.stages[number + 1 :])
            _write_once(kernel, row, chain, stage, unread)
        else:
            _write_across(kernel, row, chain, stage)
        pending |= stage.written
    return kernel.finish(name, extent_of(chain.rows))


def _write_in_registers(chain: Chain, private: frozenset[Buffer], shape: RowShape, name: str) -> WrittenKernel:
    kernel = Kernel(_list_written(chain), shape.threads, private)
    row = kernel.expressions(kernel.axes_at(kernel.define_point(chain.rows, "blockIdx.x"), chain.rows))
    registers = RegisterRow(kernel, shape, private)
    for number, stage in enumerate(chain.stages):
        inner = chain.inner(stage)
        axis = along(stage, inner)
        if axis is not None and not stage.reduce:
            row.axes.update({each.name: "0" for each in inner if each != axis})
            registers.write(row, stage, axis)
            continue
        unread = private - _read_from_memory(stage, chain.stages[number + 1 :])
        first = registers.emit_reduction(row, stage) if axis is not None else None
        _write_once(kernel, row, chain, stage, unread, first)
    return kernel.finish(name, extent_of(chain.rows))


def _list_written(chain: Chain) -> frozenset[Buffer]:
    return frozenset[Buffer]().union(*(stage.written for stage in chain.stages))


def _private(chain: Chain, later: Sequence[Stage]) -> frozenset[Buffer]:
    """Return the locals that only the chain touches."""
    elsewhere = {buffer for stage in later for block in stage.blocks for buffer in (block.output, *block.reads)}
    # What is written in pieces may have pieces that an earlier kernel wrote.
    elsewhere |= {b.output for stage in chain.stages for b in stage.blocks if not _writes_all(b)}
    return frozenset(buffer for buffer in _list_written(chain) - elsewhere if buffer.scope == "local")


def _writes_all(block: ComputeBlock) -> bool:
    return block.writes_spatial_axes and extents_of(block.spatial_axes) == block.output.shape


def _keep_rows(kernel: Kernel, chain: Chain, private: frozenset[Buffer]) -> dict[Buffer, Keeper]:
    """Keep short rows of private buffers in shared memory, where one element is not the row."""
    left = MOST_SHARED
    kept: dict[Buffer, Keeper] = {}
    for buffer in sorted(private, key=lambda each: each.name):
        shape = buffer.shape[chain.shared :]
        size = dims.product(shape)
        nbytes = size * max(dtypes.itemsize(buffer.dtype), 4) if isinstance(size, int) else left + 1
        if isinstance(nbytes, int) and isinstance(size, int) and size > 1 and nbytes <= left:
            left -= nbytes
            name = kernel.writer.fresh("row")
            kernel.writer.line(f"SHARED({computed_type(buffer.dtype)}, {name}, {size});")
            kept[buffer] = _keeper(Buffer(name, shape, buffer.dtype), chain.shared)
    return kept


def _keeper(row: Buffer, shared: int) -> Keeper:
    return lambda here, indices: f"{row.name}[{here.offset(row, indices[shared:])}]"


def _read_from_memory(stage: Stage, later: Sequence[Stage]) -> frozenset[Buffer]:
    """Return the buffers that later stages read at other points than where a stage has just written them."""
    places = {element_at_zeros(block) for block in stage.blocks}
    return frozenset(load.buffer for each in later for load in each.loads if load not in places)


def _write_once(
    kernel: Kernel,
    row: Expressions,
    chain: Chain,
    stage: Stage,
    unread: frozenset[Buffer],
    first: str | None = None,
) -> None:
    """Write a stage with one point for each row: every thread has its values. first: the reduced value, if known."""

    def store(block: ComputeBlock, name: str) -> None:
        if block.output not in unread:
            with kernel.writer.block("if (threadIdx.x == 0)"):
                row.store(block.output, block.indices, name)

    row.axes.update({axis.name: "0" for axis in chain.inner(stage)})
    if stage.reduce and first is None:
        first = emit_block_reduction(kernel, row, stage.first)
    finish_point(kernel, row, stage, first, store)


def _write_across(kernel: Kernel, row: Expressions, chain: Chain, stage: Stage) -> None:
    """Write a stage with many points for each row, distributed over the threads."""

    def finish(here: Expressions, place: str, store: Store | None) -> None:
        first = emit_reduction(kernel, here, stage.first) if stage.reduce else None
        finish_point(kernel, here, stage, first, store)

    # What is reduced at each of the points is no row that is read once.
    blocks = () if stage.reduce else stage.blocks
    results = [block for block in blocks if block.output not in stage.inside and block.output not in row.kept]
    emit_element_loop(kernel, row, chain.inner(stage), blocks, finish, results)
