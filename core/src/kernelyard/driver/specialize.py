"""SpecializingExecutable: compile a model for the sizes and values that come, where no program serves them all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kernelyard.driver.session.import_model import frontend_for
from kernelyard.dtypes import to_numpy
from kernelyard.errors import (
    ArtifactError,
    FrontendError,
    InputNameError,
    PerformanceWarning,
    UnsupportedOperatorError,
    warn_caller,
)
from kernelyard.ir import IRModule
from kernelyard.runtime.execute.executable import Executable, TensorInfo
from kernelyard.runtime.lru import LRU, CacheInfo

if TYPE_CHECKING:
    import os

    from kernelyard.driver.session.session import CompileSession, Options
    from kernelyard.plugins.interfaces.frontend import ModelSpecializer
    from kernelyard.runtime.device.device import Device
    from kernelyard.runtime.device.tensor import Tensor
    from kernelyard.runtime.execute.call_limit import Cancellation
    from kernelyard.runtime.profiling.profile import Profile

MAX_PROGRAMS = 16


def specialize_at_first_call(
    session: CompileSession,
    model: object,
    error: UnsupportedOperatorError,
    compile_with: Callable[[Options], Executable],
) -> SpecializingExecutable:
    """Return what compiles a refused model once its inputs are there.

    compile_with: compiles the model with these options. Warns: PerformanceWarning, with the reason of the refusal.
    Raises: the refusal, where the frontend sees no way.
    """
    if isinstance(model, IRModule) or session.bounds:  # what is compiled for each size has no symbols to bound
        raise error
    frontend = frontend_for(session.manager, model)
    given = session.options.get(frontend.name, {})
    specializer = frontend.specializer(model, given, error)
    if specializer is None:
        raise error
    message = f"the model is compiled for each combination of sizes that comes, when it comes: {error.where}"
    warn_caller(message, PerformanceWarning)

    def compile_for(fixed: Mapping[str, Any]) -> Executable:
        return compile_with({**session.options, frontend.name: {**given, **fixed}})

    return SpecializingExecutable(specializer, compile_for, str(session.target), session.precision.name)


class SpecializingExecutable(Executable):
    """A model that is compiled when it is run, for the sizes and values of its inputs; kept for the next such run.

    It is not saved: fix the sizes with options of the frontend, and compile that.
    """

    def __init__(
        self,
        specializer: ModelSpecializer,
        compile_for: Callable[[Mapping[str, Any]], Executable],
        target: str,
        precision: str,
    ) -> None:
        super().__init__({}, [], {}, target=target, precision=precision)
        self._specializer = specializer
        self._compile_for = compile_for
        self._compiled: LRU[Hashable, Executable] = LRU(MAX_PROGRAMS)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs that the model declares, in order."""
        return self._specializer.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs that the model declares, in order."""
        return self._specializer.outputs

    def compiled_for(self, feeds: Mapping[str, Any]) -> Executable:
        """Return the executable for the sizes of these inputs, compiled if there is none yet.

        Raises: InputNameError, and as `kernelyard.compile`.
        """
        names = [info.name for info in self.inputs]
        if set(feeds) != set(names):
            raise InputNameError("wrong input names", found=", ".join(feeds), expected=", ".join(names))
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        with self.lock:
            while True:
                key, options = self._specializer.specialize(arrays)
                try:
                    executable = self._compiled.get_or_make(key, partial(self._compile_for, options))
                except FrontendError as error:
                    if not self._specializer.learn(error, arrays):
                        raise
                else:
                    break
            if (executable.threads, executable.max_plans) != (self.threads, self.max_plans):
                executable.threads, executable.max_plans = self.threads, self.max_plans
            self.report = executable.report
        return executable

    def run(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | np.ndarray | None = None,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> dict[str, Tensor]:
        """Run by names. Raises: as `Executable.run`, and, for new sizes, as `kernelyard.compile`."""
        executable = self.compiled_for(feeds)
        return executable.run(_actual_inputs(executable, feeds), out, timeout, cancellation)

    async def run_async(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | np.ndarray | None = None,
        timeout: float | None = None,
    ) -> dict[str, Tensor]:
        """Run without holding up the event loop, but for a compile. Raises: as `run`."""
        executable = self.compiled_for(feeds)
        return await executable.run_async(_actual_inputs(executable, feeds), out, timeout)

    def __call__(self, *args: Any, **feeds: Any) -> Tensor | tuple[Tensor, ...]:
        """Run by position, or by names; a single result comes as it is, several as a tuple. Raises: as `run`."""
        results = tuple(self.run(self._name_feeds(args, feeds)).values())
        return results[0] if len(results) == 1 else results

    def warm(self, *sizes: Mapping[str, Sequence[int]], callers: int = 1, **shapes: Sequence[int]) -> None:
        """Compile for these shapes, all inputs given, and prepare runs; see `Executable.warm`.

        Where values of inputs decide, too, call `compiled_for` with them. Raises: as `run`.
        """
        dtypes = {info.name: info.dtype for info in self.inputs}
        for each in [*sizes, *([shapes] if shapes else ())]:
            feeds = {name: np.zeros(shape, to_numpy(dtypes.get(name, "float32"))) for name, shape in each.items()}
            executable = self.compiled_for(feeds)
            executable.warm({info.name: each[info.name] for info in executable.inputs}, callers=callers)

    def cache_info(self) -> dict[str, CacheInfo]:
        """Return what is kept: the programs for sizes that came. Each has caches of its own."""
        return {"programs": self._compiled.info()}

    def profile(
        self, feeds: Mapping[str, Any] | Sequence[Any], calls: int = 10, device: Device | None = None
    ) -> Profile:
        """Profile the program of these sizes. Raises: as `run`."""
        named = feeds if isinstance(feeds, Mapping) else self._name_feeds(feeds, {})
        executable = self.compiled_for(named)
        return executable.profile(_actual_inputs(executable, named), calls, device)

    def _name_feeds(self, args: Sequence[Any], feeds: Mapping[str, Any]) -> dict[str, Any]:
        names = [info.name for info in self.inputs]
        if len(args) + len(feeds) != len(names):
            raise InputNameError("wrong number of inputs", found=len(args) + len(feeds), expected=", ".join(names))
        return {**dict(zip(names, args, strict=False)), **feeds}

    def save(self, path: str | os.PathLike[str], variants: Sequence[Executable] = ()) -> NoReturn:
        """Raise ArtifactError: what is not compiled yet cannot be saved."""
        raise self._create_save_error()

    def to_bytes(self) -> NoReturn:
        """Raise ArtifactError: what is not compiled yet cannot be saved."""
        raise self._create_save_error()

    def export_library(
        self, path: str | os.PathLike[str], standalone: bool | None = None, options: Sequence[str] = ()
    ) -> NoReturn:
        """Raise ArtifactError: what is not compiled yet cannot be saved."""
        raise self._create_save_error()

    def __reduce__(self) -> NoReturn:
        raise self._create_save_error()

    def _create_save_error(self) -> ArtifactError:
        return ArtifactError(
            "a model that is compiled for the sizes that come cannot be saved",
            found=f"{len(self._compiled)} programs, for sizes that came",
            expected="one program for all sizes",
            hint="fix sizes when you compile (for ONNX: options={'onnx': {'shapes': {...}, 'values': {...}}}), or save "
            "`compiled_for(feeds)`",
        )

    def inspect(self) -> str:
        """Say what was compiled, as text for people."""
        return f"compiled for the sizes that come; {len(self._compiled)} programs"

    def __repr__(self) -> str:
        return f"SpecializingExecutable({', '.join(map(str, self.inputs))})"


def _actual_inputs(executable: Executable, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that are not constants of the program."""
    return {info.name: feeds[info.name] for info in executable.inputs}
