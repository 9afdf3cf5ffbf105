"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import pytest
from networks import MAKERS, Network


@pytest.fixture(scope="session", params=MAKERS)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Network:
    """Each network in turn."""
    return MAKERS[request.param](tmp_path_factory.mktemp(request.param))
