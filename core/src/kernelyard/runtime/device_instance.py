"""DeviceInstance: a plan bound to a device's memory; feeds are copied there, and results back.

Modules whose functions work on host memory take part too: their arguments are copied to the host and back around them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import DeviceError, ExecutionError, KernelyardError
from kernelyard.runtime import memory
from kernelyard.runtime.call_table import CallTable
from kernelyard.runtime.device_driver import DeviceDriver, DeviceMemory, DeviceWorkspace
from kernelyard.runtime.instance import Around
from kernelyard.runtime.lane import MIN_ARENA_NBYTES, Lane
from kernelyard.runtime.memory import Workspace
from kernelyard.runtime.module import BindContext, BoundCall, BoundTensor, RuntimeModule
from kernelyard.runtime.plan import Plan
from kernelyard.runtime.program import Step

if TYPE_CHECKING:
    from kernelyard.runtime.executable import Executable


def device_lanes(driver: DeviceDriver, executable: Executable) -> Callable[[bool], Lane]:
    """What makes the lanes of a machine on a device; they share its constants."""
    constants = DeviceConstants(driver, executable)
    return lambda is_spare: DeviceLane(driver, constants, is_spare)


class DeviceConstants:
    """An executable's constants on a device, each copied when it is first asked for."""

    def __init__(self, driver: DeviceDriver, executable: Executable) -> None:
        self._driver = driver
        self._executable = executable
        self._resident: dict[str, DeviceMemory] = {}
        self._lock = Lock()

    def address(self, digest: str) -> int:
        """Where a constant is."""
        with self._lock:
            if digest not in self._resident:
                array = self._executable.resident(digest)
                self._resident[digest] = DeviceMemory(self._driver, array.nbytes)
                self._driver.upload(self._resident[digest].address, array)
            return self._resident[digest].address


class DeviceLane(Lane):
    """A lane whose arena and scratch memory are the device's."""

    def __init__(self, driver: DeviceDriver, constants: DeviceConstants, is_spare: bool) -> None:
        super().__init__(is_spare)
        self._driver = driver
        self._constants = constants
        self._device_arena: DeviceMemory | None = None
        self._device_scratch = DeviceWorkspace(driver)

    def _bind(self, plan: Plan, executable: Executable, threads: int) -> DeviceInstance:
        held = self._device_arena.nbytes if self._device_arena else 0
        if self._device_arena is None or plan.arena_nbytes > held:
            self._device_arena = DeviceMemory(self._driver, max(plan.arena_nbytes, 2 * held, MIN_ARENA_NBYTES))
            self.forget()  # what is bound to the old arena would keep it
        binder = Binder(self._driver, threads, self._device_scratch, self._scratch)
        return DeviceInstance(plan, executable, binder, self._constants, self._device_arena)


class Binder:
    """Binds functions of modules to a device's memory; those of the host by way of copies."""

    def __init__(self, driver: DeviceDriver, threads: int, scratch: DeviceWorkspace, host_scratch: Workspace) -> None:
        self.driver = driver
        self._on_device = BindContext(threads, scratch, driver)
        self._on_host = BindContext(threads, host_scratch)

    def bind(self, module: RuntimeModule, step: Step, args: Sequence[BoundTensor], values: dict[str, int]) -> BoundCall:
        """A call of a step's function on tensors of the device.

        Raises: DeviceError for a module of another kind of device, ExecutionError.
        """
        if module.device_kind == self.driver.kind:
            return module.bind(step.symbol, args, values, self._on_device)
        if module.device_kind != "cpu":
            raise DeviceError(
                f"the {module.kind} module does not run here", found=module.device_kind, expected=self.driver.kind
            )
        copies = [memory.aligned_empty(arg.shape, arg.dtype) for arg in args]
        on_host = [BoundTensor(memory.address_of(c), c.shape, a.dtype) for c, a in zip(copies, args, strict=True)]
        call = module.bind(step.symbol, on_host, values, self._on_host)
        moved = list(zip(args, copies, strict=True))
        down = [partial(self.driver.download, arg.address, copy) for arg, copy in moved[: len(step.inputs)]]
        up = [partial(self.driver.upload, arg.address, copy) for arg, copy in moved[len(step.inputs) :]]
        return BoundCall([*down, *call.steps, *up], [*call.keep, call, copies, self._on_host])


class DeviceInstance:
    """A plan bound to an arena in a device's memory."""

    def __init__(
        self, plan: Plan, executable: Executable, binder: Binder, constants: DeviceConstants, arena: DeviceMemory
    ) -> None:
        self._plan = plan
        self._driver = binder.driver
        self._memory = (arena, constants, executable)  # what the steps' addresses lie in
        self._tensors = self._place(arena, constants)
        with executable.lock:
            self._calls = [self._bind(step, executable, binder) for step in plan.program.steps]
        labels = [step.label or step.symbol for step in plan.program.steps]
        self._table = CallTable(
            [step for call in self._calls for step in call.steps],
            [name for name, call in zip(labels, self._calls, strict=True) for _ in call.steps],
        )
        registers = plan.program.registers
        self._inputs = [(r.index, self._tensors[n]) for n, r in enumerate(registers) if r.kind == "input"]
        self._results = [self._tensors[number] for number in plan.program.results]
        self._expected = [
            (shape, dtypes.to_numpy(spec.dtype))
            for shape, spec in zip(plan.input_shapes, plan.program.inputs, strict=True)
        ]

    def _place(self, arena: DeviceMemory, constants: DeviceConstants) -> list[BoundTensor]:
        plan = self._plan
        tensors: list[BoundTensor] = []
        for number, register in enumerate(plan.program.registers):
            if register.kind == "alias":
                address = tensors[register.source].address
            elif register.kind == "constant":
                address = constants.address(register.digest)
            else:
                address = arena.address + plan.offsets.get(number, 0)
            tensors.append(BoundTensor(address, plan.shapes[number], register.dtype))
        return tensors

    def _bind(self, step: Step, executable: Executable, binder: Binder) -> BoundCall:
        module = executable.modules[step.module]
        args = [self._tensors[register] for register in step.inputs + step.outputs]
        try:
            return binder.bind(module, step, args, self._plan.values)
        except KernelyardError as error:
            error.where = error.where or step.label or None
            raise
        except Exception as error:
            raise ExecutionError(
                f"the {module.kind} module cannot prepare {step.symbol} for these shapes",
                where=step.label or None,
                found=f"{type(error).__name__}: {error}",
            ) from error

    def attempt(self, *values: Any) -> Sequence[np.ndarray] | None:
        """The results, or None where a value is no array of the very shape and dtype."""
        for value, (shape, dtype) in zip(values, self._expected, strict=True):
            if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                return None
        return self.run(values)

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """See `AnyInstance.run`."""
        self._upload(arrays)
        self._table.run()
        return [self._download(tensor) for tensor in self._results]

    def _upload(self, arrays: Sequence[np.ndarray]) -> None:
        for index, tensor in self._inputs:
            array = arrays[index]
            native = array.dtype.newbyteorder("=")
            self._driver.upload(tensor.address, np.ascontiguousarray(array, native).reshape(tensor.shape))

    def _download(self, tensor: BoundTensor) -> np.ndarray:
        array = np.empty(tensor.shape, dtypes.to_numpy(tensor.dtype))
        self._driver.download(tensor.address, array)
        return array

    @cached_property
    def _parts(self) -> list[tuple[Step, CallTable]]:
        return [
            (step, CallTable(call.steps, [step.label or step.symbol] * len(call.steps)))
            for step, call in zip(self._plan.program.steps, self._calls, strict=True)
        ]

    def run_stepwise(self, arrays: Sequence[np.ndarray], around: Around) -> list[np.ndarray]:
        """See `AnyInstance.run_stepwise`; `around` sees copies on the host."""
        self._upload(arrays)
        for step, table in self._parts:
            inputs = [self._download(self._tensors[register]) for register in step.inputs]
            tensors = [self._tensors[register] for register in step.outputs]
            outputs = list(map(self._download, tensors))
            around(step, partial(self._run_part, table, tensors, outputs), inputs, outputs)
        return [self._download(tensor) for tensor in self._results]

    def _run_part(self, table: CallTable, tensors: Sequence[BoundTensor], outputs: Sequence[np.ndarray]) -> None:
        table.run()
        for tensor, array in zip(tensors, outputs, strict=True):
            self._driver.download(tensor.address, array)
