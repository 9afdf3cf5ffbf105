"""EntryFunction: call a function of a virtual machine with arrays of any framework, and get Tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import DeviceError, InputNameError, InputShapeError, InputTypeError, did_you_mean
from kernelyard.runtime.device.tensor import Tensor, as_array
from kernelyard.runtime.program.execution_plan import NOTHING

if TYPE_CHECKING:
    from kernelyard.runtime.device.array import AnyArray, DeviceArray
    from kernelyard.runtime.device.driver import DeviceDriver
    from kernelyard.runtime.execute.bound_program import Outputs
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.lru import CacheInfo
    from kernelyard.runtime.program.execution_plan import Shapes
    from kernelyard.runtime.program.program import Program
    from kernelyard.runtime.program.vm_function import VMFunction


class FunctionRunner(Protocol):
    """Runs a function on values: a `ProgramRunner` for a Program, a `VMFunctionRunner` for a VM function."""

    def try_fast_path(self, values: Sequence[Any]) -> Sequence[AnyArray] | None:
        """Return the results where the values fit what ran last; None, with nothing done, where they do not."""
        ...

    def run(
        self,
        arrays: Sequence[AnyArray],
        symbols: Mapping[str, int] = NOTHING,
        limit: CallLimit | None = None,
        outputs: Outputs = (),
    ) -> Sequence[AnyArray]:
        """Return the results, which are the caller's own, for arrays of the inputs' dtypes.

        limit: what ends it early. outputs: for each result an array to write it to, where that saves a copy, or None.
        """
        ...

    def prepare(self, sets: Sequence[Shapes], callers: int = 1) -> None:
        """Do what the first calls with such sets of shapes do before they run."""
        ...

    def info(self) -> CacheInfo:
        """Return the counts of the plans."""
        ...

    def recent_shapes(self) -> list[Shapes]:
        """Return the sets of shapes that are kept prepared, the oldest first."""
        ...


class EntryFunction:
    """Checks feeds, runs the function, and names the results."""

    def __init__(self, driver: DeviceDriver | None, function: Program | VMFunction, runner: FunctionRunner) -> None:
        self._driver = driver
        self._function = function
        self._runner = runner
        self._names = tuple(spec.name for spec in function.inputs)
        self._dtypes = tuple(dtypes.to_numpy(spec.dtype) for spec in function.inputs)
        self._result_names = tuple(spec.name for spec in function.outputs)

    @property
    def runner(self) -> FunctionRunner:
        """Runner of the function on arrays of the inputs' dtypes."""
        return self._runner

    def __call__(self, *args: Any) -> Tensor | tuple[Tensor, ...]:
        """Run on arguments in the order of the inputs; a single result comes by itself, several as a tuple.

        Raises: InputNameError for a wrong number, InputTypeError, InputShapeError, ShapeError, ExecutionError.
        """
        if len(args) != len(self._names):
            self._fail_count(args)
        results = self._runner.try_fast_path(args)
        if results is None:
            results = self._runner.run(self.take(args))
        return Tensor(results[0]) if len(results) == 1 else tuple(map(Tensor, results))

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Tensor]:
        """Run on feeds by name; the results are by name, too. Raises: as calling it."""
        values, names = self.in_order(feeds), self._result_names
        results = self._runner.try_fast_path(values)
        if results is None:
            results = self._runner.run(self.take(values))
        if len(names) == 1:  # as it mostly is: a third of the time
            return {names[0]: Tensor(results[0])}
        return dict(zip(names, map(Tensor, results), strict=True))

    def warm(self, sizes: Sequence[Mapping[str, Sequence[int]]], callers: int = 1) -> None:
        """Do what first runs do before they compute, for shapes by the names of inputs; see `Executable.warm`.

        Raises: InputNameError, InputShapeError, ShapeError, ExecutionError.
        """
        self._runner.prepare([self._shapes(each) for each in sizes], callers)

    def _shapes(self, given: Mapping[str, Sequence[int]]) -> Shapes:
        # What has one shape alone need not be given.
        fixed = {spec.name: spec.shape for spec in self._function.inputs if all(isinstance(d, int) for d in spec.shape)}
        shapes = self.in_order({**fixed, **given})
        try:
            return tuple([tuple(map(index, shape)) for shape in shapes])
        except TypeError as error:
            raise InputShapeError("a shape consists of whole numbers", found=dict(given)) from error

    def info(self) -> CacheInfo:
        """Return the counts of the plans."""
        return self._runner.info()

    def run_within(self, limit: CallLimit, feeds: Mapping[str, Any], out: Any = None) -> dict[str, Tensor]:
        """Run on feeds by name, within a limit; out: see `Executable.run`.

        Raises: as calling it; OutputError, CallTimeoutError, CallCancelledError.
        """
        limit.check()
        arrays = self.take(self.in_order(feeds))
        if out is None:
            results = self._runner.run(arrays, limit=limit)
        else:
            from kernelyard.runtime.execute.given_outputs import (  # few callers give any
                match_given_outputs,
                store_results,
            )

            specs = self._function.outputs
            outputs = match_given_outputs(specs, out, dict(zip(self._names, arrays, strict=True)))
            results = store_results(specs, outputs, self._runner.run(arrays, limit=limit, outputs=outputs))
        return dict(zip(self._result_names, map(Tensor, results), strict=True))

    def in_order(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return feeds by name in the order of the inputs. Raises: InputNameError."""
        if type(feeds) is dict and len(feeds) == len(self._names):  # as it mostly is
            try:
                return list(map(feeds.__getitem__, self._names))  # faster than a comprehension, which is a call
            except KeyError:
                self._fail_names(feeds, self._names)
        return self.in_order_after((), feeds)

    def in_order_after(self, first: Sequence[Any], feeds: Mapping[str, Any]) -> list[Any]:
        """Return those that were given by position, then the others by name. Raises: InputNameError."""
        if not isinstance(feeds, Mapping):
            raise InputNameError(
                "the feeds must be given by name",
                where=self._function.name,
                found=type(feeds).__name__,
                expected=f"a dictionary of {', '.join(map(repr, self._function.inputs))}",
                hint="call the executable itself to give inputs by position",
            )
        names = self._names[len(first) :]
        if len(feeds) != len(names):
            self._fail_names(feeds, names)
        try:
            return [*first, *(feeds[name] for name in names)]
        except KeyError:
            self._fail_names(feeds, names)

    def take(self, values: Sequence[Any]) -> list[AnyArray]:
        """Convert a value for each input to an array of its dtype: what lies on the machine's device stays there.

        Raises: InputNameError, InputTypeError, DeviceError.
        """
        if len(values) != len(self._names):
            self._fail_count(values)
        return list(map(self._take_one, self._names, values, self._dtypes))

    def _take_one(self, name: str, value: Any, dtype: np.dtype) -> AnyArray:
        if type(value) is np.ndarray and value.dtype is dtype and self._driver is None:
            return value  # as it mostly is
        try:
            array = self._on_device(value)
            array = as_array(value, dtype.name) if array is None else array
        except (InputTypeError, DeviceError) as error:
            error.where = f"input {name!r}"
            raise
        if array.dtype != dtype and array.dtype != dtype.newbyteorder():
            raise InputTypeError(
                "a feed has the wrong dtype",
                where=f"input {name!r}",
                found=array.dtype.name,
                expected=dtype.name,
                hint=f"convert it: numpy.asarray(x, {dtype.name!r})",
            )
        return array

    def _on_device(self, value: Any) -> DeviceArray | None:
        if self._driver is None:
            return None
        from kernelyard.runtime.device.array import import_array

        return import_array(self._driver, value)

    def _fail_count(self, values: Sequence[Any]) -> NoReturn:
        raise InputNameError(
            f"{self._function.name} takes {len(self._names)} inputs",
            found=f"{len(values)} arguments",
            expected=", ".join(map(repr, self._function.inputs)),
        )

    def _fail_names(self, feeds: Mapping[str, Any], names: Sequence[str]) -> NoReturn:
        missing = [name for name in names if name not in feeds]
        unknown = [name for name in feeds if name not in names]
        parts = [f"the feed {name!r} is missing" for name in missing] + [f"{name!r} is no input" for name in unknown]
        hint = next(filter(None, (did_you_mean(name, missing or names) for name in unknown)), None)
        raise InputNameError(
            "the feeds do not match the program's inputs",
            where=self._function.name,
            found="; ".join(parts),
            expected=", ".join(map(repr, self._function.inputs)) or "no feeds",
            hint=hint,
        )
