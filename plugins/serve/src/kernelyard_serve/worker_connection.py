"""Connections of the front to its workers: HTTP/1.1 over sockets of this machine, one request at a time on each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import NamedTuple, cast

import httptools

Fields = Iterable[tuple[bytes, bytes]]
ARRIVED_HEADER = b"kernelyard-arrived"  # when a front's request arrived, by the monotonic clock of this machine
MESSAGES = "/grpc/"  # the path of gRPC's messages: a front passes them on over HTTP, each to the path of its method


class WorkerLostError(Exception):
    """A worker's connection ended before its answer was whole."""


class Answer(NamedTuple):
    """Hold an answer of a worker; the names of headers are lower case.

    parts: of a body that comes in chunks, as from language models; they raise WorkerLostError where it ends too soon.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    parts: AsyncGenerator[bytes] | None = None


def request_bytes(method: str, target: bytes, headers: Fields = (), body: bytes = b"") -> bytes:
    """Return a request as it is sent.

    Example:
        >>> request_bytes("GET", b"/metrics")
        b'GET /metrics HTTP/1.1\\r\\nhost: kernelyard\\r\\ncontent-length: 0\\r\\n\\r\\n'
    """
    lines = [b"%s %s HTTP/1.1" % (method.encode("ascii"), target), b"host: kernelyard"]
    lines += [b"%s: %s" % field for field in headers]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


class WorkerConnection(asyncio.Protocol):
    """Send requests over one connection. ended: is called when it is lost."""

    def __init__(self, ended: Callable[[WorkerConnection], None]) -> None:
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._chunks: asyncio.Queue[bytes | None] | None = None  # None ends it; the rest is lost unless it `_is_whole`
        self._is_whole = False
        self._parser = httptools.HttpResponseParser(self)

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; the future fails with WorkerLostError where the worker dies."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._headers, self._parts, self._chunks, self._is_whole = [], [], None, False
        if self._transport is None or self._transport.is_closing():
            self._waiting.set_exception(WorkerLostError())
        else:
            self._transport.write(request)
        return self._waiting

    def close(self) -> None:
        """Close the connection; a worker that still computes cancels the call, as for a client that left."""
        if self._transport is not None:
            self._transport.abort()

    # --- called by the event loop -------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has a class of its own

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(WorkerLostError())
        if self._chunks is not None:
            self._chunks.put_nowait(None)
        self._ended(self)

    # --- called by the parser -----------------------------------------------------------------------------------------
    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if (b"transfer-encoding", b"chunked") in self._headers:
            self._chunks = asyncio.Queue()
            self._complete(b"", self._receive(self._chunks))

    def on_body(self, part: bytes) -> None:
        if self._chunks is None:
            self._parts.append(part)
        else:
            self._chunks.put_nowait(part)

    def on_message_complete(self) -> None:
        self._is_whole = True
        if self._chunks is None:
            self._complete(b"".join(self._parts))
        else:
            self._chunks.put_nowait(None)

    def _complete(self, body: bytes, parts: AsyncGenerator[bytes] | None = None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(Answer(self._parser.get_status_code(), self._headers, body, parts))

    async def _receive(self, chunks: asyncio.Queue[bytes | None]) -> AsyncGenerator[bytes]:
        while (part := await chunks.get()) is not None:
            yield part
        if not self._is_whole:
            raise WorkerLostError
