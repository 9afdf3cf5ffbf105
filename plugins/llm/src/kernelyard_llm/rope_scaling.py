"""Rotary positions as `config.json` describes them, stretched where a model reads longer texts than it began with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernelyard_llm.configuration import Rope
from kernelyard_llm.errors import LanguageModelError

_LONG = ("longrope", "su")
# Up to the positions that it was trained for, "dynamic" turns as it was trained.
_AS_TRAINED = ("default", "dynamic")


def scale_rope(given: Mapping[str, Any], head_size: int, kind: str) -> Rope:
    """Return the rotary positions of a layer of some kind of attention. Raises: LanguageModelError for unknown ones."""
    found = _parameters(given, kind)
    base = float(found.get("rope_theta") or given.get("rope_theta") or 10000.0)
    if kind == "sliding_attention" and "rope_local_base_freq" in given:
        base, found = float(given["rope_local_base_freq"]), {}
    share = float(found.get("partial_rotary_factor") or given.get("partial_rotary_factor") or 1.0)
    size = int(head_size * share)
    how = _way(found)
    if how in _AS_TRAINED:
        return Rope(base, size)
    if how == "linear":
        return Rope(base, size, float(found["factor"]))
    if how == "llama3":
        return Rope(base, size, factors=_llama3(found, base, size))
    if how == "yarn":
        return _yarn(found, given, base, size)
    if how in _LONG:
        return Rope(base, size, factors=tuple(map(float, found["short_factor"])), magnitude=_magnitude(found, given))
    raise LanguageModelError(
        "this scaling of rotary positions is not supported",
        found=how,
        expected="default, linear, dynamic, llama3, yarn, longrope",
    )


def context_of(given: Mapping[str, Any], whole: int) -> int:
    """Return the positions of a model: those of short texts, where long ones turn by other factors (longrope)."""
    found = _parameters(given, "full_attention")
    return min(whole, _original(found, given)) if _way(found) in _LONG else whole


def yarn_rope(
    base: float,
    size: int,
    factor: float,
    original: int,
    turns: tuple[float, float] = (32, 1),
    magnitude: float | None = None,
    is_whole: bool = True,
) -> Rope:
    """Return positions stretched by YaRN (arXiv 2309.00071): pairs that turn often in `original` positions are kept.

    turns: those from which on, and up to which, pairs are kept and stretched; between them they are mixed. is_whole:
    the first and the last pair that are mixed are whole numbers.
    """

    def pair(often: float) -> float:
        return size * math.log(original / (often * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(turns[0]), pair(turns[1])
    if is_whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    shares = [min(1.0, max(0.0, (number - low) / max(high - low, 0.001))) for number in range(size // 2)]
    factors = tuple(1 / (share / factor + 1 - share) for share in shares)
    return Rope(base, size, factors=factors, magnitude=_growth(factor) if magnitude is None else float(magnitude))


def _growth(factor: float, share: float = 1.0) -> float:
    """Return what YaRN multiplies scores' sides by, for positions that are stretched by a factor."""
    return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0


def _yarn(found: Mapping[str, Any], given: Mapping[str, Any], base: float, size: int) -> Rope:
    original = int(found.get("original_max_position_embeddings") or given["max_position_embeddings"])
    factor = float(found.get("factor") or int(given["max_position_embeddings"]) / original)
    turns = (float(found.get("beta_fast") or 32), float(found.get("beta_slow") or 1))
    magnitude = found.get("attention_factor")
    shares = [found.get(name) for name in ("mscale", "mscale_all_dim")]
    if magnitude is None and all(shares):
        first, second = (_growth(factor, float(share or 0)) for share in shares)
        magnitude = first / second
    return yarn_rope(base, size, factor, original, turns, magnitude, bool(found.get("truncate", True)))


def _parameters(given: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = given.get("rope_parameters") or given.get("rope_scaling") or {}
    return found.get(kind, found)  # each kind of attention may have its own


def _way(found: Mapping[str, Any]) -> str:
    return found.get("rope_type") or found.get("type") or "default"


def _original(found: Mapping[str, Any], given: Mapping[str, Any]) -> int:
    return int(found.get("original_max_position_embeddings") or given["original_max_position_embeddings"])


def _magnitude(found: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    if found.get("attention_factor"):
        return float(found["attention_factor"])
    original = _original(found, given)
    factor = float(found.get("factor") or int(given["max_position_embeddings"]) / original)
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


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
