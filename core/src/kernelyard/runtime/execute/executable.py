"""Executable: a compiled model. Programs, the modules they call, constants, and what is known about the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard.cached_property import cached_property
from kernelyard.errors import ExecutionError
from kernelyard.runtime.abi.forks import no_fork_during
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.execute.compiled_model import CompiledModel, TensorInfo
from kernelyard.runtime.program.program import Program, Register, Step

if TYPE_CHECKING:
    from kernelyard.runtime.device.device import Device
    from kernelyard.runtime.device.tensor import Tensor
    from kernelyard.runtime.execute.call_limit import Cancellation
    from kernelyard.runtime.execute.entry_function import EntryFunction
    from kernelyard.runtime.execute.virtual_machine import VirtualMachine
    from kernelyard.runtime.lru import CacheInfo
    from kernelyard.runtime.profiling.profile import Profile

__all__ = ["Executable", "Program", "Register", "Step", "TensorInfo", "TensorSpec"]


class Executable(CompiledModel):
    """A compiled model: run it, save it, profile it.

    `run` and `__call__` use the entry function "main", or the only one. The parameters are those of `CompiledModel`.
    """

    def _settings_changed(self) -> None:
        for name in ("_machine", "_entry"):
            self.__dict__.pop(name, None)

    @cached_property
    def _machine(self) -> VirtualMachine:
        with no_fork_during:
            from kernelyard.runtime.execute.virtual_machine import VirtualMachine

            # The machine holds the same data, but not this object, which holds the machine: a reference cycle would
            # keep both alive until the garbage collector runs.
            data = object.__new__(CompiledModel)
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
        return self._entry.__call__(*args)  # faster than calling the object

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
        from kernelyard.runtime.profiling.profiler import profile

        return profile(self._choose_placement(feeds), feeds, calls, device)

    def at_sizes(self, sizes: Mapping[str, int]) -> Executable:
        """Return the placement of the model that runs at sizes of its symbols: one of `alternatives`, or this one."""
        if not self.alternatives:
            return self
        from kernelyard.runtime.execute.choice_by_size import choose_by_size

        models = (self, *self.alternatives)
        return models[choose_by_size(models, sizes)]

    def alone(self) -> Executable:
        """Return the same placement without its alternatives, for all sizes."""
        executable = object.__new__(type(self))
        executable.__dict__.update(self.__dict__)
        executable.sizes, executable.alternatives = (), ()
        executable._settings_changed()
        return executable

    @property
    def recent_sizes(self) -> tuple[dict[str, int], ...]:
        """The sizes of symbols in the last runs of the main program, as many as `max_plans`, oldest first."""
        from kernelyard.runtime.execute.choice_by_size import sizes_at

        return tuple(sizes_at(self.main.inputs, shapes) for shapes in self._entry.runner.recent_shapes())

    def _choose_placement(self, feeds: Mapping[str, Any] | Sequence[Any]) -> Executable:
        """Return the placement that runs on feeds."""
        if not self.alternatives:
            return self
        from kernelyard.runtime.execute.choice_by_size import sizes_at

        arrays = self._entry.take(self._entry.in_order(feeds) if isinstance(feeds, Mapping) else feeds)
        return self.at_sizes(sizes_at(self.main.inputs, tuple([array.shape for array in arrays])))

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
        from kernelyard.runtime.execute.module_answers import show_module  # seldom asked for

        parts = [str(each) for each in (*self.programs.values(), *self.vm_functions.values())]
        parts += [f"fallback {each}" for each in self.fallbacks.values()]
        parts += [f"module {number}, {show_module(module)}" for number, module in enumerate(self.modules)]
        for each in self.alternatives:
            from kernelyard.runtime.placement_decision import sizes_text  # few models have any

            near = " or ".join(map(sizes_text, each.sizes))
            parts.append(f"at sizes near {near}:\n{each.inspect()}")
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(repr, specs)) for specs in (self.main.inputs, self.main.outputs))
        return f"Executable(({inputs}) -> ({outputs}))"
