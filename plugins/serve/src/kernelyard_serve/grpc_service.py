"""The Open Inference Protocol over gRPC, on the event loop of the server over HTTP."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from math import ceil
from typing import Any

import grpc

import kernelyard as ky
from kernelyard.errors import KernelyardError
from kernelyard_serve.errors import ServeSetupError, as_ours, retry_after, status_of
from kernelyard_serve.grpc_codec import decode_request, encode_answer
from kernelyard_serve.grpc_messages import SERVICE, message
from kernelyard_serve.http_app import CLIENT_LEFT, EXTENSIONS, NAME
from kernelyard_serve.repository import READY, ModelRepository
from kernelyard_serve.served_model import ServedModel

Method = Callable[[Any, Any], Awaitable[Any]]
METHODS = (
    *("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
)


class GRPCServer:
    """A server that listens; `await GRPCServer.start(repository, host, port)`."""

    def __init__(self, server: Any, port: int) -> None:
        self._server, self.port = server, port

    @staticmethod
    async def start(repository: ModelRepository, host: str, port: int, max_requests: int) -> GRPCServer:
        """Listen; port 0 is any that is free. max_requests: at the same time. Raises: ServeSetupError."""
        limit = repository.options.max_body
        options = [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", -1)]
        options.append(("grpc.so_reuseport", 0))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_requests)
        server.add_generic_rpc_handlers((handlers(repository),))
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


def handlers(repository: ModelRepository) -> Any:
    """Return what answers the methods of the protocol."""
    service = Service(repository)
    found = {
        name: grpc.unary_unary_rpc_method_handler(
            service.guarded(getattr(service, name)),
            request_deserializer=message(f"{name}Request").FromString,
            response_serializer=message(f"{name}Response").SerializeToString,
        )
        for name in METHODS
    }
    return grpc.method_handlers_generic_handler(SERVICE, found)


async def _abort(context: Any, error: KernelyardError) -> None:
    details = [("kernelyard-code", error.code)]
    seconds = retry_after(error)
    if seconds is not None:
        details.append(("retry-after", str(ceil(seconds))))
    await context.abort(getattr(grpc.StatusCode, status_of(error).grpc), str(error), tuple(details))


class Service:
    """The methods of the protocol, named as it names them."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    def guarded(self, method: Method) -> Method:
        """Return a method that answers with the status of its errors."""

        async def answered(request: Any, context: Any) -> Any:
            try:
                return await method(request, context)
            except Exception as error:
                ours = as_ours(error)
            return await _abort(context, ours)

        return answered

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Run a model."""
        start = time.monotonic()
        served = self._repository.get(request.model_name, request.model_version)
        status = CLIENT_LEFT  # unless it is answered
        try:
            asked = decode_request(request, served.inputs, served.outputs, context.time_remaining())
            answer = encode_answer(served.name, served.version, asked, await served.submit(asked))
            status = 200
            return answer
        except Exception as error:
            ours = as_ours(error)
            status = status_of(ours).http
            raise ours from error
        finally:
            served.metrics.answered("grpc", status, time.monotonic() - start)

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The process answers."""
        return message("ServerLiveResponse")(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """All models are loaded and warm, and the server is not stopping."""
        return message("ServerReadyResponse")(ready=self._repository.is_ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Metadata of the server."""
        return message("ServerMetadataResponse")(name=NAME, version=ky.__version__, extensions=EXTENSIONS)

    def _served(self, request: Any) -> ServedModel:
        return self._repository.get(request.name, request.version)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A model is loaded and warm."""
        try:
            self._served(request)
        except KernelyardError:
            return message("ModelReadyResponse")(ready=False)
        return message("ModelReadyResponse")(ready=True)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Metadata of a model."""
        served = self._served(request)
        facts = served.metadata(self._repository.versions(served.name))
        del facts["placement"]  # as text among the properties
        return message("ModelMetadataResponse")(**facts)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        """All versions of all models, with their states."""
        entries = [each for each in self._repository.index() if each.state == READY or not request.ready]
        return message("RepositoryIndexResponse")(models=[each._asdict() for each in entries])

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Load a model, or what is new of it."""
        name = self._controlled(request)
        await self._repository.load(name)
        return message("RepositoryModelLoadResponse")(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Serve a model no more."""
        name = self._controlled(request)
        await self._repository.unload(name)
        return message("RepositoryModelUnloadResponse")(model_name=name, isUnloaded=True)

    def _controlled(self, request: Any) -> str:
        """Return the model that is to be loaded or unloaded. Raises: as `controlled`."""
        return self._repository.controlled(request.model_name or request.repository_name, list(request.parameters))
