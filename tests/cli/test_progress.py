"""The line that says what goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kernelyard.cli.progress import Progress


@pytest.fixture
def stderr(monkeypatch):
    """Return what a console writes, made for a terminal or for a file."""

    def choose(terminal: bool) -> io.StringIO:
        written = io.StringIO()
        monkeypatch.setattr(
            "rich.console.Console", lambda stderr: Console(file=written, force_terminal=terminal, width=60)
        )
        return written

    return choose


def test_a_terminal_shows_what_goes_on(stderr):
    written = stderr(terminal=True)
    with Progress("reducing") as progress:
        progress.step("12 operators")
    assert "reducing" in written.getvalue()


def test_files_stay_quiet(stderr):
    written = stderr(terminal=False)
    with Progress("reducing") as progress:
        progress.step("12 operators")
    assert written.getvalue() == ""
