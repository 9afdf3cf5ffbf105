"""uvicorn's protocol, which bounds the head of a request, and knows when the request has arrived."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 1 << 16
ARRIVED = "kernelyard.arrived"  # in the scope of a request that is whole: when, by the monotonic clock
_LAST_DATA_RECEIVED = slice(52, 56)  # milliseconds, in Linux's `struct tcp_info`; source: its linux/tcp.h


class HTTPProtocol(HttpToolsProtocol):
    """Read requests of one connection. head_seconds: in which the head of a request has to arrive."""

    def __init__(self, head_seconds: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._head_seconds = head_seconds
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  as uvicorn's own
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket")
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large", f"the head has more than {HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.scope[ARRIVED] = time.monotonic() - seconds_unread(self._socket)  # pyright: ignore[reportGeneralTypeIssues]  a key of ours
        super().on_message_complete()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self._head_seconds, self._late)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # of a request before, whose answer has to end
            self._head_timer = self.loop.call_later(self._head_seconds, self._late)
            return
        self._refuse(b"408 Request Timeout", f"the head did not arrive within {self._head_seconds:g} s")

    def _refuse(self, status: bytes, message: str) -> None:
        """Answer why, and end the connection: what follows cannot be distinguished from the head."""
        self._end_head()
        if self.transport.is_closing():
            return
        head = (
            b"HTTP/1.1 %s\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % (status, len(message)) + message.encode())
        self.transport.close()


def seconds_unread(connected: socket.socket) -> float:
    """Return how long the last data of a connection lay in the kernel, which is long where the event loop is behind.

    0 where the system does not say: Linux does, for TCP.
    """
    if sys.platform != "linux" or connected.family == socket.AF_UNIX:
        return 0.0
    # uvloop's own sockets duplicate themselves for each option, which takes ten times as long.
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, connected.fileno())
    try:
        facts = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.stop)
    finally:
        borrowed.detach()
    return 1e-3 * int.from_bytes(facts[_LAST_DATA_RECEIVED], sys.byteorder)
