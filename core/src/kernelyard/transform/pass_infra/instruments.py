"""Instruments: what can be watched while passes run."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernelyard.errors import PassError, VerifyError
from kernelyard.ir import IRModule, to_text, verify
from kernelyard.transform.pass_infra.pass_base import Instrument, Pass, PassContext, Sequential


@dataclass(frozen=True)
class PassTime:
    """The duration of one run of a pass; `depth` counts the sequences around it."""

    name: str
    depth: int
    seconds: float


class TimingInstrument(Instrument):
    """Measures every pass. `times` is in order of completion: a sequence comes after its passes.

    Example:
        >>> timing = TimingInstrument()
        >>> with PassContext(instruments=[timing]):
        ...     pass
        >>> timing.times
        []
    """

    def __init__(self) -> None:
        self.times: list[PassTime] = []
        self._started: list[float] = []

    def before_pass(self, pass_: Pass, module: IRModule, depth: int) -> None:
        # What a failed pass left behind is deeper than we are.
        del self._started[depth:]
        self._started.append(time.perf_counter())

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        self.times.append(PassTime(pass_.name, depth, time.perf_counter() - self._started.pop()))

    def __str__(self) -> str:
        """Return a table, one line per pass, indented by depth."""
        return "\n".join(f"{t.seconds * 1e3:9.2f} ms  {'  ' * t.depth}{t.name}" for t in self.times)


class DumpIR(Instrument):
    """Gives the module's text after every pass to a folder (files `001-name.ir`), or to a function(name, text)."""

    def __init__(self, target: str | Path | Callable[[str, str], object], constants: str = "elided") -> None:
        self._target = target
        self._constants = constants
        self._count = 0

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        if isinstance(pass_, Sequential):
            return
        self._count += 1
        text = to_text(after, self._constants)
        if callable(self._target):
            self._target(pass_.name, text)
            return
        folder = Path(self._target)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self._count:03}-{pass_.name}.ir").write_text(text, encoding="utf-8")


class VerifyEach(Instrument):
    """Verifies the module before the first pass and after every pass.

    Raises: PassError that names the pass which left a malformed module.
    """

    def __init__(self) -> None:
        self._verified: IRModule | None = None

    def enter(self, context: PassContext) -> None:
        self._verified = None

    def before_pass(self, pass_: Pass, module: IRModule, depth: int) -> None:
        if module is not self._verified:
            self._verified = verify(module)

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        if after is self._verified:
            return
        try:
            self._verified = verify(after)
        except VerifyError as error:
            raise PassError(
                f"pass {pass_.name!r} left a malformed module: {error.message}",
                where=error.where,
                found=error.found,
                expected=error.expected,
            ) from error


class PrintChanged(Instrument):
    """Writes what each pass changed, as a unified diff of the text; passes that changed nothing are not mentioned."""

    def __init__(self, write: Callable[[str], object] = print, lines_around: int = 3) -> None:
        self._write = write
        self._lines_around = lines_around

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        if after is before or isinstance(pass_, Sequential):
            return
        texts = (str(before).splitlines(), str(after).splitlines())
        labels = {"fromfile": f"before {pass_.name}", "tofile": f"after {pass_.name}"}
        diff = list(difflib.unified_diff(*texts, lineterm="", n=self._lines_around, **labels))
        if diff:
            self._write("\n".join(diff))
