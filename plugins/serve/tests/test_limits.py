"""Batches, and what is refused or given up, as clients of a server see it.

Its requests wait for others for longer than a test takes, unless a batch is full: what waits does so for certain.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_text import samples
from serve_models import save, scale
from served import Server, serving

LABELS = 'model="net",version="1"'
WAITING = f"kernelyard_requests_waiting{{{LABELS}}}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    path = save(scale(2), tmp_path / "net.kyar")
    with serving(str(path), "--max-batch", "4", "--max-delay", "600000") as each:
        yield each


def counts(server: Server) -> dict[str, float]:
    with server.client() as client:
        return samples(client("/metrics")[1])


def until(server: Server, reached: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Wait until the counts of a server are such."""
    while not reached(found := counts(server)):
        assert server.process.poll() is None
    return found


def ask(server: Server, x: np.ndarray, **members: Any) -> tuple[int, Any, str | None]:
    with server.client() as client:
        status, answer = client.infer(x, **members)
        return status, answer, client.answer.getheader("retry-after")


def test_requests_of_several_clients_are_one_call(server: Server) -> None:
    rows = [np.full((1, 8), value, np.float32) for value in range(4)]
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda x: ask(server, x), rows))
    for x, (status, answer, _) in zip(rows, answers, strict=True):
        assert status == 200
        np.testing.assert_array_equal(answer["outputs"][0]["data"], 2 * x[0])
    found = counts(server)
    assert found[f"kernelyard_call_rows_count{{{LABELS}}}"] == 1
    assert found[f"kernelyard_call_rows_sum{{{LABELS}}}"] == 4
    assert found[f"kernelyard_queue_seconds_count{{{LABELS}}}"] == 4


def test_bodies_are_not_held_beyond_all_bounds(tmp_path: Path) -> None:
    path = save(scale(2), tmp_path / "net.kyar")
    with serving(str(path), "--max-held", "1") as server, socket.socket() as slow:
        slow.connect(("127.0.0.1", server.ports["http"]))
        slow.sendall(b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n")
        slow.sendall(b"x" * 1_048_000)  # the rest does not come
        until(server, lambda found: found["kernelyard_held_bytes"] == 1_048_000)
        status, answer, later = ask(server, np.ones((1, 8), np.float32), id="x" * 1000)
        assert (status, answer["code"]) == (429, "KY807")
        assert int(later or 0) >= 1


def test_a_queue_that_is_full_waits_for_nobody(tmp_path: Path) -> None:
    x, path = np.ones((1, 8), np.float32), save(scale(2), tmp_path / "net.kyar")
    options = ("--max-batch", "4", "--max-delay", "600000", "--max-queue", "3")
    with serving(str(path), *options) as server, ThreadPoolExecutor(3) as clients:
        assert [status for status, *_ in clients.map(lambda _: ask(server, x), range(3))] == [200] * 3


def test_a_request_that_is_late_is_given_up(server: Server) -> None:
    status, answer, _ = ask(server, np.ones((1, 8), np.float32), parameters={"timeout": 20_000})
    assert (status, answer["code"]) == (504, "KY507")
    found = counts(server)
    assert found[WAITING] == 0
    assert found[f"kernelyard_call_rows_count{{{LABELS}}}"] == 0


def test_a_request_whose_client_leaves_is_given_up(server: Server) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1] * 8}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.ports["http"])) as client:
        client.sendall(head + body)
        until(server, lambda found: found[WAITING] == 1)
    left = f'kernelyard_answers_total{{{LABELS},protocol="http",status="499"}}'
    found = until(server, lambda found: found.get(left, 0) == 1 and found[WAITING] == 0)
    assert found[f"kernelyard_call_rows_count{{{LABELS}}}"] == 0
