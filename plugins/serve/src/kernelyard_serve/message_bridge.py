"""Messages of gRPC between a front and its workers: as bodies over HTTP, so that workers need no server of gRPC's.

The front speaks gRPC with clients and passes messages on as they are; a worker reads them, and answers with a message,
or with the status of gRPC's that the front is to give.
"""

from __future__ import annotations

import asyncio
from math import ceil

from starlette.types import ASGIApp, Receive, Scope, Send

from kernelyard_serve.errors import as_ours, retry_after, status_of
from kernelyard_serve.grpc_service import METHODS, Service
from kernelyard_serve.http_body import BINARY, BodyReader, ClientLeftError, answer, arrival, header, unless_left
from kernelyard_serve.inference import Deadline
from kernelyard_serve.worker_connection import MESSAGES

REMAINING, STATUS, CODE, RETRY = b"kernelyard-remaining", b"kernelyard-status", b"kernelyard-code", b"retry-after"


class MessageBridge:
    """Answer the messages that a front passes on for clients of gRPC; `others` answers all other requests."""

    def __init__(self, service: Service, bodies: BodyReader, others: ASGIApp) -> None:
        self._service, self._bodies, self._others = service, bodies, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method = scope["path"].removeprefix(MESSAGES) if scope["type"] == "http" else ""
        if method not in METHODS:
            await self._others(scope, receive, send)
            return
        data = b""
        try:
            data = await self._bodies.read(scope, receive)
            seconds = header(scope, REMAINING)
            deadline = Deadline(float(seconds) if seconds else None, arrival(scope, has_front=True))
            asked = self._service.answer(method, data, deadline)
            found = await unless_left(asyncio.ensure_future(asked), receive)
            await answer(send, 200, found, BINARY)
        except ClientLeftError:
            return
        except Exception as error:
            ours = as_ours(error)
            status, wait = status_of(ours), retry_after(ours)
            details = [(STATUS, status.grpc.encode()), (CODE, ours.code.encode())]
            details += [] if wait is None else [(RETRY, b"%d" % ceil(wait))]
            await answer(send, status.http, str(ours).encode(), b"text/plain; charset=utf-8", details)
        finally:
            self._bodies.release(data)
