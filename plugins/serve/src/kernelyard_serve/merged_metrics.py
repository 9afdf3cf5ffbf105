"""Counts of several workers as those of one server, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

COUNTERS = ("_total", "_bucket", "_sum", "_count")  # ends of names of what only grows


def samples(text: str) -> Counter[str]:
    """Return the values of a text by name and labels.

    Example:
        >>> samples('# TYPE a counter\\na_total{x="1"} 2\\n')
        Counter({'a_total{x="1"}': 2.0})
    """
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] += float(value)  # pyright: ignore[reportArgumentType]  a Counter of floats
    return found


def keep_counters(found: Counter[str]) -> Counter[str]:
    """Return what only grows: it counts on when the worker that counted it is gone."""
    return Counter({name: value for name, value in found.items() if name.partition("{")[0].endswith(COUNTERS)})


def merge_metrics(texts: Iterable[str], more: Counter[str]) -> str:
    """Return one text whose values are the sums of those of several, and of `more`."""
    heads: dict[str, list[str]] = {}
    rows: dict[str, Counter[str]] = {}
    for text in texts:
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split()[2]
                known = heads.setdefault(family, [])
                if line not in known:
                    known.append(line)
            elif line:
                rows.setdefault(family, Counter()).update(samples(line))
    for name, value in more.items():
        plain = name.partition("{")[0]
        family = next((each for each in heads if plain == each or plain.startswith(f"{each}_")), plain)
        rows.setdefault(family, Counter())[name] += value
    lines: list[str] = []
    for family in [*heads, *(each for each in rows if each not in heads)]:
        lines += heads.get(family, [])
        lines += [f"{name} {_format_number(value)}" for name, value in rows.get(family, Counter()).items()]
    return "\n".join([*lines, ""])


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
