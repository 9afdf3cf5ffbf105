"""Plan graphs for known sizes, and bind plans to addresses: arrays of native calls, with no Python in between.

A graph is lowered once per sizes and thread count to a plan (layouts chosen, constants packed, memory placed), and
bound once per call's memory.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from kernelyard.runtime.api import (
    DEFAULT_MAX_PLANS,
    LRU,
    BindContext,
    BoundCall,
    BoundTensor,
    CacheInfo,
    DimValues,
    JSONGraph,
    MemoryPlanner,
    NamedTuple,
    NativeCall,
    Part,
    Step,
    address_of,
    renewed_in_children,
    sum_infos,
)
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import Handle, Library, StatusError, load_library
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.packing import PackedConstants, execution_arguments, memory_object
from kernelyard_dnnl.plan import Plan, make_plan
from kernelyard_dnnl.plan_cache import recall_plan, remember_plan
from kernelyard_dnnl.primitive import Primitive, primitives_info
from kernelyard_dnnl.thread_scope import scope_steps
from kernelyard_dnnl.values import Buffer, NativeKernel, Operation, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.graph_templates import GraphTemplates
    from kernelyard_dnnl.lowering import Lowering
    from kernelyard_dnnl.speculation import Speculation

# Sets of sizes of one graph: beyond these, primitives are preferred that leave nothing behind, for all graphs but those
# of few sizes. A branch that is seldom taken would get there much later, and leave as much.
MANY_SIZES = 32
FEW_SIZES = 4
# From so many nodes on, collections of garbage would look again and again at the objects that are made for a size and
# live as long as its bound call: an eighth of the time of a detector's.
MANY_NODES = 32


class GraphPlans:
    """The plans of a module's graphs, and its packed constants; safe to use from many threads.

    constants: by digest. module: the digest of a saved module, whose plans are kept on disk.
    """

    def __init__(self, constants: Mapping[str, np.ndarray], module: str | None = None) -> None:
        self._constants = constants
        self._module = module
        self.packed = PackedConstants()
        # One for all graphs: plans of a branch that is seldom taken would stay, and add up, in a cache of its own.
        self._kept: LRU[object, Plan] = LRU(0)
        self._sets: Counter[str] = Counter()  # of sizes that a graph was planned for, by its symbol
        self._planners: defaultdict[str, MemoryPlanner] = defaultdict(MemoryPlanner)
        self._speculations: dict[tuple[str, int, bool], Speculation] = {}
        self._templates: dict[tuple[str, int, bool], GraphTemplates] = {}
        self._lock = renewed_in_children(threading.Lock())

    def plan(
        self,
        graph: JSONGraph,
        values: Mapping[str, int],
        threads: int,
        max_plans: int = DEFAULT_MAX_PLANS,
        is_deterministic: bool = False,
    ) -> Plan:
        """Return the plan of a graph for these values of its symbolic dims; made once, and kept while it is in use, and
        among the last plans: `max_plans` times the number of graphs.

        Raises: StatusError, CodegenError.
        """
        with self._lock:
            self._sets.setdefault(graph.symbol, 0)
            self._kept.capacity = max(self._kept.capacity, max_plans * len(self._sets))
            key = (graph.symbol, tuple(sorted(values.items())), threads)
            return self._kept.get_or_make(key, lambda: self._make_plan(graph, values, threads, is_deterministic))

    def cache_info(self) -> dict[str, CacheInfo]:
        """Return the counts of plans, their templates, packed constants, and the primitives of the process."""
        return {
            "dnnl: plans": self._kept.info(),
            "dnnl: templates of plans": sum_infos(templates.info() for templates in list(self._templates.values())),
            "dnnl: packed constants": self.packed.info(),
            "dnnl: primitives": primitives_info(),
        }

    def _make_plan(self, graph: JSONGraph, values: Mapping[str, int], threads: int, is_deterministic: bool) -> Plan:
        """Return the plan for sizes that there is none for; what a saved module begins with is found on disk."""
        self._sets[graph.symbol] += 1
        if self._module is None or self._sets[graph.symbol] > 1:
            return self._plan_anew(graph, values, threads, is_deterministic)
        key = f"{self._module} {graph.symbol} {sorted(values.items())} {threads}"
        try:
            plan = recall_plan(key, self.packed, self._constants, threads)
        except StatusError:  # the library answers otherwise than it did
            self._forget_constants()
            plan = None
        if plan is None:
            plan = self._plan_anew(graph, values, threads, is_deterministic)
            remember_plan(key, plan, self._constants, threads)
        return plan

    def _plan_anew(self, graph: JSONGraph, values: Mapping[str, int], threads: int, is_deterministic: bool) -> Plan:
        from kernelyard_dnnl.speculation import Speculation  # inside: what is found on disk needs no lowering

        if is_deterministic:  # whatever was run before
            return self._lower_graph(graph, values, threads, False, Speculation())
        is_one_of_many = self._sets[graph.symbol] > FEW_SIZES and max(self._sets.values()) > MANY_SIZES
        key = graph.symbol, threads, is_one_of_many
        earlier = self._speculations.get(key)
        if earlier is not None:
            plan = self._plan_by_template(graph, values, threads, is_one_of_many)
            if plan is not None:
                return plan
            speculation = Speculation(earlier)
            with suppress(StatusError):  # a refusal may have been assumed wrongly
                plan = self._lower_graph(graph, values, threads, is_one_of_many, speculation)
                if speculation.has_held():
                    self._speculations[key] = speculation.keep()
                    return plan
        speculation = Speculation() if earlier is None else earlier.blind()
        plan = self._lower_graph(graph, values, threads, is_one_of_many, speculation)
        self._speculations[key] = speculation.keep()
        return plan

    def _plan_by_template(
        self, graph: JSONGraph, values: Mapping[str, int], threads: int, is_one_of_many: bool
    ) -> Plan | None:
        """Return the plan that a template makes, which may be traced for it; None where there is none."""
        from kernelyard_dnnl.graph_templates import GraphTemplates  # inside: of use where sizes change
        from kernelyard_dnnl.speculation import Speculation

        key = graph.symbol, threads, is_one_of_many
        templates = self._templates.get(key)
        if templates is None:
            templates = self._templates[key] = GraphTemplates()
        planner = self._planners[graph.symbol]
        try:
            plan = templates.plan(values, self.packed, planner)
            if plan is None and templates.may_grow(self._sets[graph.symbol]):
                answers = Speculation(self._speculations[key])
                make = partial(self._lowering, graph, threads, is_one_of_many)
                if templates.trace(make, values, threads, answers):
                    self._speculations[key] = answers.keep()
                    plan = templates.plan(values, self.packed, planner)
        except Exception:  # whatever ended it may have left constants half packed
            self._forget_constants()
            raise
        return plan

    def _lowering(
        self,
        graph: JSONGraph,
        threads: int,
        is_one_of_many: bool,
        values: Mapping[str, int] | DimValues,
        speculation: Speculation,
        begin: Callable[[Callable[[], object]], object] | None = None,
    ) -> Lowering:
        from kernelyard_dnnl.lowering import Lowering  # inside: as above

        return Lowering(
            graph,
            values,
            self._constants,
            self.packed,
            threads,
            begin=begin,
            is_one_of_many=is_one_of_many,
            speculation=speculation,
        )

    def _lower_graph(
        self, graph: JSONGraph, values: Mapping[str, int], threads: int, is_one_of_many: bool, speculation: Speculation
    ) -> Plan:
        begin = self.packed.preparation.begin
        lowering = self._lowering(graph, threads, is_one_of_many, values, speculation, begin)
        try:
            return _prepare_plan(lowering, self._planners[graph.symbol])
        except Exception:  # whatever ended it may have left constants half packed
            self._forget_constants()
            raise

    def _forget_constants(self) -> None:
        """Begin anew where some constants may have nothing in them."""
        self.packed = PackedConstants()
        self._templates.clear()

    def bind(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Bind a graph to the addresses of its arguments. Raises: as `plan`."""
        if len(graph.nodes) < MANY_NODES:
            return self._bind(graph, args, values, context)
        from kernelyard.runtime.api import collector_paused  # inside: a small graph is to load little

        with collector_paused():
            return self._bind(graph, args, values, context)

    def _bind(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        plan = self.plan(graph, values, context.threads, context.max_plans, context.is_deterministic)
        return _Binding(load_library(), plan, args, context).call()


class _Binding:
    """Binds a plan to addresses; owns the memory objects and argument arrays of one bound call."""

    def __init__(self, library: Library, plan: Plan, args: Sequence[BoundTensor], context: BindContext) -> None:
        self._library = library
        self._plan = plan
        self._args = args
        self._context = context  # its workspace must live as long as the call
        self._base = context.workspace(plan.nbytes)
        self._memories: defaultdict[Buffer, dict[tuple[int, MemoryDescriptor], Handle]] = defaultdict(dict)
        self._arrays: list[object] = []
        self._addresses: list[_Address] = []

    def call(self) -> BoundCall:
        """Return the native calls, and what keeps them alive."""
        stream = self._library.new_stream()
        steps: list[Step] = []
        parts: list[Operation | Part] = []
        for threads, operations in groupby(self._plan.operations, key=lambda each: each.code.threads):
            group = list(operations)
            part, saved = scope_steps(self._library, threads, [self._execution(each, stream) for each in group])
            steps += part
            parts += [Part("threads are set"), *group, Part("threads are reset")] if len(part) > len(group) else group
            self._arrays.append(saved)
        keep = [self._plan, self._context, stream, self._memories, self._arrays]
        return BoundCall(steps, keep, self._rebind(), partial(_describe_parts, parts))

    def _execution(self, operation: Operation, stream: Handle) -> NativeCall:
        if isinstance(operation.code, NativeKernel):
            return self._kernel_call(operation.code, operation.arguments)
        return self._primitive_call(operation.code, operation.arguments, stream)

    def _kernel_call(self, kernel: NativeKernel, arguments: Mapping[int, Value]) -> NativeCall:
        record = (ctypes.c_int64 * len(kernel.record))(*kernel.record)
        for index, value in arguments.items():
            place = kernel.places[index]
            record[place] = self._address(value.buffer) + value.nbytes_before
            if value.buffer.argument is not None:
                self._addresses.append(_Address(value.buffer.argument, record, place, value.nbytes_before))
        record[kernel.scratch_place] = self._base + self._plan.scratch
        self._arrays.append(record)
        return NativeCall(kernel.function, ctypes.addressof(record), 0, kernel.threads)

    def _primitive_call(self, primitive: Primitive, arguments: Mapping[int, Value], stream: Handle) -> NativeCall:
        memories = {index: self._memory(value) for index, value in arguments.items()}
        scratchpad = primitive.scratchpad
        if scratchpad is not None:
            scratch = memory_object(scratchpad, self._base + self._plan.scratch)
            memories[enums.ARG["scratchpad"]] = scratch
            self._arrays.append(scratch)
        array = execution_arguments(memories)
        self._arrays.append(array)
        execute = self._library.execute_address
        return NativeCall(execute, primitive.handle.address, stream.address, len(memories), ctypes.addressof(array))

    def _memory(self, value: Value) -> Handle:
        # Constants stay where they are: their objects serve all plans.
        buffer = value.buffer
        memories = self._memories[buffer] if buffer.constant is None else buffer.memories
        key = value.nbytes_before, value.descriptor
        found = memories.get(key)
        if found is None:
            found = memory_object(value.descriptor.native, self._address(buffer) + key[0])
            memories[key] = found
        return found

    def _address(self, buffer: Buffer) -> int:
        if buffer.argument is not None:
            return self._args[buffer.argument].address
        if buffer.constant is not None:
            return address_of(buffer.constant)
        return self._base + self._plan.offsets[buffer]

    def _rebind(self) -> dict[int, partial[None]]:
        """Return what moves the memory objects of each argument, and its addresses in records, to another address."""
        memories: dict[int, list[tuple[Handle, int]]] = {number: [] for number in range(len(self._args))}
        for buffer, found in self._memories.items():
            if buffer.argument is not None:
                memories[buffer.argument] += [(memory, nbytes_before) for (nbytes_before, _), memory in found.items()]
        moving: dict[int, partial[None]] = {}
        for number, handles in memories.items():
            addresses = tuple(each for each in self._addresses if each.argument == number)
            moving[number] = partial(_move, self._library, tuple(handles), addresses)
        return moving


def _describe_parts(parts: Sequence[Operation | Part]) -> list[Part]:
    return [part if isinstance(part, Part) else part.describe() for part in parts]


class _Address(NamedTuple):
    """The slot of an argument's address in an execution record."""

    argument: int
    record: ctypes.Array[ctypes.c_int64]
    place: int
    nbytes_before: int


def _move(
    library: Library, memories: Sequence[tuple[Handle, int]], addresses: Sequence[_Address], address: int
) -> None:
    for memory, nbytes_before in memories:
        library.call("dnnl_memory_set_data_handle", memory.address, address + nbytes_before)
    for _, record, place, nbytes_before in addresses:
        record[place] = address + nbytes_before


def _prepare_plan(lowering: Lowering, planner: MemoryPlanner) -> Plan:
    """Return the plan of a graph, with its constants packed."""
    try:
        return make_plan(lowering, planner)
    finally:
        lowering.packed.preparation.finish()


def implementations(
    graph: JSONGraph, values: Mapping[str, int], constants: Mapping[str, np.ndarray], threads: int
) -> list[tuple[str, str]]:
    """Return the oneDNN implementations of a graph at these values of its symbolic dims: (node, implementation).

    Raises: StatusError or CodegenError where oneDNN has nothing.
    """
    from kernelyard_dnnl.lowering import Lowering  # inside: as above

    lowering = Lowering(graph, values, constants, PackedConstants(), threads)
    return _prepare_plan(lowering, MemoryPlanner()).implementations
