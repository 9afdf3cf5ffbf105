"""The processor of this machine: its model, its instruction sets, the sizes of its caches."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from kernelyard.records import record

INFO = "/proc/cpuinfo"
NAMES = ("model name", "CPU implementer", "CPU part", "model", "stepping")  # what tells kinds of processors apart
CACHES = "/sys/devices/system/cpu/cpu0/cache"  # source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu


@record
class Processor:
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
    facts = cpu_facts()
    parts = [
        facts[name] for name in ("model name", "CPU implementer", "CPU part", "model", "stepping") if name in facts
    ]
    return Processor(" ".join(parts) or platform.processor(), cpu_flags(), _caches())


def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of the first processor, as Linux calls them; none where nobody says."""
    facts = cpu_facts()
    return frozenset(facts.get("flags", facts.get("Features", "")).split())


@cache
def cpu_facts() -> Mapping[str, str]:
    """Return what Linux says of the first processor, "model name" and others; nothing elsewhere."""
    facts: dict[str, str] = {}
    with suppress(OSError), open(INFO, encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, text = line.partition(":")
            if not name.strip():  # the next one begins
                break
            facts[name.strip()] = text.strip()
    return facts


def _caches() -> tuple[str, ...]:
    from pathlib import Path  # inside: who loads an artifact asks for the flags alone

    found: list[str] = []
    with suppress(OSError):
        for folder in sorted(Path(CACHES).glob("index*")):
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
            found.append(f"L{level} {kind} {size}")
    return tuple(found)
