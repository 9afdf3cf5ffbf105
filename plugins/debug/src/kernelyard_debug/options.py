"""Options that the commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

AGAINST = "reference, onnxruntime, native-cpu, other backends (a,b), or for diff an artifact (default: reference)."


def compare_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --against, --tolerance and --timeout."""
    options = [
        click.option("--against", metavar="WAY", help=AGAINST),
        click.option("--tolerance", type=click.FloatRange(0), help="Largest error, relative to the largest magnitude."),
        click.option(
            "--timeout",
            type=click.FloatRange(0, min_open=True),
            default=120.0,
            help="Time limit of one check, in seconds.",
        ),
    ]
    for option in options:
        function = option(function)
    return function


check_option = click.option(
    "--check", metavar="CMD", help="A command that fails where the failure is; {model} is an ONNX file."
)


def check_one_oracle(check: str | None, against: str | None) -> None:
    """Check that not both a command and a runner are given. Raises: UsageError."""
    if check is not None and against is not None:
        raise click.UsageError("--check and --against exclude each other: one oracle at a time")
