"""Show what a long task is at, where there is a terminal to show it on."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status


class Progress:
    """Show a line on stderr that says what is going on, and goes when it is over; nothing where stderr is no terminal.

    Example:
        >>> with Progress("reducing model.onnx") as progress:
        ...     progress.step("512 operators")
    """

    def __init__(self, what: str) -> None:
        from rich.console import Console  # inside: it takes longer to load than short commands run

        self._what = what
        console = Console(stderr=True)
        self._status: Status | None = console.status(what) if console.is_terminal else None

    def step(self, what: str) -> None:
        """Say what is done next."""
        if self._status is not None:
            self._status.update(f"{self._what}: {what}")

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, place: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
