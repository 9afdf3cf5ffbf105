"""BoundProgram: an execution plan bound to memory; IOBinding: how a tensor enters or leaves it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.cached_property import cached_property
from kernelyard.errors import KernelyardError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.memory import REBIND_ALIGNMENT, Workspace
from kernelyard.runtime.abi.module import BindContext, BoundCall, BoundTensor, NativeCall
from kernelyard.runtime.abi.module import Step as NativeStep
from kernelyard.runtime.execute.call_table import CallTable, TimedStep
from kernelyard.runtime.execute.fast_call import FastCall, FastCallInput, fast_call
from kernelyard.runtime.execute.result_memory import ResultMemory
from kernelyard.runtime.execute.step_errors import StepLabel, bind_error, label_of
from kernelyard.runtime.lru import CacheInfo
from kernelyard.runtime.program.execution_plan import ExecutionPlan
from kernelyard.runtime.program.program import Step

if TYPE_CHECKING:
    from kernelyard.runtime.device.array import AnyArray
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.executable import Executable

# From this size on a tensor moves by telling the steps its address; below, copying it is quicker.
REBIND_BYTES = 1 << 14
# Memory for a result that is not copied is lent and watched in Python, which takes longer than copying this much.
REBIND_RESULT_BYTES = 1 << 17

Rebinder = Callable[[int], None]
Outputs: TypeAlias = "Sequence[np.ndarray | None]"
"""Arrays that callers gave for results; none where all results are made here."""
_RESULTS = ResultMemory()


def idle_results() -> CacheInfo:
    """Return what this process keeps of results that callers have let go of."""
    return _RESULTS.info()


class StepHook(NamedTuple):
    """`decide(step, run, inputs, outputs)` decides about a step: `run()` runs it. On the CPU it is a `TimedStep`.

    reads: whether it looks at elements; else those that lie on a device stay there.
    """

    decide: Callable[[Step, Callable[[], None], Sequence[np.ndarray], Sequence[np.ndarray]], None]
    reads: bool = True

    def within(self, limit: CallLimit) -> StepHook:
        """Return a hook that looks at a limit before each step."""

        def decide(
            step: Step, run: Callable[[], None], inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
        ) -> None:
            limit.check()
            self.decide(step, run, inputs, outputs)

        return StepHook(decide, self.reads)


class AnyBoundProgram(Protocol):
    """A plan bound to memory, on whatever device."""

    @property
    def try_fast_path(self) -> Callable[..., Sequence[AnyArray] | None]:
        """`try_fast_path(*values)`: the results, or None where a value is no array of the very shape and dtype."""
        ...

    def run(self, arrays: Sequence[Any], limit: CallLimit | None = None, outputs: Outputs = ()) -> Sequence[AnyArray]:
        """Results for arrays whose shapes are the plan's and whose dtypes are the inputs'.

        limit: what ends it early. outputs: for each result an array of its shape and dtype to write it to, or None; on
        devices they are left alone.
        """
        ...

    def run_stepwise(self, arrays: Sequence[Any], hook: StepHook) -> Sequence[AnyArray]:
        """Like `run`, one step at a time: `hook` decides about each."""
        ...


class IOBinding:
    """Binding of an input or output: its own buffer, and the functions that rebind the steps to another one.

    Without rebinders every tensor is copied through the buffer. slots: what the rebinders write, where that is all they
    do; a fast call writes there, too.
    """

    def __init__(self, buffer: np.ndarray, rebinders: Sequence[Rebinder] = (), slots: Sequence[int] = ()) -> None:
        self.buffer = buffer
        self.rebinders = tuple(rebinders)
        self.slots = tuple(slots)
        self._shape, self._dtype = buffer.shape, buffer.dtype
        self._home = self._address = memory.address_of(buffer)

    def _move(self, address: int) -> None:
        if address != self._address or self.slots:
            for rebinder in self.rebinders:
                rebinder(address)
            self._address = address

    def reset(self) -> None:
        """Make the steps use the buffer again."""
        self._move(self._home)

    def fill(self, array: np.ndarray) -> None:
        """Make the steps read `array`, which must live until they have run."""
        if array.flags.c_contiguous and array.dtype.isnative:
            address = memory.address_of(array)
            if address % REBIND_ALIGNMENT == 0:
                self._move(address)
                return
        self._move(self._home)
        self.buffer[...] = array

    def receive(self, given: np.ndarray | None) -> np.ndarray | None:
        """Return the array that the steps will write, `given` or a new one; None where `copy` is to follow."""
        if not self.rebinders:
            return None
        array = _RESULTS.empty(self._shape, self._dtype) if given is None else given
        address = memory.address_of(array)
        if address % REBIND_ALIGNMENT:
            self.reset()
            return None
        self._move(address)
        return array

    def copy(self, given: np.ndarray | None) -> np.ndarray:
        """Return the buffer's content, in `given` or in a new array."""
        if given is None:
            return self.buffer.copy()
        given[...] = self.buffer
        return given


class BoundProgram:
    """A plan bound to memory: inputs are copied or moved in, one table runs, results come out likewise.

    arena: holds `plan.arena_nbytes`. scratch: for what steps need while they run.
    """

    def __init__(
        self, plan: ExecutionPlan, executable: Executable, arena: np.ndarray, scratch: Workspace, threads: int
    ) -> None:
        self._plan = plan
        self._executable = executable
        self._memory = (arena, scratch)  # what the steps' addresses lie in
        self._arrays = self._allocate(arena)
        self._calls = self._bind_all(
            BindContext(threads, scratch, max_plans=executable.max_plans, is_deterministic=executable.is_deterministic)
        )
        self._table = self._make_table()
        inputs = self._make_inputs()
        self._moved = tuple((index, binding) for index, binding in inputs.items() if binding.rebinders)
        self._copied = tuple((index, binding.buffer) for index, binding in inputs.items() if not binding.rebinders)
        self._results = tuple(self._make_results())
        self._result_buffers = tuple(binding.buffer for binding in self._results)
        self._copies_results = not any(binding.rebinders for binding in self._results)
        self._expected = tuple(
            FastCallInput(
                shape,
                dtypes.to_numpy(spec.dtype),
                inputs[index].buffer if index in inputs else None,
                inputs[index].slots if index in inputs else (),
            )
            for index, (shape, spec) in enumerate(zip(plan.input_shapes, plan.program.inputs, strict=True))
        )
        is_fast = self._copies_results and all(binding.slots for _, binding in self._moved)
        quick = fast_call(self._table, self._expected, self._result_buffers) if is_fast else None
        # `try_fast_path(*values)`: the results, or None where a value is no array of the very shape and dtype.
        # The one in Python gets a weak reference: else memory would wait for the garbage collector.
        self.try_fast_path: FastCall = quick or partial(BoundProgram._try_fast_path, weakref.proxy(self))

    def _allocate(self, arena: np.ndarray) -> list[np.ndarray]:
        """Return an array for every register."""
        plan = self._plan
        arrays: list[np.ndarray] = []
        for number, register in enumerate(plan.program.registers):
            shape = plan.shapes[number]
            if register.kind == "alias":
                arrays.append(arrays[register.source].reshape(shape))
            elif register.kind == "constant":
                arrays.append(self._executable.resident(register.digest))
            else:
                # A buffer that no step writes is never read either: it has no place of its own.
                arrays.append(memory.view_of(arena[plan.offsets.get(number, 0) :], shape, register.dtype))
        return arrays

    def _bind_all(self, context: BindContext) -> list[BoundCall]:
        tensors = [
            BoundTensor(memory.address_of(array), array.shape, register.dtype)
            for array, register in zip(self._arrays, self._plan.program.registers, strict=True)
        ]
        with self._executable.lock:
            return [self._bind(step, tensors, context) for step in self._plan.program.steps]

    def _bind(self, step: Step, tensors: Sequence[BoundTensor], context: BindContext) -> BoundCall:
        module = self._executable.modules[step.module]
        args = [tensors[register] for register in step.inputs + step.outputs]
        if self._executable.binds_for_one_thread(module):
            context = replace(context, threads=1)
        try:
            return module.bind(step.symbol, args, self._plan.values, context)
        except KernelyardError as error:
            error.where = error.where or step.label or None
            raise
        except Exception as error:
            raise bind_error(step.symbol, label_of(step, self._executable.modules), error) from error

    def _make_table(self) -> CallTable:
        """Return the native steps of all calls, with the program's jumps between them."""
        program = self._plan.program
        jumps = {jump.place: jump for jump in program.jumps}
        bound = zip(program.steps, self._calls, strict=True)
        steps: list[NativeStep] = []
        labels: list[StepLabel] = []
        begins: list[int] = []  # of each step and jump, in the table
        for place in range(len(program.steps) + len(jumps)):
            begins.append(len(steps))
            step, call = (None, None) if place in jumps else next(bound)
            native = call.steps if call else [NativeCall(0)]
            steps += native
            labels += [label_of(step, self._executable.modules) if step else StepLabel("a jump")] * len(native)
        for jump in program.jumps:
            target = begins[jump.target] if jump.target < len(begins) else len(steps)
            truth = memory.address_of(self._arrays[jump.condition]) if jump.condition >= 0 else 0
            steps[begins[jump.place]] = NativeCall(0, truth, n=target)
        return CallTable(steps, labels)

    def _make_inputs(self) -> dict[int, IOBinding]:
        """Return a binding for every input that the program reads, by its number."""
        plan, program = self._plan, self._plan.program
        results = {plan.roots[result] for result in program.results}
        bindings: dict[int, IOBinding] = {}
        for number, register in enumerate(program.registers):
            if register.kind == "input":
                may_move = number not in results
                rebinders = self._rebinders(number, REBIND_BYTES) if may_move else ()
                bindings[register.index] = IOBinding(
                    self._arrays[number], rebinders, self._slots(number) if rebinders else ()
                )
        return bindings

    def _make_results(self) -> list[IOBinding]:
        plan, program = self._plan, self._plan.program
        roots = [plan.roots[result] for result in program.results]

        def rebinders(root: int) -> Sequence[Rebinder]:
            may_move = program.registers[root].kind == "buffer" and roots.count(root) == 1
            return self._rebinders(root, REBIND_RESULT_BYTES) if may_move else ()

        return [
            IOBinding(self._arrays[result], rebinders(root))
            for result, root in zip(program.results, roots, strict=True)
        ]

    def _rebinders(self, root: int, least: int) -> Sequence[Rebinder]:
        """Return the functions that rebind every use of a register; none if it has fewer than `least` bytes, or a use
        cannot be rebound.
        """
        if self._arrays[root].nbytes < least:
            return ()
        uses = self._uses(root)
        is_moved = all(position in call.rebind for call, position in uses)
        return [call.rebind[position] for call, position in uses] if is_moved else ()

    def _slots(self, root: int) -> Sequence[int]:
        """Return the words that hold the address of a register; nothing when some use has it elsewhere."""
        uses = self._uses(root)
        is_known = all(position in call.slots for call, position in uses)
        return [call.slots[position] for call, position in uses] if is_known else ()

    def _uses(self, root: int) -> list[tuple[BoundCall, int]]:
        """List the uses of a register as an argument: the calls, and the positions of the arguments."""
        return [
            (call, position)
            for step, call in zip(self._plan.program.steps, self._calls, strict=True)
            for position, register in enumerate(step.inputs + step.outputs)
            if self._plan.roots[register] == root
        ]

    def _try_fast_path(self, *values: Any) -> Sequence[np.ndarray] | None:
        for value, expected in zip(values, self._expected, strict=True):
            if type(value) is not np.ndarray or value.dtype is not expected.dtype or value.shape != expected.shape:
                return None
        return self.run(values)

    def run(
        self, arrays: Sequence[np.ndarray], limit: CallLimit | None = None, outputs: Outputs = ()
    ) -> list[np.ndarray]:
        """See `AnyBoundProgram.run`."""
        for index, buffer in self._copied:
            buffer[...] = arrays[index]
        for index, binding in self._moved:
            binding.fill(arrays[index])
        if self._copies_results and not outputs:
            self._table.run(limit)
            return self._copies()
        outputs = outputs or (None,) * len(self._results)
        received = [binding.receive(given) for binding, given in zip(self._results, outputs, strict=True)]
        self._table.run(limit)
        return [
            binding.copy(given) if moved is None else moved
            for moved, binding, given in zip(received, self._results, outputs, strict=True)
        ]

    def _copies(self) -> list[np.ndarray]:
        copies: list[np.ndarray] = []
        for buffer in self._result_buffers:  # quicker than a comprehension where there are few, as there mostly are
            copies.append(buffer.copy())
        return copies

    @cached_property
    def _parts(self) -> list[tuple[Step, TimedStep, list[np.ndarray], list[np.ndarray]]]:
        """Each step by itself: what runs it, the arrays that it reads and those that it writes."""
        return [
            (
                step,
                TimedStep(
                    CallTable(call.steps, [label_of(step, self._executable.modules)] * len(call.steps)), call.describe
                ),
                [self._arrays[register] for register in step.inputs],
                [self._arrays[register] for register in step.outputs],
            )
            for step, call in zip(self._plan.program.steps, self._calls, strict=True)
        ]

    def run_stepwise(self, arrays: Sequence[np.ndarray], hook: StepHook) -> list[np.ndarray]:
        """Like `run`, one step at a time: `hook` decides about each."""
        for binding in (*(binding for _, binding in self._moved), *self._results):
            binding.reset()
        for index, binding in self._moved:
            binding.buffer[...] = arrays[index]
        for index, buffer in self._copied:
            buffer[...] = arrays[index]
        for step, run, inputs, outputs in self._parts:
            hook.decide(step, run, inputs, outputs)
        return self._copies()
