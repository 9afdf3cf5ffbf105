"""A gRPC server that gives back what it got: what grpcio itself takes. `grpc_echo.py threads|asyncio|uvloop`."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

METHOD = ("inference.GRPCInferenceService", "ModelInfer")


def echo(data: bytes, context: object) -> bytes:
    """Return the message."""
    return data


async def echo_later(data: bytes, context: object) -> bytes:
    """Return the message, on the event loop."""
    return data


def bind(server: Any, method: Any) -> None:
    """Have a server answer, and say where it will listen."""
    handlers = {METHOD[1]: grpc.unary_unary_rpc_method_handler(method)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD[0], handlers),))
    print(f"listening on grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")


async def serve() -> None:
    """Serve on the running loop."""
    server = grpc.aio.server()
    bind(server, echo_later)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


def main() -> None:
    """See the module's text."""
    if sys.argv[1] == "threads":
        server = grpc.server(ThreadPoolExecutor(2))
        bind(server, echo)
        server.start()
        print("ready", flush=True)
        server.wait_for_termination()
    elif sys.argv[1] == "uvloop":
        import uvloop

        uvloop.run(serve())
    else:
        asyncio.run(serve())


if __name__ == "__main__":
    main()
