"""Tell what this processor is quick at, which decides between implementations."""

from __future__ import annotations

from functools import cache

from kernelyard.runtime.api import cpu_facts, cpu_flags
from kernelyard_dnnl._native import load_library

# AMD's first family with AVX-512 (Zen 4) works on each vector in two halves: "Software Optimization Guide for the AMD
# Zen4 Microarchitecture", on the floating-point unit.
HALVING = ("AuthenticAMD", "25")

# Bits of `dnnl_cpu_isa_t`: AVX-512, and with VNNI.
VECTORS_512, VNNI_512 = 0x27, 0x67


def has_wide_vectors() -> bool:
    """Return whether oneDNN may use AVX-512 here."""
    return load_library().call("dnnl_get_effective_cpu_isa") & VECTORS_512 == VECTORS_512


def has_wide_integers() -> bool:
    """Return whether oneDNN may use AVX-512 with VNNI here: code of ours goes by what the library goes by."""
    return load_library().call("dnnl_get_effective_cpu_isa") & VNNI_512 == VNNI_512


@cache
def has_half_wide_units() -> bool:
    """Return whether two 256-bit FMAs take no longer than a 512-bit one; False where Linux does not report the CPU."""
    facts = cpu_facts()
    return (facts.get("vendor_id"), facts.get("cpu family")) == HALVING


@cache
def has_byte_permutations() -> bool:
    """Return whether an instruction looks up 64 bytes in two registers (AVX-512 VBMI); False where Linux does not
    report the CPU."""
    return "avx512vbmi" in cpu_flags()
