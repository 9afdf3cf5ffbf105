"""Tell what this processor is quick at, which decides between implementations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

# AMD's first family with AVX-512 (Zen 4) works on each vector in two halves: "Software Optimization Guide for the AMD
# Zen4 Microarchitecture", on the floating-point unit.
HALVING = ("AuthenticAMD", "25")


@cache
def has_half_wide_units() -> bool:
    """Return whether two 256-bit FMAs take no longer than a 512-bit one; False where Linux does not report the CPU."""
    facts = _facts()
    return (facts.get("vendor_id"), facts.get("cpu family")) == HALVING


@cache
def has_byte_permutations() -> bool:
    """Return whether an instruction looks up 64 bytes in two registers (AVX-512 VBMI); False where Linux does not
    report the CPU."""
    return "avx512vbmi" in _facts().get("flags", "").split()


def _facts() -> Mapping[str, str]:
    """Return what Linux reports of the first processor; nothing elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return dict(map(_fact, file.read().partition("\n\n")[0].splitlines()))
    except OSError:
        return {}


def _fact(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
