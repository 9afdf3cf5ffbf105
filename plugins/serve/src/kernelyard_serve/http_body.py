"""Reading bodies of requests within limits, and answering them, as ASGI applications do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from kernelyard.errors import KernelyardError
from kernelyard_serve.errors import (
    RETRY_SECONDS,
    QueueFullError,
    RequestFormatError,
    RequestSizeError,
    SlowRequestError,
    retry_after,
    status_of,
)
from kernelyard_serve.http_codec import to_json
from kernelyard_serve.http_protocol import ARRIVED
from kernelyard_serve.worker_connection import ARRIVED_HEADER

JSON = b"application/json"
BINARY = b"application/octet-stream"
Headers = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")


class ClientLeftError(Exception):
    """The client closed its connection: nobody reads an answer."""


async def unless_left(future: asyncio.Future[T], receive: Receive) -> T:
    """Return the result of a future, and give it up if the client of its request, whose body was read, leaves.

    Raises: ClientLeftError, and what the future raises.
    """
    if future.done():  # as for quick models
        return future.result()
    watch = asyncio.ensure_future(receive())  # after the body, nothing comes but the end of the connection
    watch.add_done_callback(lambda _: future.cancel())
    try:
        return await future  # not both by `asyncio.wait`, which takes two more turns of a loop that may be behind
    except asyncio.CancelledError:
        if watch.done() and not watch.cancelled():
            raise ClientLeftError from None
        raise
    finally:
        watch.cancel()
        future.cancel()


def header(scope: Scope, name: bytes) -> str | None:
    """Return the value of a header, None where there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def arrival(scope: Scope, *, has_front: bool = False) -> float:
    """Return when a request, whose body was read, arrived at this machine, by the monotonic clock.

    has_front: the front says it, whose clock is that of its workers; nobody else is believed.
    """
    said = header(scope, ARRIVED_HEADER) if has_front else None
    return float(said) if said else scope.get(ARRIVED) or time.monotonic()


class BodyReader:
    """Read bodies of requests within limits; what it read is held until `release`.

    max_size: bytes of one body. seconds: until it has arrived. max_held: bytes of all together: no connection alone may
    send too much, but many of them could.
    """

    def __init__(self, max_size: int, seconds: float, max_held: int) -> None:
        self.max_size, self._seconds, self._max_held = max_size, seconds, max_held
        self.held = 0

    @contextmanager
    def holding(self, body: bytes) -> Iterator[None]:
        """Hold a body that something else has read, until its request is answered. Raises: QueueFullError."""
        refused = self._refusal(len(body), len(body))
        if refused is not None:
            raise refused
        self.held += len(body)
        try:
            yield
        finally:
            self.held -= len(body)

    def release(self, body: bytes) -> None:
        """Count a body as held no longer: its request is answered."""
        self.held -= len(body)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of a request.

        Raises: RequestSizeError, SlowRequestError, RequestFormatError, QueueFullError, ClientLeftError.
        """
        encoding = header(scope, b"content-encoding")
        if encoding not in (None, "identity"):
            raise RequestFormatError("compressed bodies are not accepted", found=encoding[:40], expected="no encoding")
        declared = header(scope, b"content-length") or ""
        if declared.isdecimal() and int(declared) > self.max_size and header(scope, b"expect") is not None:
            raise self._too_large()  # it is not sent at all
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._seconds):
                await self._read(receive, parts)
        except BaseException as error:
            self.held -= sum(map(len, parts))
            if isinstance(error, TimeoutError):
                expected = f"within {self._seconds:g} s"
                raise SlowRequestError("the body did not arrive in time", expected=expected) from None
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _read(self, receive: Receive, parts: list[bytes]) -> None:
        """Collect the parts of a body; one that is refused is read, too, as clients send all before they read."""
        size, more = 0, True
        refused: KernelyardError | None = None
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            refused = refused or self._refusal(size, len(part))
            if refused is None:
                self.held += len(part)
                parts.append(part)
        if refused is not None:
            raise refused

    def _refusal(self, size: int, part: int) -> KernelyardError | None:
        if size > self.max_size:
            return self._too_large()
        if self.held + part <= self._max_held:
            return None
        expected = f"at most {self._max_held} bytes of all requests"
        return QueueFullError("too many bytes of requests are held", retry_after=RETRY_SECONDS, expected=expected)

    def _too_large(self) -> RequestSizeError:
        hint = "send less at once, or start the server with a larger --max-body"
        return RequestSizeError("the body is too large", expected=f"at most {self.max_size} bytes", hint=hint)


async def answer(send: Send, status: int, body: bytes, kind: bytes = JSON, headers: Headers = ()) -> None:
    """Send an answer."""
    fields = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def error_facts(error: KernelyardError) -> Mapping[str, object]:
    """Return the JSON of an error: the text that the protocol asks for, then the same facts as members."""
    return {**error.to_json(), "error": str(error), "kind": type(error).__name__}


async def answer_error(send: Send, error: KernelyardError) -> int:
    """Send an error, and return its status."""
    status = status_of(error).http
    headers: list[tuple[bytes, bytes]] = []
    seconds = retry_after(error)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % ceil(seconds)))
    if isinstance(error, (RequestSizeError, SlowRequestError)):  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    await answer(send, status, to_json(error_facts(error)), headers=headers)
    return status
