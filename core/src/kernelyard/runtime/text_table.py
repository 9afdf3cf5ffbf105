"""Tables, lines and numbers as text for people, folded to a width where there is one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

GAP = "  "
INDENT = "    "
LEAST = 8  # letters that a column keeps


def align_rows(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Format rows as lines with aligned cells.

    Where they are wider than `width`, last cells stand below their rows, and the widest of the others are folded.

    Example:
        >>> for line in align_rows([("op", "why"), ("exp", "no pattern has it")], 16):
        ...     print(line)
        op
            why
        exp
            no pattern
            has it
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is None or len(widths) < 2 or _total(widths) <= width:
        return [_line(row, widths) for row in rows]
    lines: list[str] = []
    widths = _fitting(widths[:-1], width)
    for *cells, last in rows:
        folded = [_wrap(cell, size) for cell, size in zip(cells, widths, strict=True)]
        for number in range(max(map(len, folded))):
            lines.append(_line([cell[number] if number < len(cell) else "" for cell in folded], widths))
        lines += fold(INDENT + last, width) if last else []
    return lines


def fold(line: str, width: int | None) -> list[str]:
    """Return a line as lines of at most `width`, all indented as it is.

    Example:
        >>> fold("  a line that is long", 12)
        ['  a line', '  that is', '  long']
    """
    if width is None or len(line) <= width:
        return [line]
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    return [indent + part for part in _wrap(text, max(LEAST, width - len(indent)))]


def amount(number: float) -> str:
    """Return a number with three digits and a unit.

    Example:
        >>> amount(12), amount(22_400_000_000)
        ('12', '22.4G')
    """
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}P"


def duration(seconds: float) -> str:
    """Format seconds with three digits and a unit.

    Example:
        >>> duration(1.5), duration(0.0123), duration(4.2e-05)
        ('1.5 s', '12.3 ms', '42 µs')
    """
    for scale, unit in ((1, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fitting(widths: Sequence[int], width: int) -> list[int]:
    """Return the widths with the widest made smaller until all fit, or none can be."""
    fitted = list(widths)
    while _total(fitted) > width and max(fitted) > LEAST:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)).rstrip()
