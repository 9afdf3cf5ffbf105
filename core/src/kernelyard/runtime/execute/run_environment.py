"""RunEnvironment: what the functions of a virtual machine share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelyard.runtime.device.driver import DeviceDriver
    from kernelyard.runtime.execute.bound_program import StepHook
    from kernelyard.runtime.execute.compiled_model import CompiledModel
    from kernelyard.runtime.execute.context_pool import ContextPool


class RunEnvironment:
    """The executable, memory, threads and device of a machine's runs.

    Functions hold it in place of the machine, which holds them: what nobody refers to is freed at once.
    driver: of a device, None on the CPU. resident(digest): a constant where programs can read it. step_hook: what is
    called around each step.
    """

    def __init__(
        self,
        executable: CompiledModel,
        contexts: ContextPool,
        threads: int,
        driver: DeviceDriver | None,
        resident: Callable[[str], Any],
    ) -> None:
        self.executable = executable
        self.contexts = contexts
        self.threads = threads
        self.driver = driver
        self.resident = resident
        self.step_hook: StepHook | None = None
