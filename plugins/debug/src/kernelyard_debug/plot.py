"""Draw the errors of a model's layers as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from kernelyard_debug.difference import Difference

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 360, 70, 46, 40
LEAST, MOST = 1e-9, 1e2  # relative errors that the axis shows
GOOD, BAD, LINE = "#2f7ed8", "#c0392b", "#888888"


class Point(NamedTuple):
    """A layer's error. number: its place in the model."""

    number: int
    label: str
    difference: Difference


def plot(title: str, points: Sequence[Point]) -> str:
    """Return a picture: each layer's relative error over its place in the model; those that depart in red."""
    last = max((point.number for point in points), default=1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"',
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        *_grid(),
        *(_mark(point, last) for point in points),
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">layers, in the order of the model</text>',
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">relative error</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid() -> list[str]:
    lines: list[str] = []
    for power in range(round(math.log10(LEAST)), round(math.log10(MOST)) + 1, 2):
        y = _height(10.0**power)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>')
    return lines


def _mark(point: Point, last: int) -> str:
    found = point.difference
    error = math.inf if found.kind in ("shape", "nan", "inf") else found.relative
    x = LEFT + 10 + (WIDTH - LEFT - 40) * point.number / max(last, 1)
    color = BAD if found.kind else GOOD
    label = escape(f"{point.number} {point.label}: {found}")
    y, base = _height(error), HEIGHT - BOTTOM
    return (
        f'<g><title>{label}</title><line x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{y:.1f}" stroke="{LINE}"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/></g>'
    )


def _height(error: float) -> float:
    """Return where an error lies, from the top, in a logarithmic scale."""
    logarithm = math.log10(min(max(error, LEAST), MOST))
    share = (logarithm - math.log10(LEAST)) / (math.log10(MOST) - math.log10(LEAST))
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
