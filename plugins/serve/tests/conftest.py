"""Models that tests serve, and a server of them in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from serve_models import save, scale
from served import Client, Server, serving

# An application as kernelyard-llm has it: `create_app(model, options)` returns one.
LANGUAGE_MODELS = """
import asyncio
import os

from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route


def ServerOptions(**options):
    return options


async def words(request):
    async def events():
        for number in range(3):
            yield f"data: {number}\\n\\n"
        if "endless" in request.query_params:
            yield f"data: from {os.getpid()}\\n\\n"
            try:
                await asyncio.sleep(3600)
            finally:
                print("given up", flush=True)
        yield "data: [DONE]\\n\\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def create_app(model, options):
    print("ready", flush=True)
    shown = {"served": model, "waiting": options["waiting"], "threads": options["threads"], "given": list(options)}
    routes = [Route(path, lambda request: JSONResponse(shown)) for path in ("/v1/models", "/health")]
    return Starlette(routes=[*routes, Route("/v1/completions", words, methods=["POST"])])
"""


@pytest.fixture
def language_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that serves language models, for servers that tests start."""
    package = tmp_path / "packages" / "kernelyard_llm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "server.py").write_text(LANGUAGE_MODELS)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


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
