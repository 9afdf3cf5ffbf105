"""BoundDeviceProgram: an execution plan bound to a device's memory; feeds are copied there, and results stay there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard import dtypes
from kernelyard.cached_property import cached_property
from kernelyard.errors import KernelyardError
from kernelyard.runtime.abi.module import BoundCall, BoundTensor, Part
from kernelyard.runtime.device.array import AnyArray, Borrowed, DeviceArray, write
from kernelyard.runtime.device.driver import DeviceMemory, raise_queue_error
from kernelyard.runtime.device.tensor import Tensor
from kernelyard.runtime.execute.bound_program import REBIND_BYTES, Outputs, StepHook
from kernelyard.runtime.execute.call_table import CallTable, TimedStep
from kernelyard.runtime.execute.device_graph import Addresses, CapturedProgram
from kernelyard.runtime.execute.device_io_binding import DeviceIOBinding
from kernelyard.runtime.execute.device_step_binder import DeviceConstants, DeviceStepBinder, DeviceSteps
from kernelyard.runtime.execute.step_binder import bind_steps
from kernelyard.runtime.execute.step_errors import StepLabel, bind_error, describe_step, label_of
from kernelyard.runtime.program.execution_plan import ExecutionPlan
from kernelyard.runtime.program.program import Step

if TYPE_CHECKING:
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.compiled_model import CompiledModel


class BoundDeviceProgram:
    """A plan bound to an arena in a device's memory. Feeds may lie there or on the host; results are `DeviceArray`s.

    Raises: RefusedError where functions that have fallbacks cannot be bound.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        steps: DeviceSteps,
        executable: CompiledModel,
        binder: DeviceStepBinder,
        constants: DeviceConstants,
        arena: DeviceMemory,
    ) -> None:
        self._plan = plan
        self._steps = steps
        self._driver = binder.driver
        self._memory = (arena, constants, executable)  # what the steps' addresses lie in
        self._tensors = self._place_tensors(arena.address)
        self._calls = bind_steps(plan.program.steps, lambda step: self._bind(step, executable, binder), executable)
        counts = [len(call.steps) for call in self._calls]
        self._whole = CapturedProgram(
            self._driver,
            [step for call in self._calls for step in call.steps],
            [label for label, count in zip(steps.labels, counts, strict=True) for _ in range(count)],
            [each for each, count in zip(steps.capturable, counts, strict=True) for _ in range(count)],
        )
        self._inputs = self._bind_inputs()
        self._results = self._bind_results()
        self._buffer_addresses = tuple(binding.buffer.address for binding in self._results)
        self._expected = [
            (shape, dtypes.to_numpy(spec.dtype))
            for shape, spec in zip(plan.input_shapes, plan.program.inputs, strict=True)
        ]

    def _place_tensors(self, arena: int) -> list[BoundTensor]:
        plan, constants, offsets = self._plan, self._steps.addresses, self._plan.offsets
        # A buffer that no step writes is never read either: it has no place of its own.
        addresses = [constants[r] if r in constants else arena + offsets.get(r, 0) for r in plan.roots]
        registers = plan.program.registers
        return [BoundTensor(*each) for each in zip(addresses, plan.shapes, [r.dtype for r in registers], strict=True)]

    def _bind(self, step: Step, executable: CompiledModel, binder: DeviceStepBinder) -> BoundCall:
        module = executable.modules[step.module]
        args = [self._tensors[register] for register in step.inputs + step.outputs]
        try:
            return binder.bind(module, step, args, self._plan.values, partial(self._constants_of, step, executable))
        except KernelyardError as error:
            error.where = error.where or describe_step(label_of(step, executable.modules))
            raise
        except (Exception, SystemExit) as error:  # a vendor's code, which must not end the process
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
        found = [self._calls[number].rebind.get(position) for number, position in self._steps.uses[root]]
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
    def _parts(self) -> list[tuple[Step, Callable[..., TimedDeviceStep]]]:
        return [
            (step, partial(TimedDeviceStep, CallTable(call.steps, [label] * len(call.steps)), label, call.counters))
            for step, label, call in zip(self._plan.program.steps, self._steps.labels, self._calls, strict=True)
        ]

    def run_stepwise(self, arrays: Sequence[AnyArray], hook: StepHook) -> list[DeviceArray]:
        """See `AnyBoundProgram.run_stepwise`; the hook sees copies on the host, or no values: `StepHook.reads`."""
        self._move((*(binding.buffer.address for _, binding in self._inputs), *self._buffer_addresses))
        for index, binding in self._inputs:
            write(self._driver, binding.buffer.address, arrays[index])
        bring = self._download if hook.reads else self._unread
        for (step, timed), label in zip(self._parts, self._steps.labels, strict=True):
            inputs = [bring(self._tensors[register]) for register in step.inputs]
            tensors = [self._tensors[register] for register in step.outputs]
            outputs = list(map(bring, tensors))
            finish = partial(self._finish_part, label, tensors, outputs if hook.reads else ())
            hook.decide(step, timed(finish), inputs, outputs)
        results = self._new_results()
        for result, address in zip(results, self._buffer_addresses, strict=True):
            self._driver.copy(result.address, address, result.nbytes)
        self._release(arrays)
        return results

    def _finish_part(self, label: StepLabel, tensors: Sequence[BoundTensor], outputs: Sequence[np.ndarray]) -> None:
        """Wait for a step. Raises: DeviceError that names it, where it failed on the device."""
        try:
            self._driver.synchronize()
            for tensor, array in zip(tensors, outputs, strict=False):
                self._driver.download(tensor.address, array)
        except Exception as error:  # a vendor's code
            raise_queue_error(self._driver, describe_step(label), error)

    def _download(self, tensor: BoundTensor) -> np.ndarray:
        array = self._unread(tensor)
        self._driver.download(tensor.address, array)
        return array

    def _unread(self, tensor: BoundTensor) -> np.ndarray:
        return np.empty(tensor.shape, dtypes.to_numpy(tensor.dtype))


class TimedDeviceStep(TimedStep):
    """A step of a device, which has ended when `finish` returns; what the device's engine counted is inside of it."""

    def __init__(
        self,
        table: CallTable,
        label: StepLabel,
        counters: Callable[[], Sequence[tuple[Part, float]]] | None,
        finish: Callable[[], None],
    ) -> None:
        super().__init__(table, label, counters=counters)
        self._finish = finish

    def __call__(self) -> None:
        super().__call__()
        self._finish()

    def _run_timed(self) -> Sequence[float]:
        start = time.perf_counter()
        self()
        return [time.perf_counter() - start]
