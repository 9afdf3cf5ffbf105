"""A PrimFunc as LLVM functions: one per group, run over a range of tasks by one thread, and the kernel that calls them.

Kernel ABI: `int32_t f(void** args, int64_t* numbers, int32_t threads, void* workspace)`. `numbers` are, in order: per
group its threads and its tasks, per local buffer its offset in the workspace and its size per thread, then dims; they
are worked out when the kernel is bound (see `runtime.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.runtime.spec import TensorSpec
from kernelyard.tir import Buffer, PrimFunc
from kernelyard_native_cpu.codegen.emitter import FunctionEmitter
from kernelyard_native_cpu.codegen.memory import DimTable, Memory
from kernelyard_native_cpu.codegen.nest import Axes, Nest, OuterLoop, Points
from kernelyard_native_cpu.codegen.values import Value, int_literal
from kernelyard_native_cpu.kernel_info import GroupInfo, KernelInfo, LocalInfo, Variant, entry_symbol
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.schedule.cost import nanoseconds
from kernelyard_native_cpu.schedule.plan import Plan, make_plan, size_of
from kernelyard_native_cpu.schedule.stages import Group, Stage, make_groups

_GROUP_PARAMETERS = (
    Value("%args", "ptr"),
    Value("%dims", "ptr"),
    Value("%workspace", "ptr"),
    Value("%begin", "i64"),
    Value("%end", "i64"),
    Value("%thread", "i64"),
)
# Enough tasks to share among threads; deeper loops then run without the divisions that flattening costs.
_ENOUGH_TASKS = 256
_CHUNK = 32


@dataclass(frozen=True)
class GeneratedKernel:
    """LLVM functions and what binding them needs."""

    text: str
    info: KernelInfo


def generate_kernel(name: str, function: PrimFunc, machine: Machine, declarations: set[str]) -> GeneratedKernel:
    """The code of one function; intrinsics it uses are added to `declarations`."""
    return _KernelWriter(name, function, machine, declarations).write()


class _KernelWriter:
    def __init__(self, name: str, function: PrimFunc, machine: Machine, declarations: set[str]) -> None:
        self.symbol = name
        self.name = entry_symbol(name)
        self.function = function
        self.machine = machine
        self.declarations = declarations
        self.groups = make_groups(function)
        self.reserved = 2 * len(self.groups) + 2 * len(function.locals)
        self.table = DimTable(self.reserved)
        self.private = {buffer: group.shared for group in self.groups for buffer in group.private}

    def write(self) -> GeneratedKernel:
        texts: list[str] = []
        infos: list[GroupInfo] = []
        for number, group in enumerate(self.groups):
            text, info = _GroupWriter(self, group).write(f"{self.name}.{number}")
            texts += [text, _thread_function(f"{self.name}.{number}")]
            infos.append(info)
        texts.append(_entry_function(self.name, len(self.groups)))
        function = self.function
        info = KernelInfo(
            self.symbol,
            tuple(TensorSpec(buffer.shape, buffer.dtype, buffer.name) for buffer in function.params),
            function.num_outputs,
            tuple(infos),
            tuple(self._local_info(buffer) for buffer in function.locals),
            tuple(self.table.dims),
        )
        return GeneratedKernel("\n".join(texts), info)

    def _local_info(self, buffer: Buffer) -> LocalInfo:
        dropped = self.private.get(buffer)
        shape = buffer.shape if dropped is None else buffer.shape[dropped:]
        return LocalInfo(Buffer(buffer.name, shape, buffer.dtype).nbytes, dropped is not None)

    def pointers(self, e: FunctionEmitter, memory_number: Memory) -> dict[Buffer, Value]:
        """Where every buffer starts."""
        found: dict[Buffer, Value] = {}
        for index, buffer in enumerate(self.function.params):
            place = e.pure(f"getelementptr ptr, ptr %args, i64 {index}", "ptr", 1, [])
            found[buffer] = e.pure(f"load ptr, ptr {place.ref}, align 8, !invariant.load !0", "ptr", 1, [place])
        first = 2 * len(self.groups)
        for index, buffer in enumerate(self.function.locals):
            offset = memory_number.number(first + 2 * index)
            if buffer in self.private:
                stride = memory_number.number(first + 2 * index + 1)
                offset = e.binary("add", offset, e.binary("mul", Value("%thread", "i64"), stride))
            found[buffer] = e.pure(f"getelementptr i8, ptr %workspace, {offset.typed}", "ptr", 1, [offset])
        return found

    def stored_buffers(self, stage: Stage) -> frozenset[Buffer]:
        """Buffers of a stage that something outside of it reads."""
        others = [s for group in self.groups for s in group.stages if s is not stage]
        read_elsewhere = {buffer for s in others for block in s.blocks for buffer in block.reads}
        kept = read_elsewhere | set(self.function.params)
        return frozenset(block.output for block in stage.blocks if block.output in kept)


class _GroupWriter:
    def __init__(self, kernel: _KernelWriter, group: Group) -> None:
        self.kernel = kernel
        self.group = group
        self.e = FunctionEmitter(_GROUP_PARAMETERS, kernel.declarations, kernel.machine.has_fma)
        blocks = [block for stage in group.stages for block in stage.blocks]
        written = frozenset(block.output for block in blocks)
        pointers: dict[Buffer, Value] = {}
        self.memory = Memory(self.e, kernel.table, pointers, written, kernel.private, kernel.machine.has_half)
        pointers.update(kernel.pointers(self.e, self.memory))
        self.rows = tuple(axis.name for axis in group.stages[0].spatial[: group.shared])

    def write(self, name: str) -> tuple[str, GroupInfo]:
        plans = [
            make_plan(stage, frozenset(self.rows), self.kernel.private, self.kernel.machine)
            for stage in self.group.stages
        ]
        variants = self._write_rows(plans) if self.group.shared else self._write_stage(self.group.stages[0], plans[0])
        work = [
            nanoseconds(block, plan)
            for stage, plan in zip(self.group.stages, plans, strict=True)
            for block in stage.blocks
        ]
        return self.e.finish(name, linkage="internal"), GroupInfo(variants, tuple(work))

    # --- rows ---------------------------------------------------------------------------------------------------------
    def _write_rows(self, plans: Sequence[Plan]) -> tuple[Variant, ...]:
        extents = [axis.extent for axis in self.group.stages[0].spatial[: self.group.shared]]

        def row(task: Value, _: list[Value]) -> list[Value]:
            axes = dict(zip(self.rows, self._decode(task, extents), strict=True))
            for stage, plan in zip(self.group.stages, plans, strict=True):
                self._run_stage_in_row(stage, plan, axes)
            return []

        self.e.loop(Value("%begin", "i64"), Value("%end", "i64"), row)
        return (Variant(dims.product(extents)),)

    def _run_stage_in_row(self, stage: Stage, plan: Plan, axes: Axes) -> None:
        def run(plan: Plan) -> list[Value]:
            self.memory.begin_stage(frozenset(block.output for block in stage.blocks))
            nest = self._nest(stage, plan, axes)
            nest.run(nest.outer_loops(), [nest.axes])
            return []

        self._choose(plan.versions(self.kernel.machine), run)

    def _choose(self, versions: Sequence[Plan], run: Callable[[Plan], list[Value]]) -> None:
        """Run the first version whose vectors are not longer than their axis."""
        if len(versions) == 1:
            run(versions[0])
        else:
            enough = self._is_long_enough(versions[0])
            self.e.branch(enough, lambda: run(versions[0]), lambda: self._choose(versions[1:], run) or [])

    def _is_long_enough(self, plan: Plan) -> Value:
        assert plan.vector is not None
        return self.e.compare("sge", self.memory.dim(plan.extents[plan.vector]), int_literal(plan.lanes))

    def _nest(self, stage: Stage, plan: Plan, axes: Mapping[str, Value]) -> Nest:
        return Nest(self.memory, stage, plan, axes, self.kernel.stored_buffers(stage))

    def _decode(self, task: Value, extents: Sequence[Dim]) -> list[Value]:
        """The index in each of some nested loops of a task's number."""
        values: list[Value] = []
        for extent in reversed(extents[1:]):
            size = self.memory.dim(extent)
            values.append(self.e.binary("urem", task, size, floor=self.e.depth) if extent != 1 else int_literal(0))
            task = self.e.binary("udiv", task, size, floor=self.e.depth) if extent != 1 else task
        return [task, *reversed(values)][: len(extents)]

    # --- one stage ----------------------------------------------------------------------------------------------------
    def _write_stage(self, stage: Stage, plan: Plan) -> tuple[Variant, ...]:
        self.memory.begin_stage(frozenset(block.output for block in stage.blocks))
        variants: list[Variant] = []

        def run(version: Plan) -> list[Value]:
            least = version.least()
            extent = version.extents[str(version.vector)] if least else 1
            variants.append(Variant(self._run_tasks(stage, version), extent, least))
            return []

        self._choose(plan.versions(self.kernel.machine), run)
        return tuple(variants)

    def _run_tasks(self, stage: Stage, plan: Plan) -> Dim:
        """The loop over the tasks of one thread; returns how many tasks there are in all."""
        nest = self._nest(stage, plan, {})
        loops = [loop for loop in nest.outer_loops() if loop.count != 1]
        single = [loop for loop in nest.outer_loops() if loop.count == 1]
        start: Points = [nest.axes]
        for loop in single:
            start = loop.expand(start, int_literal(0))
        flat = _loops_to_flatten(loops, everything=bool(plan.tiles))
        inner = loops[len(flat) :]
        counts = [loop.count for loop in flat]
        is_split = not inner and len(flat) > 1 and not stage.reduce and size_of(flat[-1].count) > _CHUNK
        if is_split:
            counts[-1] = dims.ceildiv(flat[-1].count, _CHUNK)

        def task(number: Value, _: list[Value]) -> list[Value]:
            indices = self._decode(number, counts)
            points = start
            for loop, index in zip(flat[: len(flat) - is_split], indices, strict=False):
                points = loop.expand(points, index)
            if is_split:
                self._run_chunk(nest, flat[-1], indices[-1], points)
            else:
                nest.run(inner, points)
            return []

        self.e.loop(Value("%begin", "i64"), Value("%end", "i64"), task)
        return dims.product(counts)

    def _run_chunk(self, nest: Nest, loop: OuterLoop, chunk: Value, points: Points) -> None:
        begin = self.e.mul(chunk, int_literal(_CHUNK))
        end = self.e.intrinsic("smin", self.e.add(begin, int_literal(_CHUNK)), self.memory.dim(loop.count))

        def body(index: Value, _: list[Value]) -> list[Value]:
            nest.run([], loop.expand(points, index))
            return []

        self.e.loop(begin, end, body, runs=True)


def _loops_to_flatten(loops: Sequence[OuterLoop], everything: bool) -> list[OuterLoop]:
    """The outermost loops that together make enough tasks."""
    flat: list[OuterLoop] = []
    for loop in loops:
        if not everything and size_of(dims.product(chosen.count for chosen in flat)) >= _ENOUGH_TASKS:
            break
        flat.append(loop)
    return flat


def _thread_function(name: str) -> str:
    """What each thread of the pool runs: its share of a group's tasks."""
    return f"""define internal void @{name}.thread(ptr %context) #0 {{
  %args = load ptr, ptr %context
  %p1 = getelementptr ptr, ptr %context, i64 1
  %dims = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %context, i64 2
  %workspace = load ptr, ptr %p2
  %p3 = getelementptr ptr, ptr %context, i64 3
  %tasks = load i64, ptr %p3
  %number = call i32 @omp_get_thread_num()
  %count = call i32 @omp_get_num_threads()
  %thread = zext i32 %number to i64
  %threads = zext i32 %count to i64
  %next = add i64 %thread, 1
  %low = mul i64 %tasks, %thread
  %high = mul i64 %tasks, %next
  %begin = udiv i64 %low, %threads
  %end = udiv i64 %high, %threads
  call void @{name}(ptr %args, ptr %dims, ptr %workspace, i64 %begin, i64 %end, i64 %thread)
  ret void
}}
"""


def _entry_function(name: str, groups: int) -> str:
    """The kernel: each group in turn, by one thread or by the pool."""
    lines = [
        f"define i32 @{name}(ptr %args, ptr %dims, i32 %most, ptr %workspace) #0 {{",
        "entry:",
        "  %context = alloca [4 x ptr], align 8",
        "  store ptr %args, ptr %context",
        "  %c1 = getelementptr ptr, ptr %context, i64 1",
        "  store ptr %dims, ptr %c1",
        "  %c2 = getelementptr ptr, ptr %context, i64 2",
        "  store ptr %workspace, ptr %c2",
        "  %c3 = getelementptr ptr, ptr %context, i64 3",
    ]
    for g in range(groups):
        lines += [
            f"  %pt{g} = getelementptr i64, ptr %dims, i64 {2 * g}",
            f"  %threads{g} = load i64, ptr %pt{g}",
            f"  %pk{g} = getelementptr i64, ptr %dims, i64 {2 * g + 1}",
            f"  %tasks{g} = load i64, ptr %pk{g}",
            f"  %alone{g} = icmp sle i64 %threads{g}, 1",
            f"  br i1 %alone{g}, label %one{g}, label %many{g}",
            f"one{g}:",
            f"  call void @{name}.{g}(ptr %args, ptr %dims, ptr %workspace, i64 0, i64 %tasks{g}, i64 0)",
            f"  br label %done{g}",
            f"many{g}:",
            f"  store i64 %tasks{g}, ptr %c3",
            f"  %count{g} = trunc i64 %threads{g} to i32",
            f"  call void @GOMP_parallel(ptr @{name}.{g}.thread, ptr %context, i32 %count{g}, i32 0)",
            f"  br label %done{g}",
            f"done{g}:",
        ]
    return "\n".join([*lines, "  ret i32 0", "}", ""])


def generate_module(kernels: Sequence[GeneratedKernel], declarations: set[str], machine: Machine, triple: str) -> str:
    """Kernels and what they call as one LLVM module."""
    width = machine.vector_bits
    parts = [
        f'target triple = "{triple}"',
        *(kernel.text for kernel in kernels),
        *sorted(declarations),
        "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
        "declare i32 @omp_get_num_threads()",
        "declare i32 @omp_get_thread_num()",
        f'attributes #0 = {{ nounwind "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" }}',
        "attributes #1 = { nounwind willreturn memory(none) }",
        "!0 = !{}",
    ]
    return "\n".join(parts) + "\n"
