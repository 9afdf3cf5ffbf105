"""The processor of this machine: its model, its instruction sets, the sizes of its caches."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

INFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu


class Processor(NamedTuple):
    """Identify a kind of processor.

    flags: instruction sets, as Linux calls them; none where nobody says. caches: "L1 Data 32K", one text for each.
    """

    model: str
    flags: frozenset[str]
    caches: tuple[str, ...]


def processor() -> Processor:
    """Return the first processor of this machine.

    Example:
        >>> processor() == processor()
        True
    """
    values: dict[str, str] = {}
    with suppress(OSError):
        for line in INFO.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, text = line.partition(":")
            values.setdefault(name.strip(), text.strip())
    parts = [
        values[name] for name in ("model name", "CPU implementer", "CPU part", "model", "stepping") if name in values
    ]
    flags = values.get("flags", values.get("Features", ""))
    return Processor(" ".join(parts) or platform.processor(), frozenset(flags.split()), _caches())


def _caches() -> tuple[str, ...]:
    found: list[str] = []
    with suppress(OSError):
        for folder in sorted(CACHES.glob("index*")):
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
            found.append(f"L{level} {kind} {size}")
    return tuple(found)
