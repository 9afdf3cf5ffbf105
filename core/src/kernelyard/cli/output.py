"""Print what a command answers: lines that fit the terminal, or JSON alone."""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import click

from kernelyard.runtime.text_table import fold

_pending: ContextVar[list[str] | None] = ContextVar("pending", default=None)


def print_json(value: object) -> None:
    """Print JSON for machines; numbers that JSON does not have (infinities, NaN) become null."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    pending = _pending.get()
    if pending is None:
        click.echo(text)
    else:
        pending.append(text)


@contextmanager
def stdout_for_json() -> Iterator[None]:
    """Keep stdout for JSON: whatever else is printed meanwhile, by native code too, goes to stderr.

    What `print_json` is given is printed at the end.
    """
    texts: list[str] = []
    token = _pending.set(texts)
    sys.stdout.flush()
    stdout, sys.stdout = sys.stdout, sys.stderr
    descriptor = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        with suppress(TypeError, OSError, AttributeError):  # no C library by that name: Windows
            ctypes.CDLL(None).fflush(None)  # what native code printed lies in its buffer while stdout is a pipe
        os.dup2(descriptor, 1)
        os.close(descriptor)
        sys.stdout = stdout
        _pending.reset(token)
        for text in texts:
            click.echo(text)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def terminal_width() -> int | None:
    """Return the width of the terminal in columns; None when the output is no terminal, where lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(line: str) -> None:
    """Print a line, folded to the terminal."""
    width = terminal_width()
    fits = width is None or len(click.unstyle(line)) <= width
    for part in [line] if fits else fold(line, width):
        click.echo(part)
