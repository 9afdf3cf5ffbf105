"""The oracle of memory plans."""

from __future__ import annotations

import pytest

from kernelyard.runtime.program import memory_plan
from kernelyard_fuzz.chooser import SeededChooser
from kernelyard_fuzz.drawn_plans import check_plans
from kernelyard_fuzz.errors import FoundError

DRAWN = 60  # plans


def draw_many() -> None:
    for seed in range(DRAWN):
        check_plans(SeededChooser(seed))


def test_plans_share_no_bytes() -> None:
    draw_many()


def test_least_memory_that_is_no_peak_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    total = "kernelyard_fuzz.drawn_plans.least_nbytes"
    monkeypatch.setattr(total, lambda lifetimes: sum(each.nbytes for each in lifetimes))
    with pytest.raises(FoundError, match="the least memory"):
        draw_many()


def test_buffers_that_share_bytes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "neighbours_of", lambda spans: [[] for _ in spans])
    with pytest.raises(FoundError, match="share bytes"):
        draw_many()
