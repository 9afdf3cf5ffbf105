"""A PrimFunc as LLVM functions: one per group, run over a range of tasks by one thread, and the kernel that calls them.

Kernel ABI: `int32_t f(void** args, int64_t* numbers, int32_t threads, void* workspace)`. `numbers` are, in order: per
group its threads and its tasks, per local buffer its offset in the workspace and its size per thread, the threads of
loops that may run at the same time, if there are some, then dims; they are worked out when the kernel is bound (see
`runtime.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.plugins.codegen_api import Buffer, PrimFunc, Stage
from kernelyard.runtime.api import TensorSpec
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value
from kernelyard_native_cpu.codegen.entry import ConcurrentLoops, GroupLoop, entry_function
from kernelyard_native_cpu.codegen.group import ARGS, GROUP_PARAMETERS, THREAD, WORKSPACE, GroupWriter
from kernelyard_native_cpu.codegen.memory import DimTable, Memory
from kernelyard_native_cpu.kernel_info import ConcurrentLoopsInfo, GroupInfo, KernelInfo, LocalInfo, entry_symbol
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.schedule.group import Group
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.interleave_rows import with_interleaved_rows
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules import make_plan
from kernelyard_native_cpu.schedule.step_loops import StepLoop, order_loops


@dataclass(frozen=True)
class GeneratedKernel:
    """LLVM functions and what binding them needs."""

    text: str
    info: KernelInfo


def generate_kernel(name: str, function: PrimFunc, machine: Machine, declarations: dict[str, str]) -> GeneratedKernel:
    """Return the code of one function; intrinsics it uses are added to `declarations`."""
    return _KernelWriter(name, function, machine, declarations).write()


class _KernelWriter:
    def __init__(self, name: str, function: PrimFunc, machine: Machine, declarations: dict[str, str]) -> None:
        self.symbol = name
        self.name = entry_symbol(name)
        self.function = function = with_interleaved_rows(function)
        self.machine = machine
        self.declarations = declarations
        self.groups = make_groups(function)
        self.private = {buffer: group.dropped_axes for group in self.groups for buffer in group.private}
        plans = [[self._plan(group, stage) for stage in group.stages] for group in self.groups]
        scratch = [buffer for of_group in plans for plan in of_group for buffer in plan.scratch]
        self.private.update((buffer, 0) for buffer in scratch)
        self.locals = (*self._list_locals(), *scratch)
        self.plans = plans
        self.loops = order_loops(self.groups)
        self.own_numbers = 2 * len(self.groups) + 2 * len(self.locals)
        self.table = DimTable(self.own_numbers + bool(self.loops.together))

    def _plan(self, group: Group, stage: Stage) -> Plan:
        rows = frozenset(axis.name for axis in group.stages[0].spatial[: group.shared])
        return make_plan(stage, rows, self.private, self.machine)

    def _list_locals(self) -> Iterator[Buffer]:
        """Yield the function's locals, and what groups keep for a block of rows in the place of some."""
        blocks = [block for group in self.groups for stage in group.stages for block in stage.blocks]
        used = {buffer for block in blocks for buffer in (block.output, *block.reads)}
        yield from (buffer for buffer in self.function.locals if buffer in used)
        for group in self.groups:
            if group.block_rows:
                yield from sorted(group.private, key=lambda buffer: buffer.name)

    def write(self) -> GeneratedKernel:
        texts: list[str] = []
        infos: list[GroupInfo] = []
        for number, (group, plans) in enumerate(zip(self.groups, self.plans, strict=True)):
            text, info = self._group_writer(group, plans).write(f"{self.name}.{number}")
            texts.append(text)
            infos.append(info)
        texts.append(entry_function(self.name, tuple(self._parts(infos))))
        function = self.function
        info = KernelInfo(
            self.symbol,
            tuple(TensorSpec(buffer.shape, buffer.dtype, buffer.name) for buffer in function.params),
            function.num_outputs,
            tuple(infos),
            tuple(self._local_info(buffer) for buffer in self.locals),
            tuple(self.table.dims),
            self._loops_info(infos),
        )
        return GeneratedKernel("\n".join(texts), info)

    def _parts(self, infos: Sequence[GroupInfo]) -> Iterator[GroupLoop | ConcurrentLoops]:
        """Yield what the kernel runs, in order."""
        order = self.loops
        yield from (self._group_loop(loop, infos) for loop in order.before)
        if order.together:
            loops = tuple(self._group_loop(loop, infos) for loop in order.together)
            yield ConcurrentLoops(loops, self.own_numbers)
        yield from (self._group_loop(loop, infos) for loop in order.after)

    def _group_loop(self, loop: StepLoop, infos: Sequence[GroupInfo]) -> GroupLoop:
        groups = tuple((number, infos[number].is_short) for number in loop.groups)
        if loop.steps is None:
            return GroupLoop(groups)
        if isinstance(loop.steps, int):
            return GroupLoop(groups, loop.steps)
        return GroupLoop(groups, steps_place=self.table.index(loop.steps))

    def _loops_info(self, infos: Sequence[GroupInfo]) -> ConcurrentLoopsInfo | None:
        """Return what tells how many threads run loops at the same time; None where none may."""
        together = self.loops.together
        work = tuple(
            (dims.product((points, loop.steps)), time)
            for loop in together
            if loop.steps is not None
            for number in loop.groups
            for points, time in infos[number].work
        )
        groups = tuple(number for loop in together for number in loop.groups)
        return ConcurrentLoopsInfo(len(together), groups, work) if together else None

    def _local_info(self, buffer: Buffer) -> LocalInfo:
        dropped = self.private.get(buffer)
        shape = buffer.shape if dropped is None else buffer.shape[dropped:]
        return LocalInfo(Buffer(buffer.name, shape, buffer.dtype).nbytes, dropped is not None)

    def _group_writer(self, group: Group, plans: Sequence[Plan]) -> GroupWriter:
        machine = self.machine
        e = FunctionEmitter(GROUP_PARAMETERS, self.declarations, machine.has_fma, machine.has_scale)
        pointers: dict[Buffer, Value] = {}
        # What another step writes changes, too.
        members = [group] if group.step is None else [each for each in self.groups if each.step == group.step]
        written = {block.output for member in members for stage in member.stages for block in stage.blocks}
        written |= {buffer for plan in plans for buffer in plan.scratch}
        memory = Memory(e, self.table, pointers, frozenset(written), self.private, machine.has_half)
        pointers.update(self._pointers(e, memory))
        stored = [self._find_stored_buffers(stage) for stage in group.stages]
        return GroupWriter(memory, group, plans, stored, machine)

    def _pointers(self, e: FunctionEmitter, memory: Memory) -> dict[Buffer, Value]:
        """Load the base pointer of every buffer."""
        found: dict[Buffer, Value] = {}
        for index, buffer in enumerate(self.function.params):
            place = e.element(ARGS, index, "ptr")
            found[buffer] = e.pure(f"{e.load_text(place, 'ptr', 1)}, !invariant.load !0", "ptr", 1, [place])
        first = 2 * len(self.groups)
        for index, buffer in enumerate(self.locals):
            offset = memory.number(first + 2 * index)
            if buffer in self.private:
                stride = memory.number(first + 2 * index + 1)
                offset = e.add(offset, e.mul(THREAD, stride))
            found[buffer] = e.element(WORKSPACE, offset, "i8")
        return found

    def _find_stored_buffers(self, stage: Stage) -> frozenset[Buffer]:
        """Return the buffers of a stage that something outside of it reads."""
        others = [s for group in self.groups for s in group.stages if s is not stage]
        read_elsewhere = {buffer for s in others for block in s.blocks for buffer in block.reads}
        kept = read_elsewhere | set(self.function.params)
        return frozenset(block.output for block in stage.blocks if block.output in kept)
