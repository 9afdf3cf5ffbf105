"""VirtualMachine: runs the entry functions of an Executable on a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from kernelyard.errors import DeviceError, ExecutionError, did_you_mean
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.threads import processors, threads_of_a_run
from kernelyard.runtime.device.device import Device
from kernelyard.runtime.device.tensor import Tensor
from kernelyard.runtime.execute.bound_program import BoundProgram, StepHook, idle_results
from kernelyard.runtime.execute.context_pool import ContextPool
from kernelyard.runtime.execute.entry_function import EntryFunction, FunctionRunner
from kernelyard.runtime.execute.execution_context import ExecutionContext
from kernelyard.runtime.execute.program_runner import ProgramRunner
from kernelyard.runtime.execute.run_environment import RunEnvironment
from kernelyard.runtime.lru import CacheInfo, sum_infos
from kernelyard.runtime.program.program import Step

if TYPE_CHECKING:
    from kernelyard.runtime.execute.call_limit import Cancellation
    from kernelyard.runtime.execute.compiled_model import CompiledModel
    from kernelyard.runtime.execute.vm_function_runner import VMFunctionRunner
    from kernelyard.runtime.program.execution_plan import FixedSizes


class VMInstrumentReturnKind(IntEnum):
    """Return value of an instrument's call before a step."""

    NO_OP = 0
    SKIP_RUN = 1


Instrument: TypeAlias = Callable[..., Any]
"""`instrument(step, name, before_run, ret_value, *args)`; see `VirtualMachine.set_instrument`."""


class BenchmarkResult(NamedTuple):
    """Seconds per call, one number per repetition."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.results) / len(self.results)

    @property
    def median(self) -> float:
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        return min(self.results)

    @property
    def max(self) -> float:
        return max(self.results)

    @property
    def std(self) -> float:
        return float(np.std(self.results))


class VirtualMachine:
    """An executable on a device: the first of the kind that it was compiled for, unless said otherwise.

    On a device with memory of its own, feeds may lie there (whatever exports DLPack) or on the host, and results stay
    there: `Tensor.numpy()` waits and copies, DLPack hands them on.

    Plans (shapes, memory, bound steps) are kept for the last `executable.max_plans` sets of input shapes of each entry
    function. Calls from many threads run at the same time, each on memory of its own: as many as `contexts` (the
    processors, unless said otherwise; one on a device, which does all work in order anyway); more wait.

    threads: of one call, at most (None: `executable.threads`); a machine with fewer processors has so many.

    Example:
        vm = VirtualMachine(exe)
        y = vm["main"](x)
    """

    bound_program_type: ClassVar[type[BoundProgram]] = BoundProgram  # of the CPU

    def __init__(
        self,
        executable: CompiledModel,
        device: Device | None = None,
        threads: int | None = None,
        contexts: int | None = None,
    ) -> None:
        self.executable = executable
        self.device = device or Device(executable.target.split()[0])
        if executable.target.split()[0] != self.device.kind:
            raise DeviceError(
                f"a program compiled for {executable.target} cannot run on {self.device}", expected=executable.target
            )
        self.driver = self.device.open()
        self.threads = threads_of_a_run(threads or executable.threads)
        if contexts is not None and contexts < 1:
            raise ExecutionError("a virtual machine needs at least one execution context", found=contexts)
        resident: Callable[[str], Any] = executable.resident
        make_context: Callable[[bool], ExecutionContext] = partial(
            ExecutionContext, bound_program_type=self.bound_program_type
        )
        if self.driver is not None:
            from kernelyard.runtime.execute.device_execution_context import DeviceExecutionContext  # never for the CPU
            from kernelyard.runtime.execute.device_step_binder import DeviceConstants

            constants = DeviceConstants(self.driver, executable)
            make_context, resident = partial(DeviceExecutionContext, self.driver, constants), constants.array
        # A device does all work in order: one arena serves the calls of all threads.
        self.contexts = ContextPool(contexts or (processors() if self.driver is None else 1), make_context)
        self.environment = RunEnvironment(executable, self.contexts, self.threads, self.driver, resident)
        self._instrument: Instrument | None = None
        # Of the same model in other placements; each has memory of its own.
        self._others = [type(self)(each, self.device, self.threads, contexts) for each in _with_settings_of(executable)]
        runners = self._runners()
        self._functions: dict[str, EntryFunction] = {
            name: EntryFunction(self.driver, each, runners[name]) for name, each in executable.entries.items()
        }
        self._saved: dict[str, Callable[[], Any]] = {}

    def _runners(self) -> dict[str, FunctionRunner]:
        """Return what runs each entry function."""
        executable = self.executable
        runners: dict[str, FunctionRunner] = {
            name: ProgramRunner(self.environment, program) for name, program in executable.programs.items()
        }
        if executable.vm_functions:
            runners.update(_vm_function_runners(self.environment))
        if self._others:
            runners = {name: self._choose_by_size(name, runner) for name, runner in runners.items()}
        if executable.compile_for_refused_sizes is not None:
            runners = {name: self._taking_refused_sizes(name, runner) for name, runner in runners.items()}
        return runners

    def _choose_by_size(self, name: str, runner: FunctionRunner) -> FunctionRunner:
        from kernelyard.runtime.execute.choice_by_size import SizedRunner  # few models have alternatives

        executable = self.executable
        models, inputs = (executable, *executable.alternatives), executable.entries[name].inputs
        runners = [runner, *(other.function(name).runner for other in self._others)]
        return SizedRunner(inputs, models, runners, executable.max_plans)

    def _taking_refused_sizes(self, name: str, runner: FunctionRunner) -> FunctionRunner:
        from kernelyard.runtime.execute.refused_sizes_runner import RefusedSizesRunner  # few models refuse sizes

        compile_for, device, threads = self.executable.compile_for_refused_sizes, self.device, self.threads

        def make(sizes: FixedSizes) -> FunctionRunner:
            assert compile_for is not None
            return VirtualMachine(compile_for(name, sizes), device, threads).function(name).runner

        return RefusedSizesRunner(runner, make)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return the entry function of that name (or saved under it): arrays in, a Tensor or a tuple of Tensors out.

        Raises: ExecutionError.
        """
        return self._saved.get(name) or self.function(name)

    def function(self, name: str) -> EntryFunction:
        """Return the entry function of that name. Raises: ExecutionError."""
        function = self._functions.get(name)
        if function is None:
            raise ExecutionError(
                f"the executable has no entry function {name!r}",
                expected=", ".join(self._functions),
                hint=did_you_mean(name, self._functions),
            )
        return function

    def cache_info(self) -> dict[str, CacheInfo]:
        """Return what is kept of earlier runs, by cache; see `Executable.cache_info`."""
        from kernelyard.runtime.execute.module_answers import check_cache_info  # seldom asked for

        contexts = list(self.contexts)
        bound = sum_infos(context.info() for context in contexts)
        held = sum(context.nbytes for context in contexts)
        found = {
            "plans": sum_infos(function.info() for function in self._functions.values()),
            "bound programs": bound._replace(nbytes=held),
            "idle results": idle_results(),
        }
        for module in self.executable.modules:
            _add_infos(found, check_cache_info(module))
        for other in self._others:
            infos = other.cache_info()
            del infos["plans"], infos["idle results"]  # those of its functions, and of the process, are counted above
            _add_infos(found, infos)
        return found

    def wait(self, results: object = None) -> Any:
        """Return the results, once the device has computed them; on the CPU they are there."""
        if self.driver is not None:
            try:
                self.driver.synchronize()
            except Exception as error:  # a vendor's code
                from kernelyard.runtime.device.driver import raise_queue_error

                raise_queue_error(self.driver, f"work on {self.driver.device} until here", error)
        return results

    def run(
        self,
        name: str,
        feeds: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | np.ndarray | None = None,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> dict[str, Tensor]:
        """Call an entry function by the names of its inputs; the results by name. out, ...: see `Executable.run`.

        Once a device has its work, no limit ends the call.
        """
        if out is None and timeout is None and cancellation is None:
            return self.function(name).run(feeds)
        from kernelyard.runtime.execute.call_limit import CallLimit

        return self.function(name).run_within(CallLimit(timeout, cancellation), feeds, out)

    def set_instrument(self, instrument: Instrument | None) -> None:
        """Call `instrument(step, name, before_run, ret_value, *args)` before and after every step; None takes it away.

        step: the program's Step (label, symbol, ...). name: its symbol. ret_value: None before, the outputs after.
        args: the inputs. Tensors are views that hold only during the call. Returning `SKIP_RUN` before a step skips it.
        """
        self._instrument = instrument
        self.environment.step_hook = _step_hook(instrument) if instrument is not None else None
        for other in self._others:
            other.set_instrument(instrument)

    @property
    def instrument(self) -> Instrument | None:
        """The instrument that `set_instrument` set."""
        return self._instrument

    def save_function(self, name: str, saved_name: str, /, *args: Any, **feeds: Any) -> None:
        """Bind arguments, in order or by name: afterwards `vm[saved_name]()` calls entry function `name` with them.

        Raises: ExecutionError for a name that is taken, InputNameError, InputTypeError.
        """
        function = self.function(name)
        if saved_name in self._functions:
            raise ExecutionError(f"{saved_name!r} is an entry function already", hint="save it under another name")
        arrays = function.take(function.in_order_after(args, feeds) if feeds else args)
        self._saved[saved_name] = lambda: function(*arrays)

    def time_evaluator(self, name: str, number: int = 10, repeat: int = 1) -> Callable[..., BenchmarkResult]:
        """Return a function that takes the arguments of `vm[name]` and measures it: `repeat` times the mean of `number`
        calls.

        One call is made beforehand, so that preparing a plan is not measured.
        """
        if number < 1 or repeat < 1:
            raise ExecutionError("nothing to measure", found=f"number={number}, repeat={repeat}", expected="at least 1")
        function = self[name]

        def evaluate(*args: Any) -> BenchmarkResult:
            self.wait(function(*args))
            results: list[float] = []
            for _ in range(repeat):
                start = time.perf_counter()
                for _ in range(number):
                    function(*args)
                self.wait()
                results.append((time.perf_counter() - start) / number)
            return BenchmarkResult(tuple(results))

        return evaluate


def _with_settings_of(executable: CompiledModel) -> tuple[CompiledModel, ...]:
    """Return the alternatives of a model, which keep as many plans as it does."""
    for each in executable.alternatives:
        each.max_plans = executable.max_plans
    return executable.alternatives


def _add_infos(found: dict[str, CacheInfo], infos: Mapping[str, CacheInfo]) -> None:
    for name, info in infos.items():
        found[name] = sum_infos([found[name], info]) if name in found else info


def _vm_function_runners(environment: RunEnvironment) -> dict[str, VMFunctionRunner]:
    from kernelyard.runtime.execute.bytecode_interpreter import Interpreters  # few models have any
    from kernelyard.runtime.execute.vm_function_runner import VMFunctionRunner

    interpreters, entries = Interpreters(environment), environment.executable.entries
    return {name: VMFunctionRunner(environment, name, interpreters) for name in interpreters if name in entries}


def _step_hook(instrument: Instrument) -> StepHook:
    def decide(
        step: Step, run: Callable[[], None], inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        args = tuple(map(Tensor, inputs))
        if instrument(step, step.symbol, True, None, *args) != VMInstrumentReturnKind.SKIP_RUN:
            run()
        instrument(step, step.symbol, False, tuple(map(Tensor, outputs)), *args)

    return StepHook(decide)
