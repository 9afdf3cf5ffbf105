"""The server with workers: a front that listens, and the processes behind it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import uvicorn

from kernelyard_serve.fleet import Command, Fleet
from kernelyard_serve.front import Front
from kernelyard_serve.http_body import BodyReader
from kernelyard_serve.server import Address, HTTPServer, Say, http_config, listen, port_of, start_grpc

if TYPE_CHECKING:  # gRPC need not be installed
    from kernelyard_serve.grpc_server import Answerer


@dataclass(frozen=True)
class Workers:
    """Describe the processes behind a front.

    command: of one, by the number of its open socket. ready_path: what it answers with 200 once it is ready.
    reloads: it loads what is new of its models when it gets SIGHUP.
    """

    command: Command
    count: int
    ready_path: str = "/v2/health/ready"
    reloads: bool = True


def run_front(workers: Workers, bodies: BodyReader, address: Address, say: Say) -> None:
    """Serve by worker processes until SIGTERM or SIGINT; SIGHUP has all of them load what is new.

    Raises: ServeSetupError, also where a worker cannot start.
    """
    factory = uvicorn.Config(None, loop="auto").get_loop_factory()  # pyright: ignore[reportArgumentType]
    with ExitStack() as stack:
        http = stack.enter_context(listen(address))
        folder = stack.enter_context(TemporaryDirectory(prefix="kernelyard-"))
        runner = stack.enter_context(asyncio.Runner(loop_factory=factory))
        fleet = Fleet(workers.command, workers.count, Path(folder), say, workers.ready_path)
        runner.run(_serve_by(fleet, workers.reloads, bodies, address, http, say))


async def _serve_by(
    fleet: Fleet, reloads: bool, bodies: BodyReader, address: Address, http: socket.socket, say: Say
) -> None:
    front = Front(fleet, bodies)

    def stopping() -> None:
        front.stopping = True

    server = HTTPServer(http_config(front, address), stopping)
    grpc = await start_grpc(lambda: _answerer(front, fleet), bodies, address)
    say(f"listening on http://{address.url_host}:{port_of(http)}")
    if grpc is not None:
        say(f"listening on grpc://{address.url_host}:{grpc.port}")

    if reloads:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, fleet.reload)

    async def start() -> None:
        try:
            await fleet.start()
        except BaseException:
            server.stop()
            raise

    starting = asyncio.create_task(start())
    try:
        await server.serve(sockets=[http])
        if grpc is not None:
            await grpc.stop(address.stop_seconds)
    finally:
        starting.cancel()
        await asyncio.wait([starting])
        await fleet.stop(address.stop_seconds)
    if not starting.cancelled():
        starting.result()


def _answerer(front: Front, fleet: Fleet) -> Answerer:
    # Workers are started by fork and exec: gRPC need not make its threads fit for the time between, nor log about it.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from kernelyard_serve.grpc_front import GRPCFront

    return GRPCFront(front, fleet).answer
