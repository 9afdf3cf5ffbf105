"""Running a plugin's code so that it cannot take the core down: exceptions are caught, hanging has an end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from contextvars import copy_context
from typing import Any, TypeVar

from kernelyard.errors import PluginError, PluginTimeoutError

T = TypeVar("T")
TIMEOUT_VARIABLE = "KERNELYARD_PLUGIN_TIMEOUT"
DEFAULT_TIMEOUT = 30.0
MAX_TIMEOUT = 1e6
ITEMS_PER_TIMEOUT = 10  # an answer about so many ops may take twice as long


def timeout_seconds() -> float:
    """How long a plugin may take to import or to answer; `KERNELYARD_PLUGIN_TIMEOUT` sets another number."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT:
        raise PluginError(
            f"{TIMEOUT_VARIABLE} is no usable number of seconds", found=text, expected=f"0 to {MAX_TIMEOUT:g}"
        )
    return seconds


def guarded(what: str, action: Callable[[], T]) -> T:
    """The result of a plugin's code.

    Raises: PluginTimeoutError, else PluginError with the plugin's own error as cause.
    """
    try:
        return within_time(what, action)
    except PluginTimeoutError:
        raise
    except BaseException as error:  # a plugin may raise anything, SystemExit included
        if isinstance(error, KeyboardInterrupt):
            raise
        raise PluginError(f"{what} raised {type(error).__name__}: {error}") from error


def within_time(what: str, action: Callable[[], T], items: int = 0) -> T:
    """The result of a plugin's code, or the error that it raised, as it is.

    Runs it in a thread of its own, so that the wait can end. items: how many ops or kernels it is about; each gives it
    a tenth of the time of one answer more. Raises: PluginTimeoutError, which says where the plugin was.
    """
    outcome: dict[str, Any] = {}
    context = copy_context()  # options of passes and the like are found from the other thread, too

    def run() -> None:
        try:
            outcome["result"] = context.run(action)
        except BaseException as error:  # raised again where it is waited for
            outcome["error"] = error

    seconds = timeout_seconds() * (1 + items / ITEMS_PER_TIMEOUT)
    thread = threading.Thread(target=run, name=f"kernelyard plugin: {what}", daemon=True)
    with redirect_stdout(sys.stderr):  # what a plugin prints must not end up in what a command prints
        thread.start()
        thread.join(min(seconds, threading.TIMEOUT_MAX))
    if thread.is_alive():
        raise PluginTimeoutError(
            f"{what} did not finish within {seconds:g} s{_place(thread)}",
            hint=f"set {TIMEOUT_VARIABLE} to wait longer",
        )
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def _place(thread: threading.Thread) -> str:
    """Where a thread is, for those who have to mend it."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return ""
    return f": it is in {frame.f_code.co_qualname} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"
