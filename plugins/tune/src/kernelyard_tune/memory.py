"""Decisions that this machine remembers, by the digest of their facts: what was measured once is not measured again."""

from __future__ import annotations

from collections.abc import Mapping

from kernelyard.errors import ArtifactCorruptedError
from kernelyard.runtime.abi.spec import read_json, write_json
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.placement_decision import PlacementDecision, digest_of

CACHE = DiskCache("placements")


def recall(facts: Mapping[str, str]) -> PlacementDecision | None:
    """Return the decision of these facts; None where there is none, or one that another version has written."""
    found = CACHE.get(digest_of(facts))
    if found is None:
        return None
    try:
        decision = PlacementDecision.from_json(read_json(found, "the cache of placements"))
    except ArtifactCorruptedError:
        return None
    return decision if decision.facts == facts else None


def remember(decision: PlacementDecision) -> None:
    """Keep a decision."""
    CACHE.put(decision.key, write_json(decision.to_json()))
