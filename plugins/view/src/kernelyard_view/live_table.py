"""The table of a profile while it is taken, where there is a terminal to show it on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kernelyard_view.step_table import step_lines

if TYPE_CHECKING:
    from kernelyard.runtime.profiling.profile import Profile

    Watch = Callable[[Callable[[], Profile]], None]

LEAST_SECONDS = 0.3  # between two pictures: nothing is drawn while steps are timed
ROWS = 15


@contextmanager
def live_table(calls: int, roof: Mapping[str, float]) -> Iterator[Watch | None]:
    """Give what `profile(watch=)` takes, which draws the table; None where there is no terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    drawn = time.monotonic()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def watch(so_far: Callable[[], Profile]) -> None:
            nonlocal drawn
            if time.monotonic() - drawn >= LEAST_SECONDS:
                profile = so_far()
                lines = step_lines(profile, roof, console.width, ROWS)
                live.update(Text("\n".join([f"call {profile.calls} of {calls}", *lines])), refresh=True)
                drawn = time.monotonic()

        yield watch
