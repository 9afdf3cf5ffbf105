"""Rotary positions as `config.json` describes them, stretched where a model reads longer texts than it began with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernelyard_llm.configuration import Rope
from kernelyard_llm.errors import LanguageModelError


def scaled_rope(given: Mapping[str, Any], head_size: int, kind: str) -> Rope:
    """Return the rotary positions of a layer of some kind of attention. Raises: LanguageModelError for unknown ones."""
    found = given.get("rope_parameters") or given.get("rope_scaling") or {}
    if kind in found:  # each kind of attention has its own
        found = found[kind]
    base = float(found.get("rope_theta") or given.get("rope_theta") or 10000.0)
    if kind == "sliding_attention" and "rope_local_base_freq" in given:
        base, found = float(given["rope_local_base_freq"]), {}
    share = float(found.get("partial_rotary_factor") or given.get("partial_rotary_factor") or 1.0)
    size = int(head_size * share)
    how = found.get("rope_type") or found.get("type") or "default"
    if how == "default":
        return Rope(base, size)
    if how == "linear":
        return Rope(base, size, float(found["factor"]))
    if how == "llama3":
        return Rope(base, size, factors=_llama3(found, base, size))
    raise LanguageModelError(
        "this scaling of rotary positions is not supported", found=how, expected="default, linear, llama3"
    )


def _llama3(found: Mapping[str, Any], base: float, size: int) -> tuple[float, ...]:
    """Return what wavelengths are multiplied by: long ones by a factor, short ones not, those between by a mixture."""
    factor, low, high = (float(found[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    context = float(found["original_max_position_embeddings"])
    factors: list[float] = []
    for pair in range(0, size, 2):
        turns = context * base ** (-pair / size) / (2 * math.pi)
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - share) / factor + share))
    return tuple(factors)
