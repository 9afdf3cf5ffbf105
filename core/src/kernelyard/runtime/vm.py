"""VirtualMachine: runs the entry functions of an Executable on a device."""

from __future__ import annotations

import difflib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import DeviceError, ExecutionError, InputNameError, InputTypeError
from kernelyard.runtime.device import Device, cpu
from kernelyard.runtime.instance import Lane
from kernelyard.runtime.lru import LRU
from kernelyard.runtime.plan import Plan, Shapes
from kernelyard.runtime.program import Program, Step
from kernelyard.runtime.tensor import Tensor, as_array

if TYPE_CHECKING:
    from kernelyard.runtime.executable import Executable

MAX_PLANS = 16


class VMInstrumentReturnKind(IntEnum):
    """What an instrument may return from its call before a step."""

    NO_OP = 0
    SKIP_RUN = 1


Instrument: TypeAlias = Callable[..., Any]
"""`instrument(step, name, before_run, ret_value, *args)`; see `VirtualMachine.set_instrument`."""


@dataclass(frozen=True)
class BenchmarkResult:
    """Seconds per call, one number per repetition."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.results)

    @property
    def median(self) -> float:
        return statistics.median(self.results)

    @property
    def min(self) -> float:
        return min(self.results)

    @property
    def max(self) -> float:
        return max(self.results)

    @property
    def std(self) -> float:
        return statistics.pstdev(self.results)


class VirtualMachine:
    """An executable on a device. Plans (shapes, memory, bound steps) are kept for the last 16 sets of input shapes of
    each entry function; calls from many threads run at the same time, each on memory of its own.

    Example:
        vm = VirtualMachine(exe)
        y = vm["main"](x)
    """

    def __init__(self, executable: Executable, device: Device | None = None, threads: int | None = None) -> None:
        self.executable = executable
        self.device = device or cpu()
        self.device.require()
        if executable.target.split()[0] != self.device.kind:
            raise DeviceError(
                f"a program compiled for {executable.target} cannot run on {self.device}", expected=executable.target
            )
        self.threads = threads or executable.threads
        self._instrument: Instrument | None = None
        self._functions: dict[str, EntryFunction] = {
            name: EntryFunction(self, program) for name, program in executable.programs.items()
        }
        self._idle: list[Lane] = []
        self._saved: dict[str, Callable[[], Any]] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """The entry function of that name (or saved under it): arrays in, a Tensor or a tuple of Tensors out.

        Raises: ExecutionError.
        """
        return self._saved.get(name) or self._function(name)

    def _function(self, name: str) -> EntryFunction:
        function = self._functions.get(name)
        if function is None:
            raise ExecutionError(
                f"the executable has no entry function {name!r}",
                expected=", ".join(self._functions),
                hint=_did_you_mean(name, self._functions),
            )
        return function

    def run(self, name: str, feeds: Mapping[str, Any]) -> dict[str, Tensor]:
        """Call an entry function by the names of its inputs; the results by name."""
        return self._function(name).run(feeds)

    def set_instrument(self, instrument: Instrument | None) -> None:
        """Call `instrument(step, name, before_run, ret_value, *args)` before and after every step; None takes it away.

        step: the program's Step (label, symbol, ...). name: its symbol. ret_value: None before, the outputs after.
        args: the inputs. Tensors are views that hold only during the call. Returning `SKIP_RUN` before a step skips it.
        """
        self._instrument = instrument

    @property
    def instrument(self) -> Instrument | None:
        """What `set_instrument` set."""
        return self._instrument

    def take_lane(self) -> Lane:
        """Memory that no other thread uses, until `give_back`."""
        try:
            return self._idle.pop()
        except IndexError:
            return Lane()

    def give_back(self, lane: Lane) -> None:
        """Allow others to use a lane."""
        self._idle.append(lane)

    def save_function(self, name: str, saved_name: str, *args: Any) -> None:
        """Bind arguments: afterwards `vm[saved_name]()` calls entry function `name` with them."""
        function = self._function(name)
        if saved_name in self._functions:
            raise ExecutionError(f"{saved_name!r} is an entry function already", hint="save it under another name")
        arrays = function.take_positional(args)
        self._saved[saved_name] = lambda: function.call(arrays)

    def time_evaluator(self, name: str, number: int = 10, repeat: int = 1) -> Callable[..., BenchmarkResult]:
        """A function that takes the arguments of `vm[name]` and measures it: `repeat` times the mean of `number` calls.

        One call is made beforehand, so that preparing a plan is not measured.
        """
        if number < 1 or repeat < 1:
            raise ExecutionError("nothing to measure", found=f"number={number}, repeat={repeat}", expected="at least 1")
        function = self[name]

        def evaluate(*args: Any) -> BenchmarkResult:
            function(*args)
            results: list[float] = []
            for _ in range(repeat):
                start = time.perf_counter()
                for _ in range(number):
                    function(*args)
                results.append((time.perf_counter() - start) / number)
            return BenchmarkResult(tuple(results))

        return evaluate


class EntryFunction:
    """One program on one virtual machine: checks feeds, finds the plan, runs it."""

    def __init__(self, machine: VirtualMachine, program: Program) -> None:
        self._machine = machine
        self._program = program
        self._names = tuple(spec.name for spec in program.inputs)
        self._dtypes = tuple(dtypes.to_numpy(spec.dtype) for spec in program.inputs)
        self._result_names = tuple(spec.name for spec in program.outputs)
        self._plans: LRU[Shapes, Plan] = LRU(MAX_PLANS)
        self._last: tuple[Shapes | None, Plan | None] = (None, None)

    def __call__(self, *args: Any) -> Tensor | tuple[Tensor, ...]:
        return self.call(self.take_positional(args))

    def call(self, arrays: Sequence[np.ndarray]) -> Tensor | tuple[Tensor, ...]:
        """The results for arrays that have been checked."""
        results = self._execute(arrays)
        return Tensor(results[0]) if len(results) == 1 else tuple(map(Tensor, results))

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Tensor]:
        """The results by name."""
        if not isinstance(feeds, Mapping):
            raise InputNameError(
                "the feeds have no names",
                where=self._program.name,
                found=type(feeds).__name__,
                expected=f"a dictionary of {', '.join(map(repr, self._program.inputs))}",
                hint="call the executable itself to give inputs by position",
            )
        if len(feeds) != len(self._names):
            self._fail_names(feeds)
        try:
            values = [feeds[name] for name in self._names]
        except KeyError:
            self._fail_names(feeds)
        results = self._execute(self._take(values))
        return dict(zip(self._result_names, map(Tensor, results), strict=True))

    def take_positional(self, args: Sequence[Any]) -> Sequence[np.ndarray]:
        """Arguments as checked arrays.

        Raises: InputNameError for a wrong number, InputTypeError.
        """
        if len(args) != len(self._names):
            raise InputNameError(
                f"{self._program.name} takes {len(self._names)} inputs",
                found=f"{len(args)} arguments",
                expected=", ".join(map(repr, self._program.inputs)),
            )
        return self._take(args)

    def _take(self, values: Sequence[Any]) -> Sequence[np.ndarray]:
        # The usual feeds are NumPy arrays of the very dtypes: nothing else is asked of them here.
        for value, dtype in zip(values, self._dtypes, strict=True):
            if type(value) is not np.ndarray or value.dtype is not dtype:
                return list(map(self._take_other, self._names, values, self._dtypes))
        return values

    def _take_other(self, name: str, value: Any, dtype: np.dtype) -> np.ndarray:
        try:
            array = as_array(value, dtype.name)
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

    def _fail_names(self, feeds: Mapping[str, Any]) -> NoReturn:
        missing = [name for name in self._names if name not in feeds]
        unknown = [name for name in feeds if name not in self._names]
        parts = [f"no feed is called {name!r}" for name in missing] + [f"{name!r} is no input" for name in unknown]
        hint = next(filter(None, (_did_you_mean(name, missing or self._names) for name in unknown)), None)
        raise InputNameError(
            "the feeds are not the program's inputs",
            where=self._program.name,
            found="; ".join(parts),
            expected=", ".join(map(repr, self._program.inputs)) or "no feeds",
            hint=hint,
        )

    def _execute(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        shapes = tuple([array.shape for array in arrays])
        last_shapes, plan = self._last
        if plan is None or shapes != last_shapes:
            plan = self._plan(shapes)
        machine = self._machine
        lane = machine.take_lane()
        try:
            instance = lane.instance(plan, machine.executable, machine.threads)
            if machine.instrument is None:
                return instance.run(arrays)
            return instance.run_stepwise(arrays, _around(machine.instrument))
        finally:
            machine.give_back(lane)

    def _plan(self, shapes: Shapes) -> Plan:
        plan = self._plans.get_or_make(shapes, lambda: Plan(self._program, shapes))
        self._last = (shapes, plan)
        return plan


def _around(instrument: Instrument) -> Callable[..., None]:
    def around(
        step: Step, run: Callable[[], None], inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        args = tuple(map(Tensor, inputs))
        if instrument(step, step.symbol, True, None, *args) != VMInstrumentReturnKind.SKIP_RUN:
            run()
        instrument(step, step.symbol, False, tuple(map(Tensor, outputs)), *args)

    return around


def _did_you_mean(name: str, known: Any) -> str | None:
    close = difflib.get_close_matches(str(name), list(known), 1)
    return f"did you mean {close[0]!r}?" if close else None
