"""Show how far a batch job is, where there is a terminal to show it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_of(rows: int, done: int) -> Iterator[Callable[[int], None]]:
    """Give what is called with the rows that were computed; shows a bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda count: None
        return
    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as progress:
        task = progress.add_task("rows", total=rows, completed=done)
        yield lambda count: progress.advance(task, count)
