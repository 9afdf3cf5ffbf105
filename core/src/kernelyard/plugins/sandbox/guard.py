"""Running a plugin's code so that it cannot take the core down: exceptions are caught, hanging has an end."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any, TextIO, TypeVar

from kernelyard.errors import PluginError, PluginTimeoutError
from kernelyard.variables import EnvironmentVariable

T = TypeVar("T")
DEFAULT_TIMEOUT = 30.0
TIMEOUT_VARIABLE = EnvironmentVariable(
    "KERNELYARD_PLUGIN_TIMEOUT",
    "seconds that one call of a plugin may take, besides a tenth of a second per op or kernel of the call",
    "30",
)
MAX_TIMEOUT = 1e6
ITEMS_PER_TIMEOUT = 10  # an answer about so many ops may take twice as long


def timeout_seconds(items: int = 0) -> float:
    """Return the time limit of a plugin's import or call in seconds; `KERNELYARD_PLUGIN_TIMEOUT` overrides it.

    items: how many ops or kernels a call is about; each gives it a tenth of the time of one answer more.
    """
    text = TIMEOUT_VARIABLE.get()
    try:
        seconds = float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT:
        raise PluginError(
            f"{TIMEOUT_VARIABLE} is no usable number of seconds", found=text, expected=f"0 to {MAX_TIMEOUT:g}"
        )
    return seconds * (1 + items / ITEMS_PER_TIMEOUT)


def waits_for_processors(process: int | None = None, thread: int | None = None) -> float:
    """Return the seconds for which threads were ready to run and had no processor so far, all of them together.

    process: its number, None for this one. thread: the system's number of one of its threads, None for all.
    Source: Linux, Documentation/scheduler/sched-stats.rst. 0 elsewhere.
    """
    folder = f"/proc/{process or 'self'}/task"
    total = 0
    with suppress(OSError, ValueError):  # threads may end meanwhile
        for name in os.listdir(folder) if thread is None else (str(thread),):
            with open(f"{folder}/{name}/schedstat") as file:
                total += int(file.read().split()[1])
    return total * 1e-9


_LEAST_TICK = 0.01  # seconds: part of a wait is lost, and what is left must come to an end


class Countdown:
    """Count the seconds that somebody waits; those in which nothing could run are none.

    A process that was stopped, or whose machine slept, gives what it waits for the time that it has lost, and so does a
    machine that is busy with other work. starved: the seconds for which that waited for a processor so far.
    """

    def __init__(self, seconds: float, starved: Callable[[], float] = lambda: 0.0) -> None:
        self._seconds = seconds
        self._starved = starved
        self._known = 0.0  # of these seconds
        self._tick = max(min(seconds / 4, 1.0), _LEAST_TICK)  # of one wait, at most: what it takes longer is lost
        self._lost = 0.0
        self.renew()

    def renew(self) -> None:
        """Restart the time limit; may be called from any thread."""
        self._start = time.monotonic() - self._lost

    def wait(self, wait: Callable[[float], object]) -> bool:
        """Call `wait` with the seconds of a tick; False, and nothing is called, where none are left."""
        before = time.monotonic()
        left = self._start + self._seconds - (before - self._lost)
        if left <= 0:
            return False
        tick = min(max(left, _LEAST_TICK), self._tick)
        wait(tick)
        passed = time.monotonic() - before
        if passed >= tick:  # else the wait is over: most are, at once
            known, self._known = self._known, self._starved()
            self._lost += max(0.0, passed - tick, min(self._known - known, passed))
        return True


# The calls in progress in this context, whose time limits `progress` restarts, the outermost first.
_WAITING: ContextVar[tuple[Callable[[], None], ...]] = ContextVar("waiting", default=())


def progress() -> None:
    """Report from within a plugin's call that a part of it is done, and restart its time limit.

    For answers that take long because they run a compiler, say; one that hangs gives no sign, and is ended.
    """
    for hear in _WAITING.get():
        hear()


def heard(action: Callable[[], T], hear: Callable[[], None]) -> T:
    """Return the result of an action, each `progress` of which is passed on."""
    context = copy_context()
    context.run(_WAITING.set, (*_WAITING.get(), hear))
    return context.run(action)


def run_guarded(what: str, action: Callable[[], T]) -> T:
    """Return the result of a plugin's code.

    Raises: PluginTimeoutError, else PluginError with the plugin's own error as cause.
    """
    result, error = _outcome(what, action, timeout_seconds())
    if error is not None:
        raise _wrap_error(what, error) from error
    return result


def within_time(what: str, action: Callable[[], T], items: int = 0) -> T:
    """Return the result of a plugin's code, or the error that it raised, as it is.

    items: as in `timeout_seconds`.
    Raises: PluginTimeoutError, PluginError for SystemExit and the like, which a plugin must not raise.
    """
    result, error = _outcome(what, action, timeout_seconds(items))
    if error is None:
        return result
    raise error if isinstance(error, Exception) else _wrap_error(what, error)


def _wrap_error(what: str, error: BaseException) -> PluginError:
    return PluginError(f"{what} raised {type(error).__name__}: {error}")


def _outcome(what: str, action: Callable[[], T], seconds: float) -> tuple[T, BaseException | None]:
    """Run a plugin's code in a thread, so that the wait can time out, and return its outcome.

    Raises: PluginTimeoutError, which says where the plugin was.
    """
    outcome: dict[str, Any] = {}
    context = copy_context()  # options of passes and the like are found from the other thread, too
    countdown = Countdown(seconds, lambda: waits_for_processors(thread=thread.native_id))
    context.run(_WAITING.set, (*_WAITING.get(), countdown.renew))

    def run() -> None:
        try:
            outcome["result"] = context.run(action)
        except BaseException as error:  # a plugin may raise anything; the waiting thread reports it
            outcome["error"] = error

    thread = threading.Thread(target=run, name=f"kernelyard plugin: {what}", daemon=True)
    with _PRINTING:
        thread.start()
        while thread.is_alive() and countdown.wait(thread.join):
            pass
    if thread.is_alive():
        raise PluginTimeoutError(
            f"{what} did not finish within {seconds:g} s{_source_location(thread)}",
            hint=f"set {TIMEOUT_VARIABLE} to wait longer",
        )
    return outcome.get("result"), outcome.get("error")  # pyright: ignore[reportReturnType]


class _Diverted:
    """Within it, what is printed goes to stderr: a plugin's must not end up in what a command prints. Several threads
    may be in it at once, and the last one to leave puts stdout back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._stdout: TextIO | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._stdout, sys.stdout = sys.stdout, sys.stderr
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._stdout is not None:
                sys.stdout = self._stdout


_PRINTING = _Diverted()


def _source_location(thread: threading.Thread) -> str:
    """Return the current source location of a thread, for the error message."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return ""
    return f": it is in {frame.f_code.co_qualname} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"
