"""`kernelyard serve --workers N`: workers that are killed, models that are exchanged meanwhile, and merged counts."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from serve_models import save, scale
from served import Server, serving

from kernelyard_serve import ServeOptions
from kernelyard_serve.front import Front
from kernelyard_serve.http_app import create_app
from kernelyard_serve.http_body import BodyReader
from kernelyard_serve.http_codec import to_json
from kernelyard_serve.http_protocol import ARRIVED
from kernelyard_serve.merged_metrics import keep_counters, merge_metrics, samples
from kernelyard_serve.repository import ModelRepository
from kernelyard_serve.worker_connection import Answer, WorkerLostError

if TYPE_CHECKING:
    from kernelyard_serve.fleet import Fleet

X = np.array([[-1, 2, 0.5, 3, 1, 0, -2, 4]], np.float32)
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 8], "data": X.ravel().tolist()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(scale(2.0), tmp_path / "models" / "net" / "1" / "model.kyar")
    return tmp_path / "models"


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with serving(str(folder), "--workers", "2") as each:
        yield each


def workers_of(server: Server) -> list[int]:
    """Return the processes that the front has started."""
    pid = server.process.pid
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def wait_for(found: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not found():
        assert time.monotonic() < until
        time.sleep(0.05)


def value(text: bytes, name: str) -> float:
    return samples(text.decode())[name]


def scaled(answer: tuple[int, object]) -> float:
    """Return what the model multiplies by; it is a ReLU behind."""
    status, facts = answer
    assert status == 200, facts
    assert isinstance(facts, dict)
    data = facts["outputs"][0]["data"]
    np.testing.assert_allclose(data, np.maximum(data[3] / 3 * X.ravel(), 0), rtol=1e-6)
    return data[3] / 3


class Callers:
    """Threads that ask without a pause, each over a connection of its own, and count the statuses."""

    def __init__(self, server: Server, count: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.factors: set[float] = set()
        self._server, self._going = server, True
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def _ask(self) -> None:
        with self._server.client() as client:
            while self._going:
                status, facts = client.infer(X)
                self.statuses[status] += 1
                if status == 200:
                    self.factors.add(facts["outputs"][0]["data"][3] / 3)

    def __enter__(self) -> Callers:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._going = False
        for each in self._threads:
            each.join()


def test_killed_workers_are_replaced_and_no_request_is_lost(folder: Path, server: Server) -> None:
    """kill -9, again and again, and the model exchanged meanwhile: each request is answered, or refused by a status."""
    assert [line.split(":")[0] for line in server.lines if line] == ["listening on http", "ready"]
    with server.client() as client, Callers(server, 4) as callers:
        assert scaled(client.infer(X)) == 2
        for round_ in range(3):
            before = workers_of(server)
            assert len(before) == 2
            os.kill(before[round_ % 2], signal.SIGKILL)
            if round_ == 1:
                save(scale(5.0), folder / "net" / "1" / "model.kyar")
                server.signal(signal.SIGHUP)
            wait_for(lambda seen=before: len(workers_of(server)) == 2 and workers_of(server) != seen)
            wait_for(lambda: value(client("/metrics")[1], "kernelyard_workers_ready") == 2)
        wait_for(lambda: all(scaled(client.infer(X)) == 5 for _ in range(10)))
        assert value(client("/metrics")[1], "kernelyard_workers_replaced_total") == 3
    assert set(callers.statuses) <= {200, 503}
    assert callers.statuses[200] > 100
    assert callers.factors == {2.0, 5.0}


def test_the_next_worker_is_told_when_the_request_arrived() -> None:
    """Else a request whose worker is killed would be given its whole time anew."""
    asked: list[bytes] = []

    class FakeWorker:
        async def ask(self, request: bytes) -> Answer:
            asked.append(request)
            if len(asked) == 1:
                await asyncio.sleep(0.05)
                raise WorkerLostError
            return Answer(200, [], b"")

    class FakeFleet:
        ready_path = "/v2/health/ready"

        def choose(self, without: object) -> FakeWorker:
            return FakeWorker()

    async def receive() -> Any:
        if sent_body:  # as a client that waits: what comes next would say that it has left
            await asyncio.Event().wait()
        sent_body.append(True)
        return {"type": "http.request", "body": b"body", "more_body": False}

    async def send(message: Any) -> None:
        answered.append(message)

    sent_body, answered = list[bool](), list[Any]()
    arrived = time.monotonic() - 1.0
    scope = {"type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
    front = Front(cast("Fleet", FakeFleet()), BodyReader(4, 1, 4))
    asyncio.run(front({**scope, ARRIVED: arrived}, receive, send))
    assert answered[0]["status"] == 200
    for request in asked:
        (said,) = re.findall(rb"\r\nkernelyard-arrived: ([0-9.]+)\r\n", request)
        assert float(said) == pytest.approx(arrived, abs=1e-5)
        assert request.endswith(b"\r\n\r\nbody")
    assert len(asked) == 2


@pytest.mark.parametrize(("has_front", "waited", "status"), [(True, 0.5, 200), (True, 2.5, 504), (False, 2.5, 200)])
def test_a_worker_counts_the_time_at_another_one(tmp_path: Path, has_front: bool, waited: float, status: int) -> None:
    """Only a front is believed: what clients send under that name is nothing to a server without workers."""
    save(scale(2.0), tmp_path / "net.kyar")

    async def scenario() -> int:
        options = ServeOptions(timeout=2.0)
        repository = ModelRepository(lambda: {"net": {"1": tmp_path / "net.kyar"}}, options)
        await repository.load_all()
        app = create_app(repository, options.body_reader(), has_front=has_front)
        sent: list[Any] = []

        bodies = [to_json({"inputs": [TENSOR]})]

        async def receive() -> Any:
            if not bodies:  # as a client that waits: what comes next would say that it has left
                await asyncio.Event().wait()
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"kernelyard-arrived", b"%f" % (time.monotonic() - waited))]
        path = "/v2/models/net/infer"
        await app({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, send)
        repository.close()
        return sent[0]["status"]

    assert asyncio.run(scenario()) == status


def test_a_front_does_not_hand_on_what_clients_say_of_their_arrival(server: Server) -> None:
    with server.client() as client:
        answer = client("/v2/models/net/infer", {"inputs": [TENSOR]}, {"kernelyard-arrived": "1"})
        assert scaled(answer) == 2


def test_without_any_worker_requests_are_refused(server: Server) -> None:
    with server.client() as client:
        for pid in workers_of(server):
            os.kill(pid, signal.SIGKILL)
        status, _ = client.infer(X)
        assert status in (200, 503)
        wait_for(lambda: client("/v2/health/ready")[0] == 200)
        assert scaled(client.infer(X)) == 2
        assert client("/v2/health/live") == (200, {"live": True})


def test_what_clients_unload_stays_unloaded(server: Server) -> None:
    with server.client() as client:
        assert client("/v2/repository/models/net/unload", {})[0] == 200
        assert client.infer(X)[0] != 200
        for pid in workers_of(server):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: client("/v2/models")[0] == 200)
        assert client.infer(X)[0] != 200
        assert client("/v2/repository/models/net/load", {})[0] == 200
        wait_for(lambda: value(client("/metrics")[1], "kernelyard_workers_ready") == 2)
        assert {scaled(client.infer(X)) for _ in range(6)} == {2.0}
        assert client("/v2/repository/models/none/load", {})[0] == 404


def test_the_front_passes_on_what_workers_say(server: Server) -> None:
    with server.client() as client:
        assert client("/v2/models/net")[1]["inputs"][0]["name"] == "x"
        status, facts = client("/v2/models/net/infer", b"{")
        assert (status, facts["code"]) == (400, "KY802")
        assert client("/v2/models/none/infer", b"{}")[0] == 404
        assert client("/nothing")[0] == 404
        assert client("/v2", method="HEAD") == (200, b"")
        head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,8],"parameters":{"binary_data_size":32}}],'
        head += b'"parameters":{"binary_data_output":true}}'
        length = {"Inference-Header-Content-Length": str(len(head))}
        status, content = client("/v2/models/net/infer", head + X.tobytes(), length)
        assert status == 200
        size = int(client.answer.getheader("inference-header-content-length", ""))
        np.testing.assert_array_equal(np.frombuffer(content[size:], np.float32), np.maximum(2 * X.ravel(), 0))
        text = client("/metrics")[1]
        assert value(text, 'kernelyard_answers_total{model="net",version="1",protocol="http",status="200"}') == 1
        assert text.decode().count("# TYPE kernelyard_request_seconds histogram") == 1


def test_a_stop_answers_what_has_begun_and_leaves_no_process(server: Server) -> None:
    pids = workers_of(server)
    with Callers(server, 2) as callers:
        wait_for(lambda: callers.statuses[200] > 20)
    server.signal(signal.SIGTERM)
    assert server.end() == (0, "")
    assert set(callers.statuses) == {200}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_workers_end_with_their_front(server: Server) -> None:
    pids = workers_of(server)
    server.signal(signal.SIGKILL)
    server.process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))


def test_a_model_that_cannot_be_loaded(tmp_path: Path, serve: Callable[..., Server]) -> None:
    (tmp_path / "bad.kyar").write_bytes(b"no artifact")
    status, errors = serve(tmp_path / "bad.kyar", "--workers", "2").end()
    assert status == 1
    assert "a worker ended before it was ready" in errors
    status, errors = serve(tmp_path / "none.kyar", "--workers", "2").end()
    assert (status, errors.count("KY801] there is no such model")) == (1, 1)


def test_grpc_goes_on_where_workers_are_killed(folder: Path) -> None:
    """The other worker answers each call; errors are those of a worker."""
    types = import_module("tritonclient.grpc")
    refused = import_module("tritonclient.utils").InferenceServerException
    tensor = types.InferInput("x", list(X.shape), "FP32").set_data_from_numpy(X)
    with (
        serving(str(folder), "--workers", "2", "--grpc-port", "0") as server,
        server.client() as http,
        types.InferenceServerClient(f"127.0.0.1:{server.ports['grpc']}") as client,
    ):
        killed: list[int] = []
        for number in range(100):
            if number in (20, 60):
                wait_for(lambda: killed[-1:] != workers_of(server)[:1])  # the front has noticed
                wait_for(lambda: value(http("/metrics")[1], "kernelyard_workers_ready") == 2)
                killed.append(workers_of(server)[0])
                os.kill(killed[-1], signal.SIGKILL)
            result = client.infer("net", [tensor], client_timeout=30).as_numpy("output_0")
            np.testing.assert_array_equal(result, np.maximum(2 * X, 0))
        narrow = types.InferInput("x", [1, 4], "FP32")
        with pytest.raises(refused, match="KY503"):
            client.infer("net", [narrow.set_data_from_numpy(np.ones((1, 4), np.float32))])
        assert client.is_server_ready()
        server.signal(signal.SIGTERM)
        assert server.end() == (0, "")


def test_workers_of_language_models(language_models: None, serve: Callable[..., Server]) -> None:
    """Events are passed on as they come; where a worker dies, the last one says so, and where a client leaves it ends."""
    server = serve("some/model", "--openai", "--workers", "2", "--max-queue", "7", "--threads", "3")
    with server.client() as client:
        wait_for(lambda: value(client("/metrics")[1], "kernelyard_workers_ready") == 2)
        facts = client("/v1/models")[1]
        assert (facts["served"], facts["waiting"], facts["threads"]) == ("some/model", 7, 3)
        assert "timeout" not in facts["given"]
        for _ in range(3):  # the connections to workers are free again after each
            assert client("/v1/completions", {}) == (200, b"data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n")
            assert client.answer.getheader("content-type", "").startswith("text/event-stream")
        client.connection.request("POST", "/v1/completions?endless")
        answer = client.connection.getresponse()
        lines = [answer.readline() for _ in range(7)]
        os.kill(int(lines[-1].split()[-1]), signal.SIGKILL)
        assert b'"code":"KY806"' in answer.read()
        wait_for(lambda: client("/v1/completions", {})[0] == 200)
    with server.client() as client:
        client.connection.request("POST", "/v1/completions?endless")
        client.connection.getresponse().readline()
    assert server.process.stdout is not None
    while server.process.stdout.readline().strip() != "given up":
        assert server.process.poll() is None
    server.signal(signal.SIGTERM)
    assert server.end() == (0, "")


def test_merged_counts() -> None:
    texts = [f'# HELP a A.\n# TYPE a counter\na{{x="1"}} {n}\n# TYPE h histogram\nh_sum{{}} 0.{n}\n' for n in (1, 2)]
    more = Counter({'a{x="2"}': 4, "b_total": 1})
    assert merge_metrics(texts, more) == (
        '# HELP a A.\n# TYPE a counter\na{x="1"} 3\na{x="2"} 4\n# TYPE h histogram\nh_sum{} 0.30000000000000004\nb_total 1\n'
    )
    assert keep_counters(samples("a_total 2\nqueue 3\n")) == {"a_total": 2.0}
