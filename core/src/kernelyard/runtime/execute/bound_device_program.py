"""BoundDeviceProgram: an execution plan bound to a device's memory; feeds are copied there, and results stay there.

Modules whose functions work on host memory take part too: their arguments are copied to the host and back around them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard import dtypes
from kernelyard.cached_property import cached_property
from kernelyard.errors import DeviceError, KernelyardError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.abi.memory import Workspace
from kernelyard.runtime.abi.module import DEFAULT_MAX_PLANS, BindContext, BoundCall, BoundTensor, RuntimeModule
from kernelyard.runtime.device.array import AnyArray, Borrowed, DeviceArray, write
from kernelyard.runtime.device.driver import DeviceDriver, DeviceMemory, DeviceWorkspace
from kernelyard.runtime.device.tensor import Tensor
from kernelyard.runtime.execute.bound_program import REBIND_BYTES, Outputs, StepHook
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.execute.device_graph import Addresses, CapturedProgram
from kernelyard.runtime.execute.device_io_binding import DeviceIOBinding
from kernelyard.runtime.execute.execution_context import MIN_ARENA_NBYTES, ExecutionContext
from kernelyard.runtime.execute.fallback import fall_back
from kernelyard.runtime.execute.step_binder import bind_steps, uses_of_inputs_and_results
from kernelyard.runtime.execute.step_errors import RefusedError, bind_error, check_bound, label_of
from kernelyard.runtime.program.execution_plan import ExecutionPlan
from kernelyard.runtime.program.program import Program, Step

if TYPE_CHECKING:
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.compiled_model import CompiledModel


class DeviceConstants:
    """An executable's constants on a device, each copied when it is first asked for."""

    def __init__(self, driver: DeviceDriver, executable: CompiledModel) -> None:
        self._driver = driver
        self._executable = executable
        self._resident: dict[str, DeviceArray] = {}
        self._lock = renewed_in_children(Lock())

    def address(self, digest: str) -> int:
        """Return the device address of a constant."""
        return self.array(digest).address

    def array(self, digest: str) -> DeviceArray:
        """Return a constant."""
        with self._lock:
            if digest not in self._resident:
                self._resident[digest] = DeviceArray.of(self._driver, self._executable.resident(digest))
            return self._resident[digest]


class DeviceExecutionContext(ExecutionContext):
    """A context whose arena and scratch memory are the device's."""

    def __init__(self, driver: DeviceDriver, constants: DeviceConstants, is_temporary: bool) -> None:
        super().__init__(is_temporary)
        self._driver = driver
        self._constants = constants
        self._device_arena: DeviceMemory | None = None
        self._device_scratch = DeviceWorkspace(driver)
        self._programs: dict[int, DeviceProgram] = {}  # by the identity of the program, which they keep

    def _bind(self, plan: ExecutionPlan, executable: CompiledModel, threads: int) -> BoundDeviceProgram:
        held = self._device_arena.nbytes if self._device_arena else 0
        if self._device_arena is None or plan.arena_nbytes > held:
            self._device_arena = DeviceMemory(self._driver, max(plan.arena_nbytes, 2 * held, MIN_ARENA_NBYTES))
            self.forget()  # what is bound to the old arena would keep it
        binder = Binder(self._driver, threads, self._device_scratch, self._scratch, executable.max_plans)
        facts = self._programs.get(id(plan.program))
        if facts is None:
            facts = DeviceProgram(plan.program, executable, self._driver, self._constants)
            self._programs[id(plan.program)] = facts
        try:
            return BoundDeviceProgram(plan, facts, executable, binder, self._constants, self._device_arena)
        except RefusedError as refused:
            plan = fall_back(plan, refused, executable)
        return self._bind(plan, executable, threads)


class DeviceProgram:
    """Keep what the binding of a program takes and does not depend on sizes.

    labels: of the steps. capturable: whether each may be captured. addresses: of constants, by register. uses: see
    `uses_of_inputs_and_results`.
    """

    def __init__(
        self, program: Program, executable: CompiledModel, driver: DeviceDriver, constants: DeviceConstants
    ) -> None:
        modules = executable.modules
        self.program = program
        self.labels = [label_of(step, modules) for step in program.steps]
        self.capturable = [
            modules[step.module].is_capturable and modules[step.module].device_kind == driver.kind
            for step in program.steps
        ]
        self.addresses = {
            number: constants.address(register.digest)
            for number, register in enumerate(program.registers)
            if register.kind == "constant"
        }
        self.uses = uses_of_inputs_and_results(program)


class Binder:
    """Binds functions of modules to a device's memory; those of the host by way of copies."""

    def __init__(
        self,
        driver: DeviceDriver,
        threads: int,
        scratch: DeviceWorkspace,
        host_scratch: Workspace,
        max_plans: int = DEFAULT_MAX_PLANS,
    ) -> None:
        self.driver = driver
        self._on_device = BindContext(threads, scratch, driver, max_plans=max_plans)
        self._by_outputs: dict[int, BindContext] = {}
        self._on_host = BindContext(threads, host_scratch, max_plans=max_plans)

    def bind(
        self,
        module: RuntimeModule,
        step: Step,
        args: Sequence[BoundTensor],
        values: dict[str, int],
        constants: Callable[[], Mapping[int, np.ndarray]],
    ) -> BoundCall:
        """Return a call of a step's function on tensors of the device; `constants` gives those of its arguments that
        are on the host too, by number.

        Raises: DeviceError for a module of another kind of device, ExecutionError.
        """
        if module.device_kind == self.driver.kind:
            count = len(step.outputs)
            context = self._by_outputs.get(count)
            if context is None:
                context = self._by_outputs[count] = replace(self._on_device, num_outputs=count)
            return check_bound(module.bind(step.symbol, args, values, context))
        if module.device_kind != "cpu":
            raise DeviceError(
                f"the {module.kind} module does not run here", found=module.device_kind, expected=self.driver.kind
            )
        known = constants()
        copies = [
            known[number] if number in known else memory.aligned_empty(arg.shape, arg.dtype)
            for number, arg in enumerate(args)
        ]
        on_host = [BoundTensor(memory.address_of(c), c.shape, a.dtype) for c, a in zip(copies, args, strict=True)]
        call = check_bound(module.bind(step.symbol, on_host, values, self._on_host))
        moved = [(number, arg.address, copy) for number, (arg, copy) in enumerate(zip(args, copies, strict=True))]
        inputs, outputs = moved[: len(step.inputs)], moved[len(step.inputs) :]
        down = [partial(self.driver.download, at, copy) for number, at, copy in inputs if number not in known]
        up = [partial(self.driver.upload, at, copy) for _, at, copy in outputs]
        return BoundCall([*down, *call.steps, *up], [*call.keep, call, copies, self._on_host])


class BoundDeviceProgram:
    """A plan bound to an arena in a device's memory. Feeds may lie there or on the host; results are `DeviceArray`s.

    Raises: RefusedError where functions that have fallbacks cannot be bound.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        facts: DeviceProgram,
        executable: CompiledModel,
        binder: Binder,
        constants: DeviceConstants,
        arena: DeviceMemory,
    ) -> None:
        self._plan = plan
        self._facts = facts
        self._driver = binder.driver
        self._memory = (arena, constants, executable)  # what the steps' addresses lie in
        self._tensors = self._place(arena.address)
        self._calls = bind_steps(plan.program.steps, lambda step: self._bind(step, executable, binder), executable)
        counts = [len(call.steps) for call in self._calls]
        self._whole = CapturedProgram(
            self._driver,
            [step for call in self._calls for step in call.steps],
            [label for label, count in zip(facts.labels, counts, strict=True) for _ in range(count)],
            [each for each, count in zip(facts.capturable, counts, strict=True) for _ in range(count)],
        )
        self._inputs = self._bind_inputs()
        self._results = self._bind_results()
        self._buffer_addresses = tuple(binding.buffer.address for binding in self._results)
        self._expected = [
            (shape, dtypes.to_numpy(spec.dtype))
            for shape, spec in zip(plan.input_shapes, plan.program.inputs, strict=True)
        ]

    def _place(self, arena: int) -> list[BoundTensor]:
        plan, constants, offsets = self._plan, self._facts.addresses, self._plan.offsets
        # A buffer that no step writes is never read either: it has no place of its own.
        addresses = [constants[r] if r in constants else arena + offsets.get(r, 0) for r in plan.roots]
        registers = plan.program.registers
        return [BoundTensor(*each) for each in zip(addresses, plan.shapes, [r.dtype for r in registers], strict=True)]

    def _bind(self, step: Step, executable: CompiledModel, binder: Binder) -> BoundCall:
        module = executable.modules[step.module]
        args = [self._tensors[register] for register in step.inputs + step.outputs]
        try:
            return binder.bind(module, step, args, self._plan.values, partial(self._constants_of, step, executable))
        except KernelyardError as error:
            error.where = error.where or step.label or None
            raise
        except Exception as error:
            raise bind_error(step.symbol, label_of(step, executable.modules), error) from error

    def _constants_of(self, step: Step, executable: CompiledModel) -> dict[int, np.ndarray]:
        registers = [self._plan.program.registers[register] for register in step.inputs]
        return {n: executable.resident(each.digest) for n, each in enumerate(registers) if each.kind == "constant"}

    def _bind_inputs(self) -> list[tuple[int, DeviceIOBinding]]:
        """Return a binding for every input that has a register, with the input's number."""
        plan, program = self._plan, self._plan.program
        results = {plan.roots[result] for result in program.results}
        bindings: list[tuple[int, DeviceIOBinding]] = []
        for number, register in enumerate(program.registers):
            if register.kind == "input":
                buffer = self._tensors[number]
                may_move = number not in results and buffer.nbytes >= REBIND_BYTES
                rebinders = self._rebinders(number) if may_move else ()
                bindings.append((register.index, DeviceIOBinding(self._driver, buffer, rebinders)))
        return bindings

    def _bind_results(self) -> list[DeviceIOBinding]:
        """Return a binding for every result: it is written where the caller gets it, unless no step writes it, or it is
        a result twice."""
        plan, program = self._plan, self._plan.program
        roots = [plan.roots[result] for result in program.results]
        return [
            DeviceIOBinding(
                self._driver,
                self._tensors[result],
                self._rebinders(root) if program.registers[root].kind == "buffer" and roots.count(root) == 1 else (),
            )
            for result, root in zip(program.results, roots, strict=True)
        ]

    def _rebinders(self, root: int) -> Sequence[Callable[[int], None]]:
        """Return the functions that rebind every use of a register; none when some use cannot be rebound."""
        found = [self._calls[number].rebind.get(position) for number, position in self._facts.uses[root]]
        known = [rebinder for rebinder in found if rebinder is not None]
        return known if len(known) == len(found) else ()

    def try_fast_path(self, *values: Any) -> Sequence[DeviceArray] | None:
        """Return the results, or None where a value is no array of the very shape and dtype, of the host or of this
        device.
        """
        arrays: list[AnyArray] = []
        for value, (shape, dtype) in zip(values, self._expected, strict=True):
            array = value.array if type(value) is Tensor else value
            is_here = type(array) is np.ndarray or (type(array) is DeviceArray and array.driver is self._driver)
            if not is_here or array.dtype != dtype or array.shape != shape:
                return None
            arrays.append(array)
        return self.run(arrays)

    def run(
        self, arrays: Sequence[AnyArray], limit: CallLimit | None = None, outputs: Outputs = ()
    ) -> list[DeviceArray]:
        """See `AnyBoundProgram.run`; once the device has its work, no limit ends it."""
        entered = tuple([binding.enter(arrays[index]) for index, binding in self._inputs])
        results = self._new_results()
        own = [r.address if b.may_move else b.buffer.address for b, r in zip(self._results, results, strict=True)]
        # The callers' own places first; where these are new, a graph that writes to the arena: copies take less than
        # launches.
        addresses = self._whole.run(((*entered, *own), (*entered, *self._buffer_addresses)), self._move)
        for result, address in zip(results, addresses[len(entered) :], strict=True):
            if address != result.address:
                self._driver.copy(result.address, address, result.nbytes)
        self._release(arrays)
        return results

    def _new_results(self) -> list[DeviceArray]:
        buffers = [binding.buffer for binding in self._results]
        return [DeviceArray.empty(self._driver, buffer.shape, dtypes.to_numpy(buffer.dtype)) for buffer in buffers]

    def _move(self, addresses: Addresses) -> None:
        for (_, binding), address in zip(self._inputs, addresses, strict=False):
            binding.move(address)
        for binding, address in zip(self._results, addresses[len(self._inputs) :], strict=True):
            binding.move(address)

    def _release(self, arrays: Sequence[AnyArray]) -> None:
        """Let the owners of borrowed memory write to it, or give it back, once this returns: their streams wait for
        ours, or we do."""
        borrowed = [a.owner.stream for a in arrays if type(a) is DeviceArray and type(a.owner) is Borrowed]
        if None in borrowed:
            self._driver.synchronize()
            return
        for stream in set(borrowed):
            self._driver.share_with(stream)

    @cached_property
    def _parts(self) -> list[tuple[Step, CallTable]]:
        return [
            (step, CallTable(call.steps, [label] * len(call.steps)))
            for step, label, call in zip(self._plan.program.steps, self._facts.labels, self._calls, strict=True)
        ]

    def run_stepwise(self, arrays: Sequence[AnyArray], hook: StepHook) -> list[DeviceArray]:
        """See `AnyBoundProgram.run_stepwise`; the hook sees copies on the host, or no values: `StepHook.reads`."""
        self._move((*(binding.buffer.address for _, binding in self._inputs), *self._buffer_addresses))
        for index, binding in self._inputs:
            write(self._driver, binding.buffer.address, arrays[index])
        bring = self._download if hook.reads else self._unread
        for step, table in self._parts:
            inputs = [bring(self._tensors[register]) for register in step.inputs]
            tensors = [self._tensors[register] for register in step.outputs]
            outputs = list(map(bring, tensors))
            run = partial(self._run_part, table, tensors, outputs if hook.reads else ())
            hook.decide(step, run, inputs, outputs)
        results = self._new_results()
        for result, address in zip(results, self._buffer_addresses, strict=True):
            self._driver.copy(result.address, address, result.nbytes)
        self._release(arrays)
        return results

    def _run_part(self, table: CallTable, tensors: Sequence[BoundTensor], outputs: Sequence[np.ndarray]) -> None:
        table.run()
        self._driver.synchronize()
        for tensor, array in zip(tensors, outputs, strict=False):
            self._driver.download(tensor.address, array)

    def _download(self, tensor: BoundTensor) -> np.ndarray:
        array = self._unread(tensor)
        self._driver.download(tensor.address, array)
        return array

    def _unread(self, tensor: BoundTensor) -> np.ndarray:
        return np.empty(tensor.shape, dtypes.to_numpy(tensor.dtype))
