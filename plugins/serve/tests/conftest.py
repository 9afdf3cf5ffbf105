"""Models that tests serve, and a server of them in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from serve_models import save, scale
from served import Client, Server, serving


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start servers that end with the test."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(serving(*map(str, arguments)))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: net in versions 1 and 2, and mixed, whose rows depend on one another."""
    folder = tmp_path_factory.mktemp("models")
    save(scale(2.0), folder / "net" / "1" / "model.kyar")
    save(scale(3.0), folder / "net" / "2" / "model.kyar")
    save(scale(1.0, "nn.softmax", axis=0), folder / "mixed" / "1" / "model.kyar")
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Server]:
    """A server of `models`, which no test changes."""
    with serving(str(models), "--max-batch", "8", "--max-body", "1", "--body-timeout", "0.5", "--warm", "n=4") as each:
        yield each


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as each:
        yield each
