"""The methods of the Open Inference Protocol over gRPC, from message to message, over any transport."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import kernelyard as ky
from kernelyard.errors import KernelyardError
from kernelyard_serve.errors import RequestFormatError, as_ours, status_of
from kernelyard_serve.grpc_codec import decode_request, encode_answer
from kernelyard_serve.grpc_messages import message
from kernelyard_serve.http_app import CLIENT_LEFT, EXTENSIONS, NAME
from kernelyard_serve.inference import Deadline
from kernelyard_serve.repository import READY, ModelRepository
from kernelyard_serve.served_model import ServedModel

Method = Callable[[Any, Deadline], Awaitable[Any]]
METHODS = (
    *("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
)


def parse_request(method: str, data: bytes) -> Any:
    """Return the request message of a method. Raises: RequestFormatError."""
    from google.protobuf.message import DecodeError

    try:
        return message(f"{method}Request").FromString(data)
    except DecodeError as error:
        raise RequestFormatError("the message cannot be read", found=str(error), expected=f"{method}Request") from None


class Service:
    """Answer the methods of the protocol, named as it names them; each gets the deadline of the client."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._methods: dict[str, Method] = {name: getattr(self, name) for name in METHODS}

    async def answer(self, method: str, data: bytes, deadline: Deadline) -> bytes:
        """Return the answer of a method to a message. Raises: RequestFormatError, and those of the method."""
        return (await self._methods[method](parse_request(method, data), deadline)).SerializeToString()

    async def ModelInfer(self, request: Any, deadline: Deadline) -> Any:  # noqa: N802
        """Run a model."""
        start = time.monotonic()
        served = self._repository.get(request.model_name, request.model_version)
        status = CLIENT_LEFT  # unless it is answered
        try:
            asked = decode_request(request, served.inputs, served.outputs, deadline)
            answer = encode_answer(served.name, served.version, asked, await served.submit(asked))
            status = 200
            return answer
        except Exception as error:
            ours = as_ours(error)
            status = status_of(ours).http
            raise ours from error
        finally:
            served.metrics.record_answer("grpc", status, time.monotonic() - start)

    async def ServerLive(self, request: Any, deadline: Deadline) -> Any:  # noqa: N802
        """Return that the process answers."""
        return message("ServerLiveResponse")(live=True)

    async def ServerReady(self, request: Any, deadline: Deadline) -> Any:  # noqa: N802
        """Return whether all models are loaded and warm, and the server is not stopping."""
        return message("ServerReadyResponse")(ready=self._repository.is_ready)

    async def ServerMetadata(self, request: Any, deadline: Deadline) -> Any:  # noqa: N802
        """Return the metadata of the server."""
        return message("ServerMetadataResponse")(name=NAME, version=ky.__version__, extensions=EXTENSIONS)

    def _find_served(self, request: Any) -> ServedModel:
        return self._repository.get(request.name, request.version)

    async def ModelReady(self, request: Any, deadline: Deadline) -> Any:  # noqa: N802
        """Return whether a model is loaded and warm."""
        try:
            self._find_served(request)
        except KernelyardError:
            return message("ModelReadyResponse")(ready=False)
        return message("ModelReadyResponse")(ready=True)

    async def ModelMetadata(self, request: Any, deadline: Deadline) -> Any:  # noqa: N802
        """Return the metadata of a model."""
        served = self._find_served(request)
        facts = served.metadata(self._repository.versions(served.name))
        del facts["placement"]  # as text among the properties
        return message("ModelMetadataResponse")(**facts)

    async def RepositoryIndex(self, request: Any, deadline: Deadline) -> Any:  # noqa: N802
        """Return all versions of all models, with their states."""
        entries = [each for each in self._repository.index() if each.state == READY or not request.ready]
        return message("RepositoryIndexResponse")(models=[each._asdict() for each in entries])

    async def RepositoryModelLoad(self, request: Any, deadline: Deadline) -> Any:  # noqa: N802
        """Load a model, or what is new of it."""
        name = self._check_control(request)
        await self._repository.load(name)
        return message("RepositoryModelLoadResponse")(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(self, request: Any, deadline: Deadline) -> Any:  # noqa: N802
        """Serve a model no more."""
        name = self._check_control(request)
        await self._repository.unload(name)
        return message("RepositoryModelUnloadResponse")(model_name=name, isUnloaded=True)

    def _check_control(self, request: Any) -> str:
        """Return the model that is to be loaded or unloaded. Raises: as `require_control`."""
        return self._repository.require_control(model_of(request), list(request.parameters))


def model_of(control: Any) -> str:
    """Return the model that a message is to load or unload: KServe's messages begin with it."""
    return control.model_name or control.repository_name
