"""CallLimit: the time limit and the cancellation of a call, both checked between its steps."""

from __future__ import annotations

import ctypes
import time
from typing import NoReturn

from kernelyard.errors import CallCancelledError, CallTimeoutError, ExecutionError
from kernelyard.runtime.jit.dispatch_loop import CANCELLED

# How long a call that waits for an execution context sleeps at most before it checks its limit again.
_WAIT_SECONDS = 0.01


class Cancellation:
    """Cancels calls from another thread: those that were given it, at their next step, and those yet to begin.

    Example:
        >>> cancellation = Cancellation()
        >>> cancellation.cancel()
        >>> cancellation.is_cancelled
        True
    """

    def __init__(self) -> None:
        self.flag = ctypes.c_int64(0)  # the dispatch loop reads it

    def cancel(self) -> None:
        """End the calls; each raises CallCancelledError. May be called from any thread, and more than once."""
        self.flag.value = 1

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` was called."""
        return bool(self.flag.value)


class CallLimit:
    """When a call ends at the latest: after `timeout` seconds from now, or when it is cancelled.

    deadline: in nanoseconds of the monotonic clock, 0 for none. flag: the address of a word that is not 0 once the call
    is cancelled. Raises: ExecutionError for a time limit that is no positive number.
    """

    def __init__(self, timeout: float | None = None, cancellation: Cancellation | None = None) -> None:
        if timeout is not None and not timeout > 0:
            raise ExecutionError("a time limit must be positive", found=timeout, expected="seconds, or None")
        self.timeout = timeout
        self.cancellation = cancellation or Cancellation()
        self.flag = ctypes.addressof(self.cancellation.flag)
        # 1e8 seconds, more than three years, stand for longer limits: they fit the 64-bit clock.
        self.deadline = time.monotonic_ns() + int(min(timeout, 1e8) * 1e9) if timeout is not None else 0

    def check(self) -> None:
        """Raise CallCancelledError or CallTimeoutError where the call is to end."""
        if self.cancellation.is_cancelled:
            self.fail(CANCELLED)
        if self.deadline and time.monotonic_ns() >= self.deadline:
            self.fail(0)

    def wait_seconds(self) -> float:
        """Return how many seconds a call may wait before it must `check` again."""
        if not self.deadline:
            return _WAIT_SECONDS
        return min(_WAIT_SECONDS, max(0.0, 1e-9 * (self.deadline - time.monotonic_ns())))

    def fail(self, reason: int) -> NoReturn:
        """Raise the error of a call that was ended, CANCELLED or late."""
        if reason == CANCELLED:
            raise CallCancelledError("the call was cancelled")
        raise CallTimeoutError(
            "the call took longer than its time limit",
            expected=f"at most {self.timeout:g} s",
            hint="increase the time limit, or run fewer calls at once; the executable can be called again",
        )
