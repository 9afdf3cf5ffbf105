"""The function of one group: its loop over tasks, which threads share, and the nests inside of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Buffer
from kernelyard_llvm.values import Value, int_literal, registers
from kernelyard_native_cpu.codegen.cost import nanoseconds
from kernelyard_native_cpu.codegen.memory import Memory
from kernelyard_native_cpu.codegen.nest import Axes, Nest, OuterLoop, Points
from kernelyard_native_cpu.kernel_info import GroupInfo, Variant
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.schedule.group import Group
from kernelyard_native_cpu.schedule.plan import TILES_PER_PANEL, Plan, size_of
from kernelyard_native_cpu.schedule.streaming import choose_streamed_buffers

ARGS, _DIMS, WORKSPACE = registers("ptr", "args", "dims", "workspace")
BEGIN, END, THREAD, STEP = registers("i64", "begin", "end", "thread", "step")
GROUP_PARAMETERS = (ARGS, _DIMS, WORKSPACE, BEGIN, END, THREAD, STEP)
# Enough tasks to share among threads; deeper loops then run without the divisions that flattening costs.
_ENOUGH_TASKS = 256
_CHUNK = 32


class GroupWriter:
    """Writes the function of one group. stored: for each stage, the buffers that something outside of it reads."""

    def __init__(
        self,
        memory: Memory,
        group: Group,
        plans: Sequence[Plan],
        stored: Sequence[frozenset[Buffer]],
        machine: Machine,
    ) -> None:
        self.memory = memory
        self.e = memory.emitter
        self.group = group
        self.plans = plans
        self.stored = stored
        self.machine = machine
        self.outside: Axes = {} if group.step is None else {group.step.name: STEP}
        stages = zip(group.stages, plans, strict=True)
        self.streamed = [choose_streamed_buffers(group, stage, plan, machine) for stage, plan in stages]
        self.rows = tuple(axis.name for axis in group.stages[0].spatial[: group.shared])

    def write(self, name: str) -> tuple[str, GroupInfo]:
        """Return the function's text, and what binding needs to know of it."""
        variants = self._write_rows() if self.group.shared else self._write_stage(self.plans[0])
        work = [
            nanoseconds(block, plan)
            for stage, plan in zip(self.group.stages, self.plans, strict=True)
            for block in stage.blocks
        ]
        if any(self.streamed):
            self.e.line(self.e.call("llvm.x86.sse.sfence", "void"))
        return self.e.finish(name, is_internal=True), GroupInfo(variants, tuple(work), self.group.step is not None)

    # --- rows ---------------------------------------------------------------------------------------------------------
    def _write_rows(self) -> tuple[Variant, ...]:
        extents = [axis.extent for axis in self.group.stages[0].spatial[: self.group.shared]]

        with self.e.loop(BEGIN, END) as (task, _):
            row = self._decode(task, extents)
            if self.group.block_rows:
                row[-1] = self._start_of_block(row[-1])
            axes = {**self.outside, **dict(zip(self.rows, row, strict=True))}
            self._pack_panels(task, axes)
            for number in range(len(self.plans)):
                self._run_stage_in_row(number, axes)
        return (Variant(dims.product(extents)),)

    def _pack_panels(self, task: Value, axes: Axes) -> None:
        """Pack what all blocks of these rows read, before the first of them that this thread has."""
        panels = [number for number, plan in enumerate(self.plans) if plan.panel]
        if not panels:
            return
        is_first = self.e.compare("eq", axes[self.rows[-1]], 0)
        is_first = self.e.binary("or", is_first, self.e.compare("eq", task, BEGIN))

        def pack() -> list[Value]:
            for number in panels:
                self._begin(number)
                plan = self.plans[number]
                self._where_long_enough(plan, self._nest(number, plan, axes).pack_all)
            return []

        self.e.branch(is_first, pack, list)

    def _start_of_block(self, number: Value) -> Value:
        """Return the first row of a block; the last block is moved back to end with the rows."""
        height, rows = self.group.block_rows, self.group.rows_in_all
        start = self.e.mul(number, self.memory.dim(height))
        return self.e.intrinsic("smin", start, self.memory.dim(rows - height)) if rows % height != 0 else start

    def _run_stage_in_row(self, number: int, axes: Axes) -> None:
        def run(plan: Plan) -> None:
            self._begin(number)
            nest = self._nest(number, plan, axes)
            if plan.panel:
                nest.run_packed()
            else:
                nest.run(nest.outer_loops(), [nest.axes])

        self._choose(self.plans[number].versions(self.machine), run)

    def _begin(self, number: int) -> None:
        self.memory.streamed = self.streamed[number]
        written = (block.output for block in self.group.stages[number].blocks)
        plan = self.plans[number]
        kept = plan.tile_scratch, plan.k_blocks and plan.k_blocks.sums
        self.memory.begin_stage(frozenset((*written, *(buffer for buffer in kept if buffer))))

    def _choose(self, versions: Sequence[Plan], run: Callable[[Plan], None]) -> None:
        """Run the first version for which all axes are long enough."""
        first, *others = versions
        if others:
            self._where_long_enough(first, lambda: run(first), lambda: self._choose(others, run))
        else:
            run(first)

    def _where_long_enough(
        self, plan: Plan, run: Callable[[], object], otherwise: Callable[[], object] = lambda: None
    ) -> None:
        """Run one thing where all axes are long enough for a plan, and the other elsewhere."""

        def without_results(emit: Callable[[], object]) -> list[Value]:
            emit()
            return []

        extents = {axis: self.memory.dim(plan.extents[axis]) for axis in plan.conditions}
        conditions = [self.e.compare("sge", extents[axis], least) for axis, least in plan.conditions.items()]
        if conditions:
            enough = reduce(partial(self.e.binary, "and"), conditions)
            self.e.branch(enough, partial(without_results, run), partial(without_results, otherwise))
        else:
            run()

    def _nest(self, number: int, plan: Plan, axes: Mapping[str, Value]) -> Nest:
        return Nest(self.memory, self.group.stages[number], plan, axes, self.stored[number])

    def _decode(self, task: Value, extents: Sequence[Dim]) -> list[Value]:
        """Return the index in each of some nested loops of a task's number."""
        values: list[Value] = []
        for extent in reversed(extents[1:]):
            size = self.memory.dim(extent)
            values.append(self.e.binary("urem", task, size, floor=self.e.depth) if extent != 1 else int_literal(0))
            task = self.e.binary("udiv", task, size, floor=self.e.depth) if extent != 1 else task
        return [task, *reversed(values)][: len(extents)]

    # --- one stage ----------------------------------------------------------------------------------------------------
    def _write_stage(self, plan: Plan) -> tuple[Variant, ...]:
        self._begin(0)
        variants: list[Variant] = []

        def run(version: Plan) -> None:
            least = version.least()
            extent = version.extents[str(version.measured)] if least else 1
            variants.append(Variant(self._run_tasks(version), extent, least))

        self._choose(plan.versions(self.machine), run)
        return tuple(variants)

    def _run_tasks(self, plan: Plan) -> Dim:
        """Return the loop over the tasks of one thread; returns how many tasks there are in all."""
        self.memory.packed = {}
        nest = self._nest(0, plan, self.outside)
        loops = nest.outer_loops()
        if plan.k_blocks:
            start, loops, single = _without_single(loops[:-1], [nest.axes], 0)  # tiles are walked inside of the blocks
        else:
            start, loops, single = _without_single(loops, [nest.axes], len(plan.tiles))
        flat = _loops_to_flatten(loops, everything=bool(plan.tiles))
        chunk = self._chunk_of_last(plan, loops, flat)
        counts = [loop.count for loop in flat]
        if chunk:
            counts[-1] = dims.ceildiv(flat[-1].count, chunk)

        with self.e.loop(BEGIN, END) as (number, _):
            number = self._to_and_fro(number)
            indices = self._decode(number, counts)
            points = start
            for loop, index in zip(flat[:-1] if chunk else flat, indices, strict=False):
                points = loop.expand(points, index)
            if plan.panel:
                points = nest.pack(points)
                self._begin(0)
            if plan.k_blocks:
                nest.run_k_blocks(points)
            elif chunk:
                self._run_chunk(nest, [flat[-1], *single], indices[-1], chunk, points)
            else:
                nest.run([*loops[len(flat) :], *single], points)
        return dims.product(counts)

    def _to_and_fro(self, number: Value) -> Value:
        """Return the task to do next; in every other step of a recurrence they are done backwards, so that the weights
        which the step before used last, and the caches still hold, come first."""
        if self.group.step is None or not self.group.stages[0].reduce:
            return number
        backwards = self.e.sub(self.e.sub(self.e.add(BEGIN, END), 1), number)
        is_odd = self.e.compare("ne", self.e.binary("and", STEP, 1), 0)
        return self.e.select(is_odd, backwards, number)

    def _chunk_of_last(self, plan: Plan, loops: Sequence[OuterLoop], flat: Sequence[OuterLoop]) -> int:
        """Return the chunk of innermost flattened iterations per task; 0 if that loop is a task axis of its own."""
        if plan.panel:
            return TILES_PER_PANEL
        if plan.k_blocks:
            return 0
        is_long = len(loops) == len(flat) > 1 and size_of(flat[-1].count) > _CHUNK
        return _CHUNK if is_long and not self.group.stages[0].reduce and not plan.transposed_axis else 0

    def _run_chunk(self, nest: Nest, loops: Sequence[OuterLoop], number: Value, chunk: int, points: Points) -> None:
        loop, *inner = loops
        begin = self.e.mul(number, chunk)
        end = self.e.intrinsic("smin", self.e.add(begin, chunk), self.memory.dim(loop.count))
        with self.e.loop(begin, end, runs=True) as (index, _):
            nest.run(inner, loop.expand(points, index))


def _without_single(
    loops: Sequence[OuterLoop], points: Points, tiles: int
) -> tuple[Points, list[OuterLoop], list[OuterLoop]]:
    """Expand points by loops of one iteration; return them, the other loops, and those to expand after all others.

    These are the last of the loops over tiles, `tiles` in number: the rows of a tile are expanded after its vectors, of
    which there may be several, so that the points are in rows.
    """
    last = len(loops)
    while last > len(loops) - tiles and loops[last - 1].count == 1:
        last -= 1
    for loop in loops[:last]:
        points = loop.expand(points, int_literal(0)) if loop.count == 1 else points
    return points, [loop for loop in loops[:last] if loop.count != 1], [*loops[last:]]


def _loops_to_flatten(loops: Sequence[OuterLoop], everything: bool) -> list[OuterLoop]:
    """Return the outermost loops that together make enough tasks."""
    flat: list[OuterLoop] = []
    for loop in loops:
        if not everything and size_of(dims.product(chosen.count for chosen in flat)) >= _ENOUGH_TASKS:
            break
        flat.append(loop)
    return flat
