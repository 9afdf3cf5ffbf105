"""Signals that end a command: they are raised as exceptions, so that all temporary files are removed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(BaseException):
    """A signal has ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name

    @property
    def exit_code(self) -> int:
        """Return the exit code that shells report for a program that the signal ended."""
        return 128 + self.args[0]

    @property
    def says(self) -> str:
        """Return the text that is printed."""
        return "interrupted" if self.name == "SIGINT" else f"ended by {self.name}"


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted for Ctrl-C, and for the signals that end a program, in the main thread.

    Signals that the caller ignores stay ignored, as those of `nohup`.
    """
    taken = [number for number in ENDING if _is_default(number)]
    for number in taken:
        signal.signal(number, _raise)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(signal.SIGINT) from None
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _is_default(number: int) -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(number) is signal.SIG_DFL


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once: a second one must not end what cleans up
    raise Interrupted(number)
