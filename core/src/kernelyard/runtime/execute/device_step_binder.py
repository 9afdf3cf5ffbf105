"""DeviceStepBinder: bind the steps of a program to a device's memory.

Modules whose functions work on host memory take part too: their arguments are copied to the host and back around them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Literal

import numpy as np

from kernelyard.errors import DeviceError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.abi.memory import Workspace
from kernelyard.runtime.abi.module import DEFAULT_MAX_PLANS, BindContext, BoundCall, BoundTensor, RuntimeModule
from kernelyard.runtime.device.array import DeviceArray
from kernelyard.runtime.device.driver import DeviceDriver, DeviceWorkspace, raise_queue_error
from kernelyard.runtime.execute.step_binder import uses_of_inputs_and_results
from kernelyard.runtime.execute.step_errors import check_bound, label_of
from kernelyard.runtime.program.program import Program, Step

if TYPE_CHECKING:
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


class DeviceSteps:
    """The steps of a program on a device, as they are for all sizes.

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


class DeviceStepBinder:
    """Binds functions of modules to a device's memory; those of the host by way of copies."""

    def __init__(
        self,
        driver: DeviceDriver,
        threads: int,
        scratch: DeviceWorkspace,
        host_scratch: Workspace,
        max_plans: int = DEFAULT_MAX_PLANS,
        is_profiled: bool = False,
    ) -> None:
        self.driver = driver
        self._on_device = BindContext(threads, scratch, driver, max_plans=max_plans, is_profiled=is_profiled)
        self._by_outputs: dict[int, BindContext] = {}
        self._on_host = BindContext(threads, host_scratch, max_plans=max_plans, is_profiled=is_profiled)

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
        place = step.label or step.symbol
        down = [partial(self._copy, "download", at, copy, place) for number, at, copy in inputs if number not in known]
        up = [partial(self._copy, "upload", at, copy, place) for _, at, copy in outputs]
        return BoundCall([*down, *call.steps, *up], [*call.keep, call, copies, self._on_host])

    def _copy(self, direction: Literal["download", "upload"], address: int, array: np.ndarray, place: str) -> None:
        """Copy an argument of a step of the host. What fails here is the device, or work that it was given before: the
        step is not to blame.

        Raises: DeviceError.
        """
        try:
            (self.driver.download if direction == "download" else self.driver.upload)(address, array)
        except Exception as error:  # a vendor's code
            where = f"{direction} for {place}, which runs on the host, or work on {self.driver.device} before it"
            raise_queue_error(self.driver, where, error)
