"""`kernelyard.view`: the page of executables that are there already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelyard.runtime.execute.executable import Executable


def view(*executables: Executable, feeds: Mapping[str, Any] | None = None, calls: int = 10) -> str:
    """Return a page that shows an executable, or two side by side, as HTML text.

    feeds: by name; with them the steps are timed over so many calls, and the memory plan is shown.
    Raises: as running the program.
    """
    from kernelyard_view.measure import build_of
    from kernelyard_view.page import view_page

    titles = ("model",) if len(executables) == 1 else ("first", "second")
    return view_page([build_of(exe, title, feeds, calls) for exe, title in zip(executables, titles, strict=True)])
