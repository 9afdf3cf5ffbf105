"""Programs bound to operands on a device: their kernels alone, without what a call does around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import kernelyard as ky
from kernelyard import dtypes
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.memory import Workspace
from kernelyard.runtime.abi.module import BoundCall, BoundTensor
from kernelyard.runtime.device.array import DeviceArray
from kernelyard.runtime.device.driver import DeviceMemory, DeviceWorkspace
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.execute.device_step_binder import DeviceConstants, DeviceStepBinder
from kernelyard.runtime.program.execution_plan import ExecutionPlan
from kernelyard.runtime.program.program import Program
from kernelyard_cuda.driver_api import CudaDriver


class Shared:
    """State that bindings of a program to one device share."""

    def __init__(self, exe: ky.Executable, driver: CudaDriver) -> None:
        self.constants = DeviceConstants(driver, exe)
        self.binder = DeviceStepBinder(driver, 1, DeviceWorkspace(driver), Workspace())


class BoundProgram:
    """A program on memory of its own: feeds are copied there once; constants and scratch memory are shared.

    Calling it puts the program's steps on the device's stream, and nothing else.
    Raises: ValueError for a program without steps.
    """

    def __init__(self, exe: ky.Executable, shared: Shared, feeds: Sequence[np.ndarray]) -> None:
        program = exe.main
        if not isinstance(program, Program) or not program.steps:
            raise ValueError("it has no kernels")
        plan = ExecutionPlan(program, tuple(feed.shape for feed in feeds))
        self._held: dict[int, DeviceMemory] = {}
        self._shared, self._driver, binder = shared, shared.binder.driver, shared.binder
        self._tensors = self._place(plan, feeds)
        self._calls: list[BoundCall] = []
        with exe.lock:
            for step in program.steps:
                args = [self._tensors[register] for register in step.inputs + step.outputs]
                self._calls.append(binder.bind(exe.modules[step.module], step, args, plan.values, dict))
        modules = [exe.modules[step.module] for step in program.steps]
        self.is_capturable = all(each.is_capturable and each.device_kind == self._driver.kind for each in modules)
        self._run = CallTable([step for call in self._calls for step in call.steps]).run
        self._results = program.results

    def _place(self, plan: ExecutionPlan, feeds: Sequence[np.ndarray]) -> list[BoundTensor]:
        tensors: list[BoundTensor] = []
        for number, register in enumerate(plan.program.registers):
            shape = plan.shapes[number]
            if register.kind == "alias":
                address = tensors[register.source].address
            elif register.kind == "constant":
                address = self._shared.constants.address(register.digest)
            else:
                nbytes = memory.nbytes_of(shape, register.dtype)
                held = self._held[number] = DeviceMemory(self._driver, nbytes)
                address = held.address
            if register.kind == "input":
                self._driver.upload(address, memory.aligned_copy(feeds[register.index]))
            tensors.append(BoundTensor(address, shape, register.dtype))
        return tensors

    def __call__(self) -> None:
        """Ask for the steps. Raises: ExecutionError."""
        self._run()

    def results(self) -> list[np.ndarray]:
        """Copies of the results, once they are there."""
        tensors = [self._tensors[number] for number in self._results]
        return [
            DeviceArray(self._driver, each.address, each.shape, dtypes.to_numpy(each.dtype), self).numpy()
            for each in tensors
        ]


def replayed(driver: CudaDriver, programs: Sequence[BoundProgram]) -> tuple[Callable[[], None], bool]:
    """Return a function that runs programs in order, and whether it replays a CUDA graph, without launch overhead."""

    def run() -> None:
        for program in programs:
            program()

    run()  # libraries prepare themselves at the first call
    driver.synchronize()
    graph = driver.capture(run) if all(program.is_capturable for program in programs) else None
    return graph or run, graph is not None
