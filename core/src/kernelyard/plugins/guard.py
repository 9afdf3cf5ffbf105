"""Running a plugin's code so that it cannot take the core down: exceptions are caught, hanging has an end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, TypeVar

from kernelyard.errors import PluginError

T = TypeVar("T")
TIMEOUT_VARIABLE = "KERNELYARD_PLUGIN_TIMEOUT"
DEFAULT_TIMEOUT = 30.0
MAX_TIMEOUT = 1e6


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

    Runs it in a thread of its own, so that the wait can end. Raises: PluginError with the plugin's own error as cause.
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = action()
        except BaseException as error:  # a plugin may raise anything, SystemExit included; it is reported below
            outcome["error"] = error

    seconds = timeout_seconds()
    thread = threading.Thread(target=run, name=f"kernelyard plugin: {what}", daemon=True)
    with redirect_stdout(sys.stderr):  # what a plugin prints must not end up in what a command prints
        thread.start()
        thread.join(seconds)
    if thread.is_alive():
        raise PluginError(f"{what} did not finish within {seconds:g} s", hint=f"set {TIMEOUT_VARIABLE} to wait longer")
    if "error" in outcome:
        error = outcome["error"]
        raise PluginError(f"{what} raised {type(error).__name__}: {error}") from error
    return outcome["result"]
