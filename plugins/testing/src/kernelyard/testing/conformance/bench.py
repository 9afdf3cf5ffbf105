"""Bench: carries out cases on one backend. First that the operators ran there, then that the numbers are right."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

import kernelyard as ky
from kernelyard.errors import PerformanceWarning, PluginContractError
from kernelyard.ir import IRModule
from kernelyard.plugins.sandbox.worker_process import Worker
from kernelyard.runtime.device.tensor import as_array
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_words import VIEW
from kernelyard.testing.assertions import assert_allclose
from kernelyard.testing.conformance.layouts import lay_out
from kernelyard.testing.conformance.place import device_of
from kernelyard.testing.conformance.rerun import RERUN, from_json, to_json
from kernelyard.testing.reference import evaluate

DENSE = "dense"
CALLERS = 8  # threads that call one program at once
Feeds = Sequence[np.ndarray]


class Declined(Exception):  # noqa: N818  # what was found, not what went wrong
    """The backend did not take what it claims to take."""


class Differs(Exception):  # noqa: N818
    """The backend's numbers are not the reference's."""


class NothingToRun(Exception):  # noqa: N818
    """The simplifier left no operator, so that there is nothing for a backend to take."""


class Bench:
    """One backend under test. device: the index of the device to run on, where the backend is not for the CPU."""

    def __init__(self, backend: str, timeout: float = 60.0, device: str = "") -> None:
        self.backend = backend
        self.device = device_of(backend, device)
        self._timeout = timeout
        self._kept: tuple[str, Executable, IRModule] | None = None
        self._machine: tuple[Executable, ky.VirtualMachine] | None = None

    # --- compiling ----------------------------------------------------------------------------------------------------
    def compile(self, module: IRModule) -> Executable:
        """Return a program whose backend kept its word; what it does not take runs on NumPy.

        Raises: PluginContractError.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            exe = ky.compile(module, target=self.device.kind, backends=[self.backend])
        for violation in exe.report.violations:
            accepted = f"it accepted {', '.join(violation.functions)}, then: " if violation.functions else ""
            raise PluginContractError(accepted + violation.message)
        return exe

    def compile_offloaded(self, module: IRModule, added: Collection[str] = ()) -> Executable:
        """Return a program all of whose operators run on the backend; `added`: those that may run elsewhere.

        Raises: Declined, NothingToRun.
        """
        exe = self.compile(module)
        rows = [row for row in exe.report.placed if row.op not in added]
        elsewhere = [row for row in rows if row.backend not in (self.backend, VIEW)]
        if elsewhere:
            raise Declined(f"{elsewhere[0].op} ran on {elsewhere[0].backend}{self._reasons(exe.report)}")
        if not any(row.backend == self.backend for row in rows):
            raise NothingToRun("the simplifier leaves nothing to run")
        return exe

    def compile_offloaded_once(self, name: str, make: Callable[[], IRModule]) -> tuple[Executable, IRModule]:
        """Compile as `taken`, and keep the last program for following cases with the same module.

        Raises: Declined, NothingToRun.
        """
        if self._kept is None or self._kept[0] != name:
            self._kept = None
            module = make()
            self._kept = name, self.compile_offloaded(module), module
        return self._kept[1:]

    def compile_as_one(self, module: IRModule) -> Executable:
        """Return a program that is one composite.

        Raises: Declined, NothingToRun.
        """
        exe = self.compile_offloaded(module)
        groups = [region.ops for region in exe.report.regions]
        if len(groups) != 1:
            raise Declined(f"{len(groups)} composites instead of one: {groups}{self._reasons(exe.report)}")
        return exe

    def compile_offloaded_or_refused(self, module: IRModule, ops: Collection[str]) -> Executable:
        """Return a program in which each of these operators runs on the backend, or has its reason for running
        elsewhere.

        Raises: Declined.
        """
        exe = self.compile(module)
        refused = {entry.op for entry in exe.report.declined if entry.backend == self.backend}
        for row in exe.report.placed:
            if row.op in ops and row.op not in refused and row.backend not in (self.backend, VIEW):
                raise Declined(f"{row.op} ran on {row.backend}, without a decline reason")
        return exe

    def compile_among_others(self, module: IRModule, ops: Sequence[str]) -> Executable:
        """Return a program in which some of these operators run on the backend.

        Raises: Declined.
        """
        exe = self.compile(module)
        if not any(row.backend == self.backend and row.op in ops for row in exe.report.placed):
            raise Declined(f"none of {', '.join(ops)} ran on {self.backend}{self._reasons(exe.report)}")
        return exe

    def has_taken(self, exe: Executable) -> bool:
        """Return whether an operator of a program runs on the backend."""
        return any(row.backend == self.backend for row in exe.report.placed)

    def _reasons(self, report: Report) -> str:
        return "".join(f"\n  {d.pattern}: {d.code}: {d.message}" for d in report.declined if d.backend == self.backend)

    # --- running ------------------------------------------------------------------------------------------------------
    def right(self, exe: Executable, module: IRModule, feeds: Feeds, layout: str = DENSE) -> None:
        """Check that the program computes what the reference does; `layout`: the memory layout of the feeds.

        Raises: Differs.
        """
        given = feeds if layout == DENSE else lay_out(layout, feeds)
        self.compare(self.outputs(exe, given), evaluate(module, feeds))

    @contextmanager
    def naming(self, circumstance: str) -> Iterator[None]:
        """Begin the message of what differs inside with a circumstance."""
        try:
            yield
        except Differs as found:
            raise Differs(f"{circumstance}: {found}") from found

    def outputs(self, exe: Executable, feeds: Feeds) -> list[np.ndarray]:
        """Return the results of one call as arrays."""
        result = self._entry(exe)(*feeds)
        return [as_array(tensor) for tensor in (result if isinstance(result, tuple) else (result,))]

    def _entry(self, exe: Executable) -> Callable[..., object]:
        if self.device.kind == "cpu":
            return exe
        kept = self._machine
        if kept is None or kept[0] is not exe:
            kept = self._machine = exe, ky.VirtualMachine(exe, self.device)
        return kept[1][exe.main.name]

    def compare(self, actual: Feeds, expected: Feeds) -> None:
        """Compare results with the expected ones. Raises: Differs."""
        if len(actual) != len(expected):
            raise Differs(f"{len(actual)} outputs, expected {len(expected)}")
        for one, other in zip(actual, expected, strict=True):
            try:
                assert_allclose(one, other)
            except AssertionError as error:
                raise Differs(str(error)) from error

    def right_but_for_halves(self, exe: Executable, module: IRModule, feeds: Feeds, most: float) -> None:
        """Check that the program's integers are the reference's; a share of them, at most `most`, may differ by one.

        Raises: Differs.
        """
        for one, other in zip(self.outputs(exe, feeds), evaluate(module, feeds), strict=True):
            off = np.abs(one.astype(np.int64) - other.astype(np.int64))
            if off.size and (off.max() > 1 or off.mean() > most):
                raise Differs(f"{off.mean():.1%} of the integers differ, by up to {off.max()}")

    def right_with_threads(self, exe: Executable, module: IRModule, feeds: Feeds) -> None:
        """Check for the same numbers with one thread, with several, and when many callers share the program.

        Raises: Differs.
        """
        rows = [[_scale(array, number) for array in feeds] for number in range(1, CALLERS + 1)]
        expected = [evaluate(module, row) for row in rows]
        for threads in (1, 2):
            exe.threads = threads
            with ThreadPoolExecutor(CALLERS) as callers:
                for actual, wanted in zip(callers.map(lambda row: self.outputs(exe, row), rows), expected, strict=True):
                    self.compare(actual, wanted)

    def right_after_saving(
        self, exe: Executable, module: IRModule, feeds: Feeds, expected: Feeds | None = None
    ) -> None:
        """Check the saved program's results in a process of its own, which imports runtime halves alone.

        expected: in place of the reference's.

        Raises: Differs; AssertionError when the compile half was needed.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "case.kyar"
            exe.save(path)
            device = [self.device.kind, self.device.index]
            question = {"artifact": str(path), "device": device, "feeds": [to_json(array) for array in feeds]}
            answer = self._loader.ask(question, self._timeout)
        if "error" in answer:
            raise AssertionError(f"the saved program cannot be run: {answer['error']}")
        if answer["compiler"]:
            raise AssertionError(f"running an artifact imported {', '.join(answer['compiler'])}")
        found = [from_json(value) for value in answer["outputs"]]
        self.compare(found, evaluate(module, feeds) if expected is None else expected)

    @cached_property
    def _loader(self) -> Worker:
        return Worker(["-c", RERUN])


def _scale(array: np.ndarray, number: int) -> np.ndarray:
    """Other elements for each number; integers and booleans, which may be indices, stay."""
    return (array * np.asarray(number / CALLERS, array.dtype)) if array.dtype.kind not in "iub" else array
