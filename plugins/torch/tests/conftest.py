"""What holds for all tests of the PyTorch plugin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What PyTorch warns of when it exports its own layers is not ours to mend."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*were assigned during export.*:UserWarning"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
