"""Run a check in a process of its own, so that a crash or an endless loop is a verdict."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO, Any, Generic, TypeVar

from kernelyard.errors import KernelyardError
from kernelyard.plugins.sandbox.worker_process import cause
from kernelyard_debug.errors import IsolationError

T = TypeVar("T")
TAIL = 1500  # characters of what a dead process wrote that are kept
Announce = Callable[[str], None]


@dataclass(frozen=True)
class Finished(Generic[T]):
    """The function returned."""

    value: T


@dataclass(frozen=True)
class Failed:
    """The function raised. facts: those of a KernelyardError, else its type and message; notes: what was added."""

    facts: dict[str, str | None]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Died:
    """The process ended, or was ended when its time was up. stage: what it had announced last."""

    reason: str
    stage: str
    last_words: str = ""
    timed_out: bool = False


def run_isolated(function: Callable[[Announce], T], timeout: float) -> Finished[T] | Failed | Died:
    """Run a function in a copy of this process, for so many seconds at most.

    The function is given `announce`: a text that it passes on says what it is at, which is known if it dies. What it
    prints is shown if it dies. Its result is pickled.
    Raises: IsolationError where processes cannot be copied.
    """
    if not hasattr(os, "fork"):
        raise IsolationError(
            "checks run in copies of this process, which this system cannot make",
            found=sys.platform,
            expected="Linux or macOS",
        )
    receiver: Any
    sender: Any  # the stubs have Windows' class here, too
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        with warnings.catch_warnings(action="ignore"):  # threads of libraries are idle here, and the copy has its own
            child = os.fork()
        if child == 0:
            _work(function, sender, output)
        sender.close()
        try:
            return _verdict(child, receiver, output, timeout)
        except BaseException:  # Ctrl-C
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        finally:
            receiver.close()


def _work(function: Callable[[Announce], Any], sender: Connection, output: IO[str]) -> None:
    """Run the function, send what came of it, and end the process."""
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        faulthandler.enable(output)
        sys.stdout = sys.stderr = open(2, "w", closefd=False, encoding="utf-8")  # noqa: SIM115  # until the end
        verdict: Finished[Any] | Failed
        try:
            with warnings.catch_warnings(action="ignore"):
                verdict = Finished(function(sender.send))
        except BaseException as error:
            verdict = _describe_failure(error)
        sender.send(verdict)
        sender.close()
    finally:
        os._exit(0)


def _describe_failure(error: BaseException) -> Failed:
    notes = tuple(getattr(error, "__notes__", ()))
    if isinstance(error, KernelyardError):
        return Failed(error.to_json(), notes)
    place = traceback.format_tb(error.__traceback__)[-1].strip().splitlines()[0] if error.__traceback__ else None
    return Failed({"code": None, "error": type(error).__name__, "message": str(error), "where": place}, notes)


def _verdict(child: int, receiver: Connection, output: IO[str], timeout: float) -> Finished[Any] | Failed | Died:
    stage, deadline = "", time.monotonic() + timeout
    while receiver.poll(max(0.0, deadline - time.monotonic())):
        try:
            said = receiver.recv()
        except (EOFError, ConnectionError):
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return Died(cause(status), stage, _tail(output))
        if isinstance(said, str):
            stage = said
            continue
        os.waitpid(child, 0)
        return said
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Died(f"no end within {timeout:g} s", stage, _tail(output), timed_out=True)


def _tail(output: IO[str]) -> str:
    output.seek(0)
    return output.read().strip()[-TAIL:]
