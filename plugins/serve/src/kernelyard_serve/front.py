"""The front: takes requests in, has a worker answer each, and another one where that worker dies.

An inference changes nothing, so that it may be asked twice. What a worker has not answered when it dies is asked once
more, of another; a request that ends two workers is refused: it may be what ends them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.types import Message, Receive, Scope, Send

from kernelyard_serve import metrics
from kernelyard_serve.errors import ModelNotReadyError, UnknownPathError, as_ours
from kernelyard_serve.fleet import Fleet, Worker
from kernelyard_serve.http_body import BodyReader, ClientLeftError, answer, answer_error, arrival, unless_left
from kernelyard_serve.http_codec import to_json
from kernelyard_serve.merged_metrics import keep_counters, merge_metrics, samples
from kernelyard_serve.worker_connection import ARRIVED_HEADER, MESSAGES, Answer, WorkerLostError, request_bytes

TRIES = 2
_METRICS = request_bytes("GET", b"/metrics")
# Of one connection, not of a request; source: RFC 9110, 7.6.1. Workers get a length and a host of the front's own.
_OF_CONNECTION = frozenset(
    [*b"connection keep-alive transfer-encoding te trailer upgrade expect content-length host".split(), ARRIVED_HEADER]
)
_OF_SERVER = frozenset(b"connection content-length content-type date server transfer-encoding".split())
_CONTROLS = ("load", "unload")


class Front:
    """Answer requests as the ASGI application of a server with workers."""

    def __init__(self, fleet: Fleet, bodies: BodyReader) -> None:
        self._fleet, self._bodies = fleet, bodies
        self._refused: Counter[int] = Counter()
        self._retried = 0
        self._known: dict[Worker, Counter[str]] = {}  # counts that workers have reported
        self._gone: Counter[str] = Counter()  # counts of workers that are gone
        self.stopping = False
        fleet.ended = self._keep_counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            await self._answer(scope, receive, send)
        except ClientLeftError:
            return
        except Exception as error:
            self._refused[await answer_error(send, as_ours(error))] += 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/v2/health/live":
            await answer(send, 200, to_json({"live": True}))
        elif path == self._fleet.ready_path and self.stopping:
            raise ModelNotReadyError("the server is not ready", found="it is stopping")
        elif path == "/metrics":
            await answer(send, 200, (await self._metrics()).encode(), metrics.CONTENT_TYPE.encode())
        elif path.startswith(MESSAGES):
            raise UnknownPathError("there is no such path", found=path)  # it is between a front and its workers
        else:
            await self._forward(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a worker answer. Raises: ModelNotReadyError, ClientLeftError, and those of reading the body."""
        body = await self._bodies.read(scope, receive)
        try:
            fields = [field for field in scope["headers"] if field[0] not in _OF_CONNECTION]
            fields.append((ARRIVED_HEADER, b"%.6f" % arrival(scope)))
            target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
            method = "GET" if scope["method"] == "HEAD" else scope["method"]  # uvicorn leaves the body out
            request = request_bytes(method, target, fields, body)
            model = _model_to_control(scope["path"]) if scope["method"] == "POST" else None
            asked = self.ask(request) if model is None else self._fleet.control(model, request)
            found = await unless_left(asyncio.ensure_future(asked), receive)
        finally:
            self._bodies.release(body)
        kept = [field for field in found.headers if field[0] not in _OF_SERVER]
        kind = next((value for name, value in found.headers if name == b"content-type"), b"application/json")
        if found.parts is None:
            await answer(send, found.status, found.body, kind, kept)
            return
        await send({"type": "http.response.start", "status": found.status, "headers": [(b"content-type", kind), *kept]})
        async with aclosing(found.parts):
            await _pass_on(found.parts, receive, send)

    async def ask(self, request: bytes) -> Answer:
        """Return the answer of a worker, of another one where the first dies. Raises: ModelNotReadyError."""
        worker: Worker | None = None
        for tried in range(TRIES):
            self._retried += tried
            worker = self._fleet.choose(worker)
            try:
                return await worker.ask(request)
            except WorkerLostError:
                continue
        raise ModelNotReadyError("the workers that were asked died", found=f"{TRIES} of them, one after another")

    async def _metrics(self) -> str:
        """Return the counts of all workers, those that are gone, and the front's own."""
        workers = list(self._fleet.ready)
        answers = await asyncio.gather(*(each.ask(_METRICS) for each in workers), return_exceptions=True)
        texts: list[str] = []
        for worker, found in zip(workers, answers, strict=True):
            if isinstance(found, Answer) and found.status == 200 and worker in self._fleet.ready:
                texts.append(found.body.decode())
                self._known[worker] = samples(texts[-1])
        more = Counter(self._gone)
        more["kernelyard_workers_ready"] += len(self._fleet.ready)
        more["kernelyard_workers_replaced_total"] += self._fleet.replaced
        more["kernelyard_requests_retried_total"] += self._retried
        more["kernelyard_resident_bytes"] += metrics.resident_bytes()
        more["kernelyard_held_bytes"] += self._bodies.held
        for status, count in sorted(self._refused.items()):
            more[f'kernelyard_refused_total{{status="{status}"}}'] += count
        return merge_metrics(texts, more)

    def _keep_counts(self, worker: Worker) -> None:
        self._gone.update(keep_counters(self._known.pop(worker, Counter())))


async def _pass_on(parts: AsyncGenerator[bytes], receive: Receive, send: Send) -> None:
    """Send the parts of a body as they come. Raises: ClientLeftError."""
    watch = asyncio.ensure_future(receive())
    try:
        while True:
            part = await _next(parts, watch)
            await send({"type": "http.response.body", "body": part, "more_body": bool(part)})
            if not part:
                return
    except WorkerLostError:  # events have been sent, so that no other worker can be asked: the last one says it
        error = ModelNotReadyError("the worker died while it answered", hint="send the request again")
        event = b"data: " + to_json({"error": {"message": str(error), "type": "server_error", "code": error.code}})
        await send({"type": "http.response.body", "body": event + b"\n\n", "more_body": False})
    finally:
        watch.cancel()


async def _next(parts: AsyncGenerator[bytes], watch: asyncio.Future[Message]) -> bytes:
    """Return the next part, b"" after the last one. Raises: ClientLeftError, WorkerLostError."""
    part = asyncio.ensure_future(anext(parts, b""))  # pyright: ignore[reportArgumentType]  it is a coroutine
    await asyncio.wait((watch, part), return_when=asyncio.FIRST_COMPLETED)
    if part.done():
        return part.result()
    part.cancel()  # which closes the worker's connection
    await asyncio.wait([part])
    raise ClientLeftError


def _model_to_control(path: str) -> str | None:
    """Return the model that a path is to load or unload, None for another path."""
    parts = path.strip("/").split("/")
    is_control = len(parts) == 5 and parts[:3] == ["v2", "repository", "models"] and parts[4] in _CONTROLS
    return parts[3] if is_control else None
