"""Worker: a process that answers questions, one JSON line each; after a crash the next question gets another one.

What may end the process that runs it is run in one of these.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TextIO

from kernelyard.plugins.sandbox.guard import Countdown, waits_for_processors

TAIL = 1500  # characters of what a dead process wrote that a message shows
ALIVE = "alive\n"  # what a worker may send before its answer, to restart the time limit
_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main()
"""


def python_main(module: str) -> list[str]:
    """Return the arguments of a Python that imports as this one does, and runs `main` of a module."""
    return ["-P", "-c", _BOOT.format(module=module), json.dumps(sys.path)]


class Crashed(Exception):  # noqa: N818  # what was found, not what went wrong
    """The process died while it worked on a question. status: its exit status, minus the signal that ended it.

    last_words: all that it wrote.
    """

    def __init__(self, status: int, last_words: str) -> None:
        super().__init__(f"the process ended with {cause(status)}{_tail(last_words)}")
        self.status = status
        self.last_words = last_words


class Hung(Exception):  # noqa: N818
    """The process did not answer in time."""


class Worker:
    """A Python process, started with `arguments` at the first question or by `start`, and again after it died."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-X", "faulthandler", *arguments]
        self._environment = dict(environment) if environment is not None else None
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # see close

    def ask(self, question: object, timeout: float, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """Return the answer. meanwhile: called now and then while it is waited for.

        Raises: Crashed, Hung.
        """
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        patience = _Patience(process, timeout, meanwhile)
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            while (line := process.stdout.readline()) == ALIVE:
                patience.renew()
        except BrokenPipeError:
            line = ""
        finally:
            is_late = patience.end()
        if line.endswith("\n"):
            return json.loads(line)
        status = process.wait()
        words = self._last_words()
        self.stop()
        if is_late:
            raise Hung(f"no answer within {timeout:g} s{_tail(words)}")
        raise Crashed(status, words)

    def stop(self) -> None:
        """End the process; the next question starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):  # what was not written is lost with the process
            process.__exit__(None, None, None)

    def close(self) -> None:
        """End the process and forget what it wrote."""
        self.stop()
        self._errors.close()

    def start(self) -> subprocess.Popen[str]:
        """Start the process, where there is none: it begins before there is a question."""
        if self._process is not None:
            return self._process
        self._errors.seek(0)
        self._errors.truncate()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=self._environment,
            text=True,
            encoding="utf-8",
        )
        return self._process

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().strip()


def _tail(text: str) -> str:
    return f"\n{text[-TAIL:]}" if text else ""


class _Patience:
    """Kills a process that does not answer in time."""

    def __init__(self, process: subprocess.Popen[str], timeout: float, meanwhile: Callable[[], None]) -> None:
        self._process = process
        self._countdown = Countdown(timeout, lambda: waits_for_processors(process.pid))
        self._meanwhile = meanwhile
        self._over = threading.Event()
        self._is_late = False
        self._thread = threading.Thread(target=copy_context().run, args=(self._wait,), daemon=True)
        self._thread.start()

    def renew(self) -> None:
        self._countdown.renew()

    def end(self) -> bool:
        """Wait no more; True where the process was killed."""
        self._over.set()
        self._thread.join()
        return self._is_late

    def _wait(self) -> None:
        while self._countdown.wait(self._over.wait):
            if self._over.is_set():
                return
            self._meanwhile()
        self._is_late = True
        self._process.kill()


def cause(status: int) -> str:
    """Describe an exit status: the signal that ended the process, else its number.

    Example:
        >>> cause(-11), cause(3)
        ('signal 11 (SIGSEGV)', 'exit status 3')
    """
    if status >= 0:
        return f"exit status {status}"
    name = next((known.name for known in signal.Signals if known == -status), "")
    return f"signal {-status} ({name})" if name else f"signal {-status}"


def leave_no_core_file() -> None:
    """Disable core dumps of this (worker) process."""
    with suppress(ImportError, OSError, ValueError):  # not everywhere, not always allowed
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def private_streams() -> tuple[TextIO, TextIO]:
    """Return the worker's streams of requests and answers. What other code reads and prints is neither: stdin
    is empty from here on, and stdout goes where stderr goes."""
    questions = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return questions, answers
