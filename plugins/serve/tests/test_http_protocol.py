"""Requests have arrived when the kernel took them in, not when the event loop reads them."""

from __future__ import annotations

import asyncio
import socket
import sys
import time

import pytest

from kernelyard_serve.http_protocol import seconds_unread


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say when data came in")
def test_the_time_in_which_nobody_reads_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        connected, _ = server.accept()
        with connected:
            client.sendall(b"request")
            time.sleep(0.3)
            assert seconds_unread(connected) >= 0.25
            assert connected.recv(100) == b"request"  # the socket is as it was
            client.sendall(b"another")
            assert connected.recv(100) == b"another"


def test_between_processes_of_this_machine_nothing_is_known() -> None:
    front, worker = socket.socketpair()
    with front, worker:
        assert seconds_unread(front) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say when data came in")
def test_sockets_of_event_loops_are_asked_too() -> None:
    found: list[float] = []

    class Reader(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.socket = transport.get_extra_info("socket")

        def data_received(self, data: bytes) -> None:
            found.append(seconds_unread(self.socket))

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Reader, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await asyncio.sleep(0.05)
        writer.write(b"request")
        time.sleep(0.3)
        while not found:
            await asyncio.sleep(0.001)
        writer.close()
        server.close()

    asyncio.run(main())
    assert found[0] >= 0.25
