"""CompiledModel: what a compile produces (programs, modules, constants, report), without the means to run it.

The virtual machine and all that it consists of hold this; `Executable` adds the methods that users call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import ExecutionError
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.abi.module import DEFAULT_MAX_PLANS, RuntimeModule
from kernelyard.runtime.abi.spec import TensorSpec, corrupted, shape_to_json
from kernelyard.runtime.abi.threads import default_threads
from kernelyard.runtime.program.program import Program

if TYPE_CHECKING:
    from kernelyard.runtime.program.execution_plan import FixedSizes
    from kernelyard.runtime.program.vm_function import VMFunction
    from kernelyard.runtime.report import Report

MAIN = "main"

ReportSource: TypeAlias = "dict[str, Any] | Callable[[], dict[str, Any]] | None"
"""The report of a compile as JSON data, or what reads it; None where there is none."""

CompileForSizes: TypeAlias = "Callable[[str, FixedSizes], CompiledModel]"
"""`compile_for(function, zeros)`: the model compiled for inputs of an entry function that have these sizes of 0.

Raises: KernelyardError where it has no meaning for them.
"""


class TensorInfo(NamedTuple):
    """Name, shape and dtype of an input or output; symbolic dims are texts.

    Example:
        >>> TensorInfo("x", ("batch", 3), "float32").shape
        ('batch', 3)
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str


class CompiledModel:
    """The data of an executable, and its settings; checked to fit together.

    programs: entry functions by name. vm_functions: functions with
    branches or loops, and those that they call.
    precision: what it was compiled in. fallbacks: programs that stand in for functions of modules, by symbol, where
    these raise NoImplementationError on a device.
    constants: arrays by digest, those of the modules included. threads: how many a run may use (None: the processors).
    max_plans: see the property.
    Raises: ArtifactCorruptedError when programs, modules and constants do not fit together.
    """

    alternatives: tuple[Self, ...] = ()  # see `add_alternatives`
    sizes: tuple[Mapping[str, int], ...] = ()  # that the model is chosen near, among its alternatives
    is_profiled = False  # of copies that a profile makes: `BindContext.is_profiled`

    def __init__(
        self,
        programs: Mapping[str, Program],
        modules: Sequence[RuntimeModule],
        constants: Mapping[str, np.ndarray],
        metadata: Mapping[str, str] | None = None,
        report_json: ReportSource = None,
        target: str = "cpu",
        threads: int | None = None,
        vm_functions: Mapping[str, VMFunction] | None = None,
        precision: str = "float32",
        fallbacks: Mapping[str, Program] | None = None,
        max_plans: int = DEFAULT_MAX_PLANS,
    ) -> None:
        self.programs = dict(programs)
        self.vm_functions = dict(vm_functions or {})
        self.fallbacks = dict(fallbacks or {})
        self.warned_of: set[str] = set()  # functions whose fallbacks have run
        self.modules = tuple(modules)
        self.constants = dict(constants)
        self.metadata = dict(metadata or {})
        self._report_json = report_json
        self.target = target
        self.precision = precision
        # Held while modules bind: they need not be safe against that themselves.
        self.lock = renewed_in_children(RLock())
        self._threads = threads
        self._max_plans = max_plans
        self._report: Report | None = None
        self._compile_for_refused_sizes: CompileForSizes | None = None
        own = (*self.programs.values(), *(b for each in self.vm_functions.values() for b in each.blocks))
        for program in (*own, *self.fallbacks.values()):
            self._link(program)
        if self.fallbacks:
            from kernelyard.runtime.program.replace_steps import check_fallbacks  # few models have any

            check_fallbacks(own, self.fallbacks)
        for vm_function in self.vm_functions.values():
            vm_function.check_links(self.constants, self.vm_functions, self.modules)

    def add_alternatives(
        self, sizes: Sequence[Mapping[str, int]], others: Sequence[tuple[Sequence[Mapping[str, int]], Self]]
    ) -> None:
        """Add the same model in other placements: a run takes the one whose `sizes` are the nearest to its own.

        sizes: near which this model itself is taken. others: with theirs. Weights that they share are kept once.
        Raises: ArtifactCorruptedError for another model.
        """
        for its_sizes, other in others:
            if other.interface != self.interface:
                raise corrupted("alternatives", other.interface, self.interface)
            other.constants = {digest: self.constants.get(digest, array) for digest, array in other.constants.items()}
            other.sizes = tuple(map(dict, its_sizes))
        self.sizes, self.alternatives = tuple(map(dict, sizes)), tuple(other for _, other in others)
        self._settings_changed()

    @property
    def interface(self) -> str:
        """The inputs and outputs of all entry functions, as text: the same for all placements of a model."""
        return "; ".join(f"{name}{entry.inputs} -> {entry.outputs}" for name, entry in self.entries.items())

    def _link(self, program: Program) -> None:
        symbols = [set(module.symbols()) for module in self.modules]
        for step in program.steps:
            if step.module >= len(symbols) or step.symbol not in symbols[step.module]:
                found = f"function {step.symbol!r} of module {step.module}"
                raise corrupted(f"program {program.name!r}, step {step.label!r}", found, "a function that is there")
        for number, register in enumerate(program.registers):
            array = self.constants.get(register.digest) if register.kind == "constant" else None
            if array is not None and (array.shape, dtypes.from_numpy(array.dtype)) == (register.shape, register.dtype):
                continue
            if register.kind == "constant":
                found = "no constant" if array is None else f"{array.shape} {array.dtype}"
                raise corrupted(f"program {program.name!r}, register {number}", found, repr(register.spec))

    @property
    def entries(self) -> dict[str, Program | VMFunction]:
        """The entry functions by name: programs, and the VM functions that are not private."""
        return {**self.programs, **{name: each for name, each in self.vm_functions.items() if not each.private}}

    @property
    def main(self) -> Program | VMFunction:
        """The entry function that `run` and `__call__` use.

        Raises: ExecutionError when there are several and none is "main".
        """
        entries = self.entries
        if MAIN in entries:
            return entries[MAIN]
        if len(entries) != 1:
            raise ExecutionError(
                "the executable has several entry functions and no main",
                found=", ".join(entries),
                hint="choose one: VirtualMachine(exe)[name](...)",
            )
        return next(iter(entries.values()))

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The feeds of the main program, in order."""
        return tuple(map(_info, self.main.inputs))

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The results of the main program, in order."""
        return tuple(map(_info, self.main.outputs))

    @property
    def threads(self) -> int:
        """The most threads that a run may use; a change takes effect with the next run.

        A run uses no more than the process has processors.
        """
        return self._threads or default_threads()

    @threads.setter
    def threads(self, count: int | None) -> None:
        if count is not None and count < 1:
            raise ExecutionError("a run needs at least one thread", found=count)
        if count != self._threads:  # what is prepared stays where a program sets the number before each run
            self._threads = count
            self._settings_changed()

    @property
    def max_plans(self) -> int:
        """For how many sets of input shapes all that is prepared is kept, for each function; 16 unless said otherwise.

        The set that was used longest ago is forgotten first. A change drops what is prepared.
        """
        return self._max_plans

    @max_plans.setter
    def max_plans(self, count: int) -> None:
        if count < 1:
            raise ExecutionError("an executable keeps at least one plan", found=count)
        self._max_plans = count
        self._settings_changed()

    @property
    def compile_for_refused_sizes(self) -> CompileForSizes | None:
        """Compiler of the model for sizes that its program refuses, such as 0; None where they stay refused.

        It holds the model, and is not saved.
        """
        return self._compile_for_refused_sizes

    @compile_for_refused_sizes.setter
    def compile_for_refused_sizes(self, compile_for: CompileForSizes | None) -> None:
        self._compile_for_refused_sizes = compile_for
        self._settings_changed()

    def _settings_changed(self) -> None:
        """Drop what depends on threads, max_plans or compile_for_refused_sizes; a subclass overrides it."""

    @property
    def is_deterministic(self) -> bool:
        """True if it was compiled for a target with `deterministic=True`: see `kernelyard.Target`."""
        return "deterministic=True" in self.target.split()

    def binds_for_one_thread(self, module: RuntimeModule) -> bool:
        """Tell if a module is bound with a single thread, whatever number a run may use."""
        return self.is_deterministic and not module.is_thread_invariant

    @property
    def report(self) -> Report:
        """The report of the compile: what was offloaded, and what was declined and why.

        Raises: ExecutionError when the executable was made without a report.
        """
        if self._report is None:
            report = self.report_json
            if report is None:
                raise ExecutionError("this executable has no report")
            from kernelyard.runtime.report import Report

            self._report = Report.from_json(report)
        return self._report

    @report.setter
    def report(self, report: Report) -> None:
        self._report, self._report_json = report, None

    @property
    def report_json(self) -> dict[str, Any] | None:
        """The report as JSON data, None where there is none; written or read when it is first asked for."""
        if callable(self._report_json):
            self._report_json = self._report_json()
        if self._report_json is None and self._report is not None:
            self._report_json = self._report.to_json()
        return self._report_json

    @report_json.setter
    def report_json(self, value: dict[str, Any] | None) -> None:
        self._report, self._report_json = None, value

    def resident(self, digest: str) -> np.ndarray:
        """Return a constant where programs can read it: dense, 64-byte aligned. A copy takes the original's place."""
        with self.lock:
            found = self.constants[digest] = memory.aligned_copy(self.constants[digest])
            return found


def _info(spec: TensorSpec) -> TensorInfo:
    return TensorInfo(spec.name, tuple(shape_to_json(spec.shape)), spec.dtype)
