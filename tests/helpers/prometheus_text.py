"""Reads the text that Prometheus reads, as strictly as it does."""

from __future__ import annotations

import re

_SAMPLE = re.compile(
    r'([a-z_]+(?:\{[a-z]+="(?:[^"\\\n]|\\.)*"(?:,[a-z]+="(?:[^"\\\n]|\\.)*")*\})?) ([0-9.e+\-]+|\+Inf)'
)


def samples(text: bytes) -> dict[str, float]:
    """Return values by name and labels; every line has to be a comment or a sample."""
    lines = text.decode().splitlines()
    found = [_SAMPLE.fullmatch(line) for line in lines if not line.startswith(("# HELP ", "# TYPE "))]
    assert None not in found, lines
    return {each[1]: float(each[2]) for each in found if each}
