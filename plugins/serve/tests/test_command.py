"""The command line of the server, and what else it serves."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import click
import pytest
from serve_models import save, scale

from kernelyard_serve.command import read_sizes


def test_sizes() -> None:
    assert read_sizes("n=4, seq=128") == {"n": 4, "seq": 128}
    for text in ("n", "n=", "n=0", "=4", "n=4,"):
        with pytest.raises(click.BadParameter):
            read_sizes(text)


@pytest.mark.usefixtures("language_models")
def test_language_models_are_served_by_their_package(serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = serve("some/model", "--openai", "--port", port, "--max-queue", 7)
    server.ports["http"] = port
    while not any(line.startswith("listening") for line in server.lines):
        line = server.process.stdout.readline()
        assert line, server.end()
        server.lines.append(line)
    with server.client() as client:
        status, facts = client("/v1/models")
        assert (status, facts["served"], facts["waiting"]) == (200, "some/model", 7)
        assert "timeout" not in facts["given"]
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
    for arguments in (("one", "two"), ("one", "--grpc-port", "0")):
        status, errors = serve(*arguments, "--openai").end()
        assert (status, "--openai" in errors) == (2, True)


def test_a_port_that_is_taken(tmp_path: Path, serve) -> None:
    path = save(scale(2), tmp_path / "net.kyar")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for option in ("--port", "--grpc-port"):
            status, errors = serve(path, option, taken.getsockname()[1]).end()
            assert (status, "[KY801] the address is taken" in errors) == (1, True), errors  # gRPC logs, too
