"""Executable: a compiled model. Programs, the modules they call, constants, and what is known about the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.cached_property import cached_property
from kernelyard.errors import ExecutionError
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.forks import no_fork_during, renewed_in_children
from kernelyard.runtime.abi.module import DEFAULT_MAX_PLANS, RuntimeModule
from kernelyard.runtime.abi.spec import TensorSpec, corrupted, shape_to_json
from kernelyard.runtime.abi.threads import default_threads
from kernelyard.runtime.program.program import Program, Register, Step

if TYPE_CHECKING:
    from kernelyard.runtime.device.device import Device
    from kernelyard.runtime.device.tensor import Tensor
    from kernelyard.runtime.execute.call_limit import Cancellation
    from kernelyard.runtime.execute.entry_function import EntryFunction
    from kernelyard.runtime.execute.profile import Profile
    from kernelyard.runtime.execute.virtual_machine import VirtualMachine
    from kernelyard.runtime.lru import CacheInfo
    from kernelyard.runtime.program.execution_plan import Zeros
    from kernelyard.runtime.program.vm_function import VMFunction
    from kernelyard.runtime.report import Report

__all__ = ["Executable", "Program", "Register", "Step", "TensorInfo", "TensorSpec"]

MAIN = "main"

CompileForEmpty: TypeAlias = "Callable[[str, Zeros], Executable]"
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


class Executable:
    """A compiled model: run it, save it.

    programs: entry functions by name; `run` and `__call__` use "main", or the only one. vm_functions: functions with
    branches or loops, and those that they call.
    precision: what it was compiled in. fallbacks: programs that stand in for functions of modules, by symbol, where
    these raise NoImplementationError on a device.
    constants: arrays by digest, those of the modules included. threads: how many a run may use (None: the processors).
    max_plans: see the property.
    Raises: ArtifactCorruptedError when programs, modules and constants do not fit together.
    """

    is_profiled = False  # of copies that a profile makes: `BindContext.is_profiled`

    def __init__(
        self,
        programs: Mapping[str, Program],
        modules: Sequence[RuntimeModule],
        constants: Mapping[str, np.ndarray],
        metadata: Mapping[str, str] | None = None,
        report_json: dict[str, Any] | None = None,
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
        self._compile_for_empty: CompileForEmpty | None = None
        own = (*self.programs.values(), *(b for each in self.vm_functions.values() for b in each.blocks))
        for program in (*own, *self.fallbacks.values()):
            self._link(program)
        if self.fallbacks:
            from kernelyard.runtime.execute.fallback import check_fallbacks  # few models have any

            check_fallbacks(own, self.fallbacks)
        for vm_function in self.vm_functions.values():
            vm_function.check_links(self.constants, self.vm_functions, self.modules)

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
        self._threads = count
        self._forget_machine()

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
        self._forget_machine()

    @property
    def compile_for_empty(self) -> CompileForEmpty | None:
        """Compiler of the model for empty inputs whose results are not empty; None where they are refused.

        It holds the model, and is not saved.
        """
        return self._compile_for_empty

    @compile_for_empty.setter
    def compile_for_empty(self, compile_for: CompileForEmpty | None) -> None:
        self._compile_for_empty = compile_for
        self._forget_machine()

    def _forget_machine(self) -> None:
        for name in ("_machine", "_entry"):
            self.__dict__.pop(name, None)

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
            if self._report_json is None:
                raise ExecutionError("this executable has no report")
            from kernelyard.runtime.report import Report

            self._report = Report.from_json(self._report_json)
        return self._report

    @report.setter
    def report(self, report: Report) -> None:
        self._report, self._report_json = report, None

    @property
    def report_json(self) -> dict[str, Any] | None:
        """The report as JSON data, None where there is none; written when it is first asked for."""
        if self._report_json is None and self._report is not None:
            self._report_json = self._report.to_json()
        return self._report_json

    @report_json.setter
    def report_json(self, value: dict[str, Any] | None) -> None:
        self._report, self._report_json = None, value

    @cached_property
    def _machine(self) -> VirtualMachine:
        with no_fork_during:
            from kernelyard.runtime.execute.virtual_machine import VirtualMachine

            # The machine holds the same data, but not this object, which holds the machine: they would else be freed by
            # the collector alone.
            data = object.__new__(Executable)
            data.__dict__.update(self.__dict__)
            return VirtualMachine(data)

    @cached_property
    def _entry(self) -> EntryFunction:
        return self._machine.function(self.main.name)

    def run(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | np.ndarray | None = None,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> dict[str, Tensor]:
        """Run the main program by names: NumPy, torch, JAX, ... arrays in, Tensors out. Safe to call from many threads.

        out: NumPy arrays that results are written to, by name, or that of the only result; the Tensors are views of
        them. They are C-contiguous and share no memory with feeds. After an error their content is undefined.
        timeout: seconds until the call ends with CallTimeoutError, waiting for other calls included.
        cancellation: what ends it from another thread. Both are looked at between steps of the program.
        Raises: InputNameError, InputTypeError, InputShapeError, ShapeError, OutputError, CallTimeoutError,
        CallCancelledError; the executable can be called again after each of them.
        """
        if out is None and timeout is None and cancellation is None:  # as it mostly is
            return self._entry.run(feeds)
        from kernelyard.runtime.execute.call_limit import CallLimit

        return self._entry.run_within(CallLimit(timeout, cancellation), feeds, out)

    async def run_async(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | np.ndarray | None = None,
        timeout: float | None = None,
    ) -> dict[str, Tensor]:
        """Run like `run`, without holding up the event loop: `await exe.run_async(feeds)`.

        As many calls as there are processors run at once, others wait. Cancelling the task cancels the call.
        Raises: as `run`.
        """
        from kernelyard.runtime.execute.async_call import run_async
        from kernelyard.runtime.execute.call_limit import CallLimit

        return await run_async(lambda limit: self._entry.run_within(limit, feeds, out), CallLimit(timeout))

    def __call__(self, *args: Any, **feeds: Any) -> Tensor | tuple[Tensor, ...]:
        """Run the main program by position, or by names; a single result comes as it is, several as a tuple."""
        if feeds:
            args = tuple(self._entry.in_order_after(args, feeds))
        return self._entry.__call__(*args)  # quicker than calling the object

    def warm(self, *sizes: Mapping[str, Sequence[int]], callers: int = 1, **shapes: Sequence[int]) -> None:
        """Prepare runs with these shapes: plans, primitives of libraries, packed weights, memory. Nothing is computed.

        sizes: sets of shapes by the names of inputs; inputs whose shape is fixed may be left out. shapes: one set, as
        keywords. callers: how many calls at the same time find all prepared. What a loop runs is prepared when it runs.
        Raises: InputNameError, InputShapeError, ShapeError; ExecutionError for more sets than `max_plans`.

        Example:
            exe.warm(x=(1, 3, 224, 224))
            exe.warm({"x": (1, 3, 48, 320)}, {"x": (1, 3, 48, 640)}, callers=2)
        """
        sets = [*sizes, *([shapes] if shapes or not sizes else ())]
        if len(sets) > self._max_plans:
            raise ExecutionError(
                "more sets of shapes are to be prepared than are kept",
                found=len(sets),
                expected=f"at most {self._max_plans}",
                hint=f"exe.max_plans = {len(sets)}",
            )
        self._entry.warm(sets, callers)

    def cache_info(self) -> dict[str, CacheInfo]:
        """Return what is kept of earlier runs, by cache: hits, misses, entries, capacity, and bytes of tensors.

        "plans": shapes and memory layouts. "bound programs": plans bound to memory, with the bytes of that memory.
        "idle results": memory of results that callers have let go of, of this process. Backends add theirs.
        """
        return self._machine.cache_info()

    def profile(
        self, feeds: Mapping[str, Any] | Sequence[Any], calls: int = 10, device: Device | None = None
    ) -> Profile:
        """Profile the main program step by step: a table (`print` it) and `save_trace(path)`.

        feeds: by name, or in the order of the inputs. device: as `VirtualMachine` takes it. Raises: as `run`.
        """
        from kernelyard.runtime.execute.profile import profile

        return profile(self, feeds, calls, device)

    def resident(self, digest: str) -> np.ndarray:
        """Return a constant where programs can read it: dense, 64-byte aligned. A copy takes the original's place."""
        with self.lock:
            found = self.constants[digest] = memory.aligned_copy(self.constants[digest])
            return found

    def save(self, path: str | os.PathLike[str], variants: Sequence[Executable] = ()) -> None:
        """Write the executable to one `.kyar` file; on failure nothing is left behind.

        variants: the same model for better machines, in rising order: `load` takes the last one that runs there.
        Raises: ArtifactError, OSError.
        """
        from kernelyard.runtime.artifact import kyar

        kyar.write(self, path, variants)

    def to_bytes(self) -> bytes:
        """Return what `save` writes; `kernelyard.load` takes it. Raises: ArtifactError."""
        from kernelyard.runtime.artifact import kyar

        return kyar.to_bytes(self)

    def __reduce__(self) -> tuple[Callable[..., Executable], tuple[bytes, int | None], dict[str, int]]:
        """Pickle by the artifact: processes of a pool get it by value. Raises: ArtifactError."""
        from kernelyard.runtime.artifact import kyar

        return kyar.load, (kyar.to_bytes(self), self._threads), {"_max_plans": self._max_plans}

    def export_library(
        self, path: str | os.PathLike[str], standalone: bool | None = None, options: Sequence[str] = ()
    ) -> None:
        """Write the executable to one shared library, compiled by the C compiler of this machine.

        `kernelyard.load` loads it like an artifact. An entry function whose steps are all native code is called by C
        programs too, without Python (`kernelyard.h`); `ky_run` of another says which step needs Python.
        standalone: make that an error here (True), or say nothing of it here (False). options: of the compiler for
        the code that backends wrote in C and C++, and of the linker, such as ["-O2", "-I/opt/acme/include", "-lacme"].
        Libraries of backends are linked by the paths that they have on this machine.
        Raises: ToolchainError (no C compiler), ArtifactError, BackendUnavailableError. Warns: LibraryWarning.
        """
        from kernelyard.runtime.export.library import export_library

        export_library(self, path, standalone, options)

    def inspect(self) -> str:
        """Format programs and modules as readable text."""
        parts = [str(each) for each in (*self.programs.values(), *self.vm_functions.values())]
        parts += [f"fallback {each}" for each in self.fallbacks.values()]
        parts += [f"module {number}, {module.inspect()}" for number, module in enumerate(self.modules)]
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(repr, specs)) for specs in (self.main.inputs, self.main.outputs))
        return f"Executable(({inputs}) -> ({outputs}))"


def _info(spec: TensorSpec) -> TensorInfo:
    return TensorInfo(spec.name, tuple(shape_to_json(spec.shape)), spec.dtype)
