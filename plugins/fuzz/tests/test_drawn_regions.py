"""The oracle of regions, and operators that their idioms write."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernelyard.ir import Call, get_op
from kernelyard.patterns import regions
from kernelyard_fuzz.chooser import SeededChooser
from kernelyard_fuzz.drawn_regions import check_regions
from kernelyard_fuzz.errors import FoundError
from kernelyard_fuzz.sketch import Sketch
from kernelyard_fuzz.written import grow_or_write

DRAWN = 60  # graphs


def draw_many() -> None:
    for seed in range(DRAWN):
        check_regions(SeededChooser(seed))


def test_regions_run_one_after_the_other() -> None:
    draw_many()


def test_regions_that_wait_for_each_other_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions._Grouping, "_detour", lambda *_: False)
    with pytest.raises(FoundError, match=r"each node is in one region|runs after"):
        draw_many()


def test_a_region_of_two_colours_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard_fuzz.drawn_regions.convex_regions", lambda producers, *_: [range(len(producers))])
    with pytest.raises(FoundError, match="of one colour"):
        draw_many()


# What samples have none of.
RARE: dict[str, Callable[[Call], bool]] = {
    "concat": lambda call: len({arg.tensor_type.shape for arg in call.args}) > 2,
    "image.resize": lambda call: any(scale % 1 for scale in call.attrs["scales"]),
    "nn.avg_pool2d": lambda call: call.attrs["count_include_pad"] and len(set(call.attrs["padding"])) > 1,
}


@pytest.mark.parametrize("name", RARE)
def test_operators_are_written_by_their_idioms(name: str) -> None:
    found = 0
    for seed in range(40):
        sketch = Sketch()
        x = sketch.input(np.random.default_rng(seed).normal(size=(1, 4, 6, 7)).astype(np.float32))
        grow_or_write(SeededChooser(seed), sketch, get_op(name), x)
        calls = [binding.value for binding in sketch.builder.bindings if isinstance(binding.value, Call)]
        found += any(RARE[name](call) for call in calls if call.op_name == name)
    assert found >= 3
