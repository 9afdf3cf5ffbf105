"""The front's half of gRPC: messages of clients go to workers over HTTP, and to all of them where models change."""

from __future__ import annotations

import time

from kernelyard_serve.errors import StoppingError
from kernelyard_serve.fleet import Fleet
from kernelyard_serve.front import Front
from kernelyard_serve.grpc_messages import message
from kernelyard_serve.grpc_server import GRPCRefusedError
from kernelyard_serve.grpc_service import model_of, parse_request
from kernelyard_serve.inference import Deadline
from kernelyard_serve.message_bridge import CODE, REMAINING, RETRY, STATUS
from kernelyard_serve.worker_connection import ARRIVED_HEADER, MESSAGES, Answer, request_bytes

_CONTROLS = ("RepositoryModelLoad", "RepositoryModelUnload")


class GRPCFront:
    """Answer clients of gRPC by the workers of a front."""

    def __init__(self, front: Front, fleet: Fleet) -> None:
        self._front, self._fleet = front, fleet

    async def answer(self, method: str, data: bytes, deadline: Deadline) -> bytes:
        """Return the message that answers another. Raises: GRPCRefusedError, ModelNotReadyError, StoppingError, ..."""
        if method == "ServerLive":
            return message("ServerLiveResponse")(live=True).SerializeToString()
        if method == "ServerReady":
            is_ready = bool(self._fleet.ready) and not self._front.stopping
            return message("ServerReadyResponse")(ready=is_ready).SerializeToString()
        if self._front.stopping:
            raise StoppingError("the server is stopping")
        remaining = deadline.remaining
        fields = [(ARRIVED_HEADER, b"%.6f" % time.monotonic())]
        fields += [] if remaining is None else [(REMAINING, b"%.6f" % max(remaining, 0.0))]
        request = request_bytes("POST", f"{MESSAGES}{method}".encode(), fields, data)
        model = model_of(parse_request(method, data)) if method in _CONTROLS else None
        found = await (self._front.ask(request) if model is None else self._fleet.control(model, request))
        if found.status != 200:
            raise _refusal_of(found)
        return found.body


def _refusal_of(found: Answer) -> GRPCRefusedError:
    given = {name.decode(): value.decode("latin-1") for name, value in found.headers}
    details = [(name.decode(), given[name.decode()]) for name in (CODE, RETRY) if name.decode() in given]
    return GRPCRefusedError(given.get(STATUS.decode(), "INTERNAL"), found.body.decode(), tuple(details))
