"""What holds for all tests of the PyTorch plugin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

LONGEST = "test_opinfo.py"
WARNINGS = (
    ".*LeafSpec.*:FutureWarning",
    ".*were assigned during export.*:UserWarning",
    ".*lru_cache.*:UserWarning",
    ".*should not be instantiated:DeprecationWarning",
    "index_reduce.*is in beta:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What PyTorch warns of when it exports its own layers, or captures those of others, is not ours to mend."""
    items.sort(key=lambda item: item.path.name != LONGEST)  # with several processes, the others share the rest
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for warning in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that `torch.compile` has compiled in a test, in order."""
    from kernelyard_torch import compiled_graph, dynamo, partitioned_graph

    made: list[Any] = []

    class Remembered(compiled_graph.CompiledGraph):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(dynamo, "CompiledGraph", Remembered)
    monkeypatch.setattr(partitioned_graph, "CompiledGraph", Remembered)
    sys.modules["torch"]._dynamo.reset()
    return made
