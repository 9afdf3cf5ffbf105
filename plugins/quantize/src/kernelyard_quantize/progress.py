"""Show how far a long task is, where there is a terminal to show it on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")


def track_progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield items, with a bar on stderr that goes when they are through; without one where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if not console.is_terminal:
        yield from items
        return
    count = total if total is not None else len(items) if isinstance(items, Sized) else None
    yield from track(items, what, total=count, console=console, transient=True)
