"""Servers in processes of their own, and connections that ask them: what a load generator is made of."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

PATH = "/v2/models/net/infer"
HEADER = "Inference-Header-Content-Length"


# --- requests and connections -----------------------------------------------------------------------------------------
def post(path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return a request as it is sent."""
    fields = {"Host": "x", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def requests_of(x: np.ndarray) -> dict[str, bytes]:
    """Return the same request as bytes, as JSON, and as the server by hand takes it."""
    tensor = {"name": "h0", "datatype": "FP32", "shape": list(x.shape)}
    head = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": x.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    text = json.dumps({"inputs": [{**tensor, "data": x.ravel().tolist()}]}).encode()
    kind = {"Content-Type": "application/json"}
    return {
        "bytes": post(PATH, head + x.tobytes(), {HEADER: str(len(head))}),
        "json": post(PATH, text, kind),
        "by hand": post("/infer", json.dumps({"x": x.tolist()}).encode(), kind),
    }


class Connection:
    """One connection that is kept: it sends a request, and takes the answer in as it comes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""

    def send(self, request: bytes) -> None:
        self._data = b""
        self.socket.sendall(request)

    def receive(self) -> int:
        """Take in what is there; returns the status once the answer is whole, 0 before, -1 where it was cut off."""
        part = self.socket.recv(1 << 20)
        if not part:
            return -1
        self._data += part
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return 0
        length = int(self._data[: end + 2].lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(self._data[9:12]) if len(self._data) >= end + 4 + length else 0

    def ask(self, request: bytes) -> int:
        """Return the status of the answer to a request."""
        self.send(request)
        while not (status := self.receive()):
            pass
        return status


def resident(pid: int) -> float:
    """Return the memory of a process in MiB, 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


# --- servers ----------------------------------------------------------------------------------------------------------
class Process:
    """A server in a process of its own, and the processor time that it takes."""

    def __init__(self, command: list[str]) -> None:
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.popen.stdout is not None
        self.ports: dict[str, int] = {}
        for line in self.popen.stdout:
            kind, _, port = line.strip().removeprefix("listening on ").rpartition(":")
            if line.startswith("ready"):
                break
            self.ports[kind.partition("://")[0]] = int(port)

    def seconds(self) -> float:
        """Return the processor time of all its threads so far."""
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """Return its memory in MiB."""
        return resident(self.popen.pid)

    def workers(self) -> list[int]:
        """Return the processes that it has started."""
        return list(map(int, Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()))


@contextmanager
def process(*command: str) -> Iterator[Process]:
    """Run a server while it is measured."""
    started = Process([sys.executable, *command])
    try:
        yield started
    finally:
        started.popen.send_signal(signal.SIGTERM)
        started.popen.communicate()


def serve(path: Path, *options: str) -> tuple[str, ...]:
    """Return the command of our server."""
    return ("-m", "kernelyard", "serve", f"net={path}", "--port", "0", *options)
