"""The Open Inference Protocol over HTTP: a Starlette application over a repository of models."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import kernelyard as ky
from kernelyard_serve import metrics
from kernelyard_serve.batching import Arrays
from kernelyard_serve.errors import ModelNotReadyError, RequestFormatError, UnknownPathError, as_ours
from kernelyard_serve.http_body import (
    BINARY,
    JSON,
    BodyReader,
    ClientLeftError,
    answer,
    answer_error,
    arrival,
    error_facts,
    header,
    unless_left,
)
from kernelyard_serve.http_codec import HEADER_LENGTH, decode_request, encode_answer, read_json, to_json
from kernelyard_serve.inference import InferenceRequest
from kernelyard_serve.repository import READY, ModelRepository
from kernelyard_serve.served_model import ServedModel

NAME = "kernelyard"
EXTENSIONS = ("binary_tensor_data", "model_repository", "model_repository(unload_dependents)")
CLIENT_LEFT = 499  # the status in the counts; nobody gets it
_HEADER_LENGTH = HEADER_LENGTH.encode()
_JSON_HEADERS = {"content-type": JSON.decode()}

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(repository: ModelRepository, bodies: BodyReader, *, has_front: bool = False) -> ASGIApp:
    """Return the application that serves the models of a repository. has_front: all requests come from a front."""
    pages = Pages(repository, bodies)
    infer = Inference(repository, bodies, pages.refused, has_front)
    one, version = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
    get: dict[str, Endpoint] = {
        "/v2/health/live": pages.live,
        "/v2/health/ready": pages.ready,
        "/v2": pages.server,
        "/v2/models": pages.models,
        **dict.fromkeys((one, version), pages.model),
        **dict.fromkeys((f"{one}/ready", f"{version}/ready"), pages.model_ready),
        "/metrics": pages.metrics,
    }
    post: dict[str, Endpoint] = {
        "/v2/repository/index": pages.index,
        "/v2/repository/models/{model}/load": pages.load,
        "/v2/repository/models/{model}/unload": pages.unload,
    }
    routes = [Route(f"{path}/infer", infer, methods=["POST"]) for path in (one, version)]
    routes += [Route(path, pages.handle_errors(page), methods=["GET"]) for path, page in get.items()]
    routes += [Route(path, pages.handle_errors(page), methods=["POST"]) for path, page in post.items()]
    return _Quick(infer, Starlette(routes=routes, exception_handlers={HTTPException: pages.unknown}))


class _Quick:
    """Send inference requests straight to their endpoint, and all others by way of Starlette.

    Which takes 5 to 10 of the 40 to 50 us that an inference takes beside the server's own reading and writing.
    """

    def __init__(self, infer: Inference, others: ASGIApp) -> None:
        self._infer, self._others = infer, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            match scope["path"].split("/"):
                case ["", "v2", "models", str(model), "infer"] if model:
                    scope["path_params"] = {"model": model}
                    await self._infer(scope, receive, send)
                    return
                case ["", "v2", "models", str(model), "versions", str(version), "infer"] if model and version:
                    scope["path_params"] = {"model": model, "version": version}
                    await self._infer(scope, receive, send)
                    return
                case _:
                    pass
        await self._others(scope, receive, send)


class Inference:
    """Answer inference requests, as an ASGI application of its own: this path has to be quick."""

    def __init__(self, repository: ModelRepository, bodies: BodyReader, refused: Counter[int], has_front: bool) -> None:
        self._repository, self._bodies, self._refused = repository, bodies, refused
        self._has_front = has_front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        start = time.monotonic()
        served: ServedModel | None = None
        body = b""
        try:
            body = await self._bodies.read(scope, receive)
            where = scope["path_params"]
            served = self._repository.get(where["model"], where.get("version", ""))
            length = header(scope, _HEADER_LENGTH)
            arrived = arrival(scope, has_front=self._has_front)
            request = decode_request(body, length, served.inputs, served.outputs)._replace(arrived=arrived)
            results = await unless_left(served.submit(request), receive)
            status = await self._answer(send, served, request, results)
        except ClientLeftError:
            status = CLIENT_LEFT
        except Exception as error:
            status = await answer_error(send, as_ours(error))
        finally:
            self._bodies.release(body)
        if served is None:
            self._refused[status] += 1
        else:
            served.metrics.record_answer("http", status, time.monotonic() - start)

    async def _answer(self, send: Send, served: ServedModel, request: InferenceRequest, results: Arrays) -> int:
        body, length = encode_answer(served.name, served.version, request, results)
        if length is None:
            await answer(send, 200, body)
        else:
            await answer(send, 200, body, BINARY, [(_HEADER_LENGTH, b"%d" % length)])
        return 200


class Pages:
    """Answer all other requests: health, metadata, the repository, and counts."""

    def __init__(self, repository: ModelRepository, bodies: BodyReader) -> None:
        self._repository, self._bodies = repository, bodies
        self.refused: Counter[int] = Counter()

    def handle_errors(self, endpoint: Endpoint) -> Any:
        """Return an ASGI application that answers with the errors of an endpoint."""

        async def page(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                response = await endpoint(Request(scope, receive, send))
            except ClientLeftError:
                return
            except Exception as error:
                self.refused[await answer_error(send, as_ours(error))] += 1
                return
            await response(scope, receive, send)

        return _Application(page)

    async def unknown(self, request: Request, error: Exception) -> Response:
        """Answer that there is no such path, or method."""
        assert isinstance(error, HTTPException)
        self.refused[error.status_code] += 1
        found = f"{request.method} {request.url.path}"[:200]
        ours = UnknownPathError("the protocol has no such path, or not with this method", found=found)
        return Response(to_json(error_facts(ours)), error.status_code, {**(error.headers or {}), **_JSON_HEADERS})

    async def live(self, request: Request) -> Response:
        """Answer that the process lives."""
        return _json({"live": True})

    async def ready(self, request: Request) -> Response:
        """Answer whether all models are loaded and warm, and the server is not stopping."""
        if not self._repository.is_ready:
            raise ModelNotReadyError("the server is not ready", found="models are being loaded, or it is stopping")
        return _json({"ready": True})

    async def server(self, request: Request) -> Response:
        """Answer with the metadata of the server."""
        return _json({"name": NAME, "version": ky.__version__, "extensions": EXTENSIONS})

    async def models(self, request: Request) -> Response:
        """Answer with the names of the models."""
        return _json({"models": self._repository.names})

    def _find_served(self, request: Request) -> ServedModel:
        where = request.path_params
        return self._repository.get(where["model"], where.get("version", ""))

    async def model(self, request: Request) -> Response:
        """Answer with the metadata of a model."""
        served = self._find_served(request)
        return _json(served.metadata(self._repository.versions(served.name)))

    async def model_ready(self, request: Request) -> Response:
        """Answer whether a model is loaded and warm."""
        return _json({"name": self._find_served(request).name, "ready": True})

    async def index(self, request: Request) -> Response:
        """Answer with all versions of all models, and their states."""
        asked = await self._read_object(request)
        entries = [entry._asdict() for entry in self._repository.index()]
        return _json([each for each in entries if each["state"] == READY or asked.get("ready") is not True])

    async def load(self, request: Request) -> Response:
        """Load a model, or what is new of it."""
        name = await self._check_control(request)
        await self._repository.load(name)
        return _json({"name": name, "versions": self._repository.versions(name)})

    async def unload(self, request: Request) -> Response:
        """Serve a model no more."""
        name = await self._check_control(request)
        await self._repository.unload(name)
        return _json({"name": name})

    async def metrics(self, request: Request) -> Response:
        """Answer with counts and times for Prometheus."""
        gauges = {**self._repository.gauges(), "held_bytes": {"": self._bodies.held}}
        gauges["resident_bytes"] = {"": metrics.resident_bytes()}
        text = metrics.text(self._repository.metrics(), gauges, self.refused)
        return Response(text, headers={"content-type": metrics.CONTENT_TYPE})

    async def _read_object(self, request: Request) -> dict[str, Any]:
        body = await self._bodies.read(request.scope, request.receive)
        self._bodies.release(body)
        asked = read_json(body)
        if not isinstance(asked, dict):
            raise RequestFormatError("the body is no JSON object", found=type(asked).__name__)
        return asked

    async def _check_control(self, request: Request) -> str:
        """Return the model that is to be loaded or unloaded. Raises: RequestFormatError, UnknownServedModelError."""
        parameters = (await self._read_object(request)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise RequestFormatError("the parameters are no JSON object", found=type(parameters).__name__)
        return self._repository.require_control(request.path_params["model"], list(parameters))


class _Application:
    """Mark a function as an ASGI application, which Starlette would else call with a request."""

    def __init__(self, function: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._function = function

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._function(scope, receive, send)


def _json(value: object) -> Response:
    return Response(to_json(value), headers=_JSON_HEADERS)
