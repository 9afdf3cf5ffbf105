"""DeviceExecutionContext: the memory of one running call on a device, and the programs that are bound to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.runtime.device.driver import DeviceDriver, DeviceMemory, DeviceWorkspace
from kernelyard.runtime.execute.bound_device_program import BoundDeviceProgram
from kernelyard.runtime.execute.device_step_binder import DeviceConstants, DeviceStepBinder, DeviceSteps
from kernelyard.runtime.execute.execution_context import MIN_ARENA_NBYTES, ExecutionContext
from kernelyard.runtime.execute.fallback import fall_back
from kernelyard.runtime.execute.step_errors import RefusedError
from kernelyard.runtime.program.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    from kernelyard.runtime.execute.compiled_model import CompiledModel


class DeviceExecutionContext(ExecutionContext):
    """A context whose arena and scratch memory are the device's."""

    def __init__(self, driver: DeviceDriver, constants: DeviceConstants, is_temporary: bool) -> None:
        super().__init__(is_temporary)
        self._driver = driver
        self._constants = constants
        self._device_arena: DeviceMemory | None = None
        self._device_scratch = DeviceWorkspace(driver)
        self._device_steps: dict[int, DeviceSteps] = {}  # by the identity of the program, which they keep

    def _bind(self, plan: ExecutionPlan, executable: CompiledModel, threads: int) -> BoundDeviceProgram:
        held = self._device_arena.nbytes if self._device_arena else 0
        if self._device_arena is None or plan.arena_nbytes > held:
            self._device_arena = DeviceMemory(self._driver, max(plan.arena_nbytes, 2 * held, MIN_ARENA_NBYTES))
            self.forget()  # what is bound to the old arena would keep it
        scratch, is_profiled = (self._device_scratch, self._scratch), executable.is_profiled
        binder = DeviceStepBinder(self._driver, threads, *scratch, executable.max_plans, is_profiled)
        steps = self._device_steps.get(id(plan.program))
        if steps is None:
            steps = DeviceSteps(plan.program, executable, self._driver, self._constants)
            self._device_steps[id(plan.program)] = steps
        try:
            return BoundDeviceProgram(plan, steps, executable, binder, self._constants, self._device_arena)
        except RefusedError as refused:
            plan = fall_back(plan, refused, executable)
        return self._bind(plan, executable, threads)
