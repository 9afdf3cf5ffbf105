"""Throughput of 512-bit vectors on this processor, which decides between implementations for AVX2 and AVX-512."""

from __future__ import annotations

from functools import cache

# AMD's first family with AVX-512 (Zen 4) works on each vector in two halves: "Software Optimization Guide for the AMD
# Zen4 Microarchitecture", on the floating-point unit.
HALVING = ("AuthenticAMD", "25")


@cache
def has_half_wide_units() -> bool:
    """Return whether two 256-bit FMAs take no longer than a 512-bit one; False where Linux does not report the CPU."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            facts = dict(map(_fact, file.read().partition("\n\n")[0].splitlines()))
    except OSError:
        return False
    return (facts.get("vendor_id"), facts.get("cpu family")) == HALVING


def _fact(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
