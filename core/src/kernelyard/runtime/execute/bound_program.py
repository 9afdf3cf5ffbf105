"""BoundProgram: an execution plan bound to memory; IOBinding: how a tensor enters or leaves it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.cached_property import cached_property
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.memory import REBIND_ALIGNMENT
from kernelyard.runtime.abi.module import BoundTensor, NativeCall
from kernelyard.runtime.abi.module import Step as NativeStep
from kernelyard.runtime.execute.call_table import CallTable, TimedStep
from kernelyard.runtime.execute.fast_call import FastCall, FastCallInput, FastCallResult, fast_call
from kernelyard.runtime.execute.result_memory import ResultMemory
from kernelyard.runtime.execute.step_binder import Rebinder, StepBinder
from kernelyard.runtime.execute.step_errors import StepLabel
from kernelyard.runtime.lru import CacheInfo
from kernelyard.runtime.program.execution_plan import ExecutionPlan
from kernelyard.runtime.program.program import Jump, Step, Transfer

if TYPE_CHECKING:
    from kernelyard.runtime.device.array import AnyArray
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.loop_transfers import LoopTransfers

# From this size on a tensor moves by telling the steps its address; below, copying it is faster.
REBIND_BYTES = 1 << 14
# Smaller results are copied: tracking the memory of one that is not takes longer in Python than copying this much.
REBIND_RESULT_BYTES = 1 << 17

Outputs: TypeAlias = "Sequence[np.ndarray | None]"
"""Arrays that callers gave for results; none where all results are made here."""
_RESULTS = ResultMemory()


def idle_results() -> CacheInfo:
    """Return what this process keeps of results that callers have let go of."""
    return _RESULTS.info()


class StepHook(NamedTuple):
    """`decide(step, run, inputs, outputs)` decides about a step: `run()` runs it. It is a `TimedStep`.

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
        """Return the results for arrays whose shapes are the plan's and whose dtypes are the inputs'.

        limit: what ends it early. outputs: for each result an array of its shape and dtype to write it to, or None; on
        devices they are left alone.
        """
        ...

    def run_stepwise(self, arrays: Sequence[Any], hook: StepHook) -> Sequence[AnyArray]:
        """Run one step at a time; `hook` decides about each."""
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
        self._own_address = self._address = memory.address_of(buffer)
        # A new array for the result: for the steps to write to where there are rebinders, else a copy of the buffer.
        self.make = _RESULTS.allocator(buffer.shape, buffer.dtype) if self.rebinders else buffer.copy

    def _move(self, address: int) -> None:
        if address != self._address or self.slots:
            for rebinder in self.rebinders:
                rebinder(address)
            self._address = address

    def reset(self) -> None:
        """Make the steps use the buffer again."""
        self._move(self._own_address)

    def fill(self, array: np.ndarray) -> None:
        """Make the steps read `array`, which must live until they have run."""
        if array.flags.c_contiguous and array.dtype.isnative:
            address = memory.address_of(array)
            if address % REBIND_ALIGNMENT == 0:
                self._move(address)
                return
        self.reset()
        self.buffer[...] = array

    def receive(self, given: np.ndarray | None) -> np.ndarray | None:
        """Return the array that the steps will write, `given` or a new one; None where `copy` is to follow."""
        if not self.rebinders:
            return None
        array = self.make() if given is None else given
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

    arena: holds `plan.arena_nbytes`.
    """

    def __init__(self, plan: ExecutionPlan, binder: StepBinder, arena: np.ndarray) -> None:
        self._plan = plan
        self._binder = binder  # which has the scratch memory
        self._arena = arena
        self._bound = binder.bind(plan, memory.address_of(arena))
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
        moved = (*(binding for _, binding in self._moved), *self._results)
        self._is_fast = all(binding.slots for binding in moved if binding.rebinders)
        # `try_fast_path(*values)`: the results, or None where a value is no array of the very shape and dtype.
        # This one makes a built-in once that pays: most sizes that grow are run once. It gets a weak reference:
        # else memory would wait for the garbage collector.
        self.try_fast_path: FastCall = partial(BoundProgram._try_fast_path, weakref.proxy(self))

    def _array(self, number: int) -> np.ndarray:
        """Return the array of a register."""
        plan, root = self._plan, self._plan.roots[number]
        register, shape = plan.program.registers[root], plan.shapes[number]
        if register.kind == "constant":
            return self._binder.executable.resident(register.digest).reshape(shape)
        return np.ndarray(shape, dtypes.to_numpy(register.dtype), self._arena, plan.offsets.get(root, 0))

    def _make_table(self) -> CallTable:
        """Return the native steps of all calls, with the program's jumps and transfers between them."""
        program, binder, bound = self._plan.program, self._binder, self._bound
        if bound.are_rows and not program.jumps:
            return CallTable(bound.rows, binder.labels)
        transfers = self._loop_transfers
        numbers = iter(range(len(program.steps)))
        steps: list[NativeStep] = []
        labels: list[StepLabel] = []
        begins: list[int] = []  # of all that the program does in order, in the table
        for each in program.order:
            begins.append(len(steps))
            if isinstance(each, Jump):
                steps.append(NativeCall(0))
                labels.append(StepLabel("a jump"))
            elif isinstance(each, Transfer):
                assert transfers is not None
                steps.append(transfers.call(each))
                labels.append(StepLabel(f"a loop: {each.kind}"))
            else:
                number = next(numbers)
                calls = bound.call(number).steps
                steps += calls
                labels += [binder.labels[number]] * len(calls)
        for jump in program.jumps:
            target = begins[jump.target] if jump.target < len(begins) else len(steps)
            truth = bound.addresses[jump.condition] if jump.condition >= 0 else 0
            steps[begins[jump.place]] = NativeCall(0, truth, n=target)
        return CallTable(steps, labels)

    @cached_property
    def _loop_transfers(self) -> LoopTransfers | None:
        program = self._plan.program
        if not program.transfers:
            return None
        from kernelyard.runtime.execute.loop_transfers import LoopTransfers  # few programs have loops

        return LoopTransfers(program.transfers, self._tensor)

    def _tensor(self, number: int) -> BoundTensor:
        """Return the memory of a register."""
        register = self._plan.program.registers[number]
        return BoundTensor(self._bound.addresses[number], self._plan.shapes[number], register.dtype)

    @cached_property
    def _fixed(self) -> frozenset[int]:
        """The registers that transfers name, by the one whose bytes they show: they stay where they are."""
        named = (number for each in self._plan.program.transfers for number in (each.source, each.target))
        return frozenset(self._plan.roots[number] for number in named if number >= 0)

    def _make_inputs(self) -> dict[int, IOBinding]:
        """Return a binding for every input that the program reads, by its number."""
        plan, program = self._plan, self._plan.program
        results = {plan.roots[result] for result in program.results}
        bindings: dict[int, IOBinding] = {}
        for number, register in enumerate(program.registers):
            if register.kind == "input":
                may_move = number not in results
                buffer = self._array(number)
                rebinders = self._rebinders(number) if may_move and buffer.nbytes >= REBIND_BYTES else ()
                bindings[register.index] = IOBinding(buffer, rebinders, self._slots(number) if rebinders else ())
        return bindings

    def _make_results(self) -> list[IOBinding]:
        plan, program = self._plan, self._plan.program
        roots = [plan.roots[result] for result in program.results]

        def binding(result: int, root: int) -> IOBinding:
            buffer = self._array(result)
            may_move = program.registers[root].kind == "buffer" and roots.count(root) == 1
            rebinders = self._rebinders(root) if may_move and buffer.nbytes >= REBIND_RESULT_BYTES else ()
            return IOBinding(buffer, rebinders, self._slots(root) if rebinders else ())

        return list(map(binding, program.results, roots))

    def _rebinders(self, root: int) -> Sequence[Rebinder]:
        """Return the functions that rebind every use of a register; none if a use cannot be rebound."""
        if root in self._fixed:
            return ()
        found = [self._bound.rebinder(*use) for use in self._binder.uses[root]]
        known = [rebinder for rebinder in found if rebinder is not None]
        return known if len(known) == len(found) else ()

    def _slots(self, root: int) -> Sequence[int]:
        """Return the words that hold the address of a register; nothing when some use has it elsewhere."""
        found = [self._bound.slot(*use) for use in self._binder.uses[root]]
        known = [slot for slot in found if slot is not None]
        return known if len(known) == len(found) else ()

    def _try_fast_path(self, *values: Any) -> Sequence[np.ndarray] | None:
        for value, expected in zip(values, self._expected, strict=True):
            if type(value) is not np.ndarray or value.dtype is not expected.dtype or value.shape != expected.shape:
                return None
        if self._is_fast:
            self._is_fast = False
            self.try_fast_path = self._make_fast_call() or self.try_fast_path
        return self.run(values)

    def _make_fast_call(self) -> FastCall | None:
        results = [FastCallResult(binding.make, binding.slots) for binding in self._results]
        return fast_call(self._table, self._expected, results)

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
        for buffer in self._result_buffers:  # faster than a comprehension where there are few, as there mostly are
            copies.append(buffer.copy())
        return copies

    @cached_property
    def _parts(self) -> list[tuple[Step, TimedStep, list[np.ndarray], list[np.ndarray]]]:
        """Each step by itself: what runs it, the arrays that it reads and those that it writes."""
        parts: list[tuple[Step, TimedStep, list[np.ndarray], list[np.ndarray]]] = []
        for number, (step, label) in enumerate(zip(self._plan.program.steps, self._binder.labels, strict=True)):
            call = self._bound.call(number)
            timed = TimedStep(CallTable(call.steps, [label] * len(call.steps)), label, call.describe, call.counters)
            parts.append((step, timed, list(map(self._array, step.inputs)), list(map(self._array, step.outputs))))
        return parts

    def run_stepwise(self, arrays: Sequence[np.ndarray], hook: StepHook) -> list[np.ndarray]:
        """Run one step at a time; `hook` decides about each."""
        for binding in (*(binding for _, binding in self._moved), *self._results):
            binding.reset()
        for index, binding in self._moved:
            binding.buffer[...] = arrays[index]
        for index, buffer in self._copied:
            buffer[...] = arrays[index]
        for step, run, inputs, outputs in self._parts:
            hook.decide(step, run, inputs, outputs)
        return self._copies()
