"""The command line of the server, and what else it serves."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import click
import pytest
from serve_models import save, scale

from kernelyard_serve.command import read_sizes

# An application as kernelyard-llm has it: `create_app(model, options)` returns one.
LANGUAGE_MODELS = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


def ServerOptions(**options):
    return options


def create_app(model, options):
    print("ready", flush=True)
    shown = {"served": model, "waiting": options["waiting"], "has_timeout": "timeout" in options}
    return Starlette(routes=[Route("/v1/models", lambda request: JSONResponse(shown))])
"""


def test_sizes() -> None:
    assert read_sizes("n=4, seq=128") == {"n": 4, "seq": 128}
    for text in ("n", "n=", "n=0", "=4", "n=4,"):
        with pytest.raises(click.BadParameter):
            read_sizes(text)


def test_language_models_are_served_by_their_package(tmp_path: Path, serve, monkeypatch) -> None:
    (tmp_path / "kernelyard_llm").mkdir()
    (tmp_path / "kernelyard_llm" / "__init__.py").touch()
    (tmp_path / "kernelyard_llm" / "server.py").write_text(LANGUAGE_MODELS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = serve("some/model", "--openai", "--port", port, "--max-queue", 7)
    server.ports["http"] = port
    while not any(line.startswith("listening") for line in server.lines):
        line = server.process.stdout.readline()
        assert line, server.end()
        server.lines.append(line)
    with server.client() as client:
        assert client("/v1/models") == (200, {"served": "some/model", "waiting": 7, "has_timeout": False})
    server.signal(signal.SIGTERM)
    assert server.end() == (0, "")


def test_language_models_need_their_package(tmp_path: Path, serve, monkeypatch) -> None:
    (tmp_path / "kernelyard_llm.py").write_text(
        "raise ModuleNotFoundError(name='kernelyard_llm')"
    )  # as if it were none
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    status, errors = serve("some/model", "--openai").end()
    assert status == 1
    assert "pip install 'kernelyard-llm[serve]'" in errors
    status, errors = serve("one", "two", "--openai").end()
    assert (status, "one model" in errors) == (2, True)


def test_a_port_that_is_taken(tmp_path: Path, serve) -> None:
    path = save(scale(2), tmp_path / "net.kyar")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for option in ("--port", "--grpc-port"):
            status, errors = serve(path, option, taken.getsockname()[1]).end()
            assert (status, "[KY801] the address is taken" in errors) == (1, True), errors  # gRPC logs, too
