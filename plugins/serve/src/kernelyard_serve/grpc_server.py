"""A gRPC server on the event loop of the server over HTTP; who answers gets messages as bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import ceil
from typing import Any, TypeAlias

import grpc

from kernelyard_serve.errors import ServeSetupError, as_ours, retry_after, status_of
from kernelyard_serve.grpc_messages import SERVICE
from kernelyard_serve.grpc_service import METHODS
from kernelyard_serve.http_body import BodyReader
from kernelyard_serve.inference import Deadline

Answerer: TypeAlias = "Callable[[str, bytes, Deadline], Awaitable[bytes]]"
"""`await answer(method, message, deadline)`: the message of the answer."""


class GRPCRefusedError(Exception):
    """A request is refused: the name of gRPC's status, its text, and pairs for the trailing metadata."""

    def __init__(self, status: str, text: str, details: tuple[tuple[str, str], ...]) -> None:
        super().__init__(text)
        self.status, self.details = status, details


class GRPCServer:
    """Serve messages over gRPC: `await GRPCServer.start(answer, bodies, host, port, connections)`."""

    def __init__(self, server: Any, port: int) -> None:
        self._server, self.port = server, port

    @staticmethod
    async def start(answer: Answerer, bodies: BodyReader, host: str, port: int, max_requests: int) -> GRPCServer:
        """Listen; port 0 is any that is free. max_requests: at the same time. Raises: ServeSetupError."""
        options = [("grpc.max_receive_message_length", bodies.max_size), ("grpc.max_send_message_length", -1)]
        options.append(("grpc.so_reuseport", 0))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_requests)
        found = {name: grpc.unary_unary_rpc_method_handler(_handler(name, answer, bodies)) for name in METHODS}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, found),))
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            hint = "choose another --grpc-port, or 0 for any that is free"
            where = f"{host}:{port}"
            raise ServeSetupError(
                "the address is taken or cannot be had", where=where, found=error, hint=hint
            ) from error
        await server.start()
        return GRPCServer(server, bound)

    async def stop(self, seconds: float) -> None:
        """Take no more requests, and return when those that have begun are answered, or after so many seconds."""
        await self._server.stop(seconds)


def _handler(method: str, answer: Answerer, bodies: BodyReader) -> Any:
    """Return what answers a method over gRPC: with the status of its errors."""

    async def handle(data: bytes, context: Any) -> Any:
        try:
            with bodies.holding(data):
                return await answer(method, data, Deadline(context.time_remaining()))
        except GRPCRefusedError as error:
            refused = error
        except Exception as error:
            refused = _refuse(error)
        return await context.abort(getattr(grpc.StatusCode, refused.status), str(refused), refused.details)

    return handle


def _refuse(error: Exception) -> GRPCRefusedError:
    ours = as_ours(error)
    details = [("kernelyard-code", ours.code)]
    seconds = retry_after(ours)
    if seconds is not None:
        details.append(("retry-after", str(ceil(seconds))))
    return GRPCRefusedError(status_of(ours).grpc, str(ours), tuple(details))
