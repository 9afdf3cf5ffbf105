"""The server: listens before its models are loaded, is ready when they are warm, and stops when all are answered."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from kernelyard_serve.errors import ServeSetupError
from kernelyard_serve.http_app import create_app
from kernelyard_serve.http_body import BodyReader
from kernelyard_serve.http_protocol import HTTPProtocol
from kernelyard_serve.repository import ModelRepository

if TYPE_CHECKING:  # gRPC need not be installed
    from kernelyard_serve.grpc_server import Answerer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Address:
    """Set where a server listens. grpc_port: None for none. 0: any free one. connections: the most at a time.

    head_seconds: until the head of a request has arrived, or a new connection is ended.
    fd: a socket that listens already, of the front whose worker this is. messages: it passes gRPC's on.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    connections: int = 1000
    head_seconds: float = 30.0
    stop_seconds: int = 30
    fd: int | None = None
    messages: bool = False

    @property
    def url_host(self) -> str:
        """Return the host as URLs write it."""
        return f"[{self.host}]" if ":" in self.host else self.host


class HTTPServer(uvicorn.Server):
    """Run uvicorn's server; call back when it is asked to stop, and end the process with 0 then."""

    def __init__(self, config: uvicorn.Config, stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopping = stopping

    def stop(self) -> None:
        """Take no more requests, and return from `serve` when those that have begun are answered."""
        self._stopping()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for each in signals:
            loop.add_signal_handler(each, self.stop)
        try:
            yield
        finally:
            for each in signals:
                loop.remove_signal_handler(each)


def http_config(app: Any, address: Address) -> uvicorn.Config:
    """Return how uvicorn serves an application."""
    return uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        http=partial(HTTPProtocol, address.head_seconds),  # pyright: ignore[reportArgumentType]  called as a class is
        ws="none",
        access_log=False,
        log_level="warning",
        lifespan="off",
        limit_concurrency=address.connections,
        timeout_keep_alive=75,  # longer than load balancers keep connections that are idle
        timeout_graceful_shutdown=address.stop_seconds,
    )


def listen(address: Address) -> socket.socket:
    """Return a socket that is bound to the address. Raises: ServeSetupError."""
    if address.fd is not None:
        return socket.socket(fileno=address.fd)
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family, backlog=2048)
    except OSError as error:
        where, hint = f"{address.host}:{address.port}", "choose another --port, or 0 for any that is free"
        raise ServeSetupError("the address is taken or cannot be had", where=where, found=error, hint=hint) from error


def run(make_repository: Callable[[], ModelRepository], address: Address, say: Say) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP loads what is new of all models.

    say: is given a line when the server listens, and when it is ready. Raises: ServeSetupError, and the error of the
    first model that cannot be loaded.
    """
    with listen(address) as http:
        factory = uvicorn.Config(None, loop="auto").get_loop_factory()  # pyright: ignore[reportArgumentType]
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_serve(make_repository, address, http, say))


async def _serve(
    make_repository: Callable[[], ModelRepository], address: Address, http: socket.socket, say: Say
) -> None:
    repository = make_repository()

    def stopping() -> None:
        repository.stopping = True

    bodies = repository.options.body_reader()
    app = create_app(repository, bodies, has_front=address.fd is not None)
    if address.messages:
        from kernelyard_serve.message_bridge import MessageBridge, Service

        app = MessageBridge(Service(repository), bodies, app)
    server = HTTPServer(http_config(app, address), stopping)
    grpc = await start_grpc(lambda: _service(repository), bodies, address)
    say(f"listening on http://{address.url_host}:{port_of(http)}")
    if address.fd is not None:
        _stop_with_front(server)
    if grpc is not None:
        say(f"listening on grpc://{address.url_host}:{grpc.port}")
    loading = asyncio.create_task(_load(repository, server, say))
    try:
        await server.serve(sockets=[http])
        if grpc is not None:
            await grpc.stop(address.stop_seconds)
    finally:
        loading.cancel()
        await asyncio.wait([loading])
        repository.close()
    if not loading.cancelled():
        loading.result()


def port_of(listening: socket.socket) -> int:
    """Return the port of a socket; 0 where it has none, as among processes of this machine."""
    return listening.getsockname()[1] if listening.family != socket.AF_UNIX else 0


def _stop_with_front(server: HTTPServer) -> None:
    """Stop a worker when its front is gone, whatever has ended it: its standard input ends then."""
    loop = asyncio.get_running_loop()

    def stop_at_end() -> None:
        if not os.read(0, 1 << 12):
            loop.remove_reader(0)
            server.stop()

    loop.add_reader(0, stop_at_end)


async def _load(repository: ModelRepository, server: HTTPServer, say: Say) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, repository, say)
    try:
        await repository.load_all()
    except BaseException:
        server.stop()
        raise
    for name in repository.names:
        for version in repository.versions(name):
            served = repository.get(name, version)
            say(f"ready: {name}, version {version}: {served.properties()['placement']}")


def _reload(repository: ModelRepository, say: Say) -> None:
    async def reload_all() -> None:
        for name in repository.names:
            try:
                await repository.load(name)
            except Exception as error:
                say(f"not loaded again: {name}: {error}")

    repository.reloading = asyncio.ensure_future(reload_all())  # the loop itself would not keep it


def _service(repository: ModelRepository) -> Answerer:
    from kernelyard_serve.grpc_service import Service

    return Service(repository).answer


async def start_grpc(answerer: Callable[[], Answerer], bodies: BodyReader, address: Address) -> Any:
    """Return the server that listens for gRPC, None where none is asked for. Raises: ServeSetupError."""
    if address.grpc_port is None:
        return None
    try:
        answer = answerer()
        from kernelyard_serve.grpc_server import GRPCServer
    except ModuleNotFoundError as error:
        hint = "pip install 'kernelyard-serve[grpc]'"
        raise ServeSetupError("the protocol over gRPC needs grpcio and protobuf", found=error, hint=hint) from error
    return await GRPCServer.start(answer, bodies, address.url_host, address.grpc_port, address.connections)


def run_app(app: Any, address: Address, say: Say) -> None:
    """Serve an ASGI application of another distribution until SIGTERM or SIGINT. Raises: ServeSetupError."""
    with listen(address) as http:
        config = http_config(app, address)
        config.lifespan = "auto"
        say(f"listening on http://{address.url_host}:{port_of(http)}")
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_serve_app(HTTPServer(config, lambda: None), address, http))


async def _serve_app(server: HTTPServer, address: Address, http: socket.socket) -> None:
    if address.fd is not None:
        _stop_with_front(server)
    await server.serve(sockets=[http])
