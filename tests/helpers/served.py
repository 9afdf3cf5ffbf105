"""A server of models in a process of its own, and a client that sends it what no client would."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np


class Client:
    """Speaks HTTP to a server, over one connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def __call__(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, Any]:
        """Return the status and the JSON of an answer; text where it is none. body: bytes, or what becomes JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request(method or ("GET" if data is None else "POST"), path, data, headers or {})
        self.answer = self.connection.getresponse()
        content = self.answer.read()
        kind = self.answer.getheader("content-type", "")
        return self.answer.status, json.loads(content) if content and kind == "application/json" else content

    def infer(self, x: np.ndarray, model: str = "net", **members: Any) -> tuple[int, Any]:
        """Ask for the results of a model of rows, in JSON."""
        tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
        return self(f"/v2/models/{model}/infer", {"inputs": [tensor], **members})


class Server:
    """`kernelyard serve` in a process, whose temporary files, as the sockets of workers, are in a folder."""

    def __init__(self, folder: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "kernelyard", "serve", "--port", "0", *arguments]
        pipe, environment = subprocess.PIPE, {**os.environ, "TMPDIR": folder}
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
        self.lines: list[str] = []
        self.ports: dict[str, int] = {}
        while not any(line.startswith("ready") for line in self.lines) and (line := self._line()):
            if line.startswith("listening on "):
                kind, _, rest = line.removeprefix("listening on ").partition("://")
                self.ports[kind] = int(rest.rpartition(":")[2])

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        self.lines.append(line)
        return line

    @contextmanager
    def client(self) -> Iterator[Client]:
        client = Client(self.ports["http"])
        try:
            yield client
        finally:
            client.connection.close()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> tuple[int, str]:
        """Wait for the end; returns the exit status and what was written to stderr."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    """Start a server, and stop it after the block; it is killed only where it does not stop within 10 seconds."""
    with TemporaryDirectory(prefix="ky-") as folder:  # a short path, as those of sockets have to be
        server = Server(folder, *arguments)
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.signal(signal.SIGTERM)
            try:
                server.process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                server.signal(signal.SIGKILL)
                server.process.communicate()
