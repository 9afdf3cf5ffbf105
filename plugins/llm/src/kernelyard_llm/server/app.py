"""OpenAI's protocol over HTTP: a Starlette application over an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kernelyard.errors import CallTimeoutError, KernelyardError
from kernelyard_llm.engine.engine import Engine, EngineOptions
from kernelyard_llm.errors import EngineBusyError, EngineStoppedError, LanguageModelError
from kernelyard_llm.loading import load
from kernelyard_llm.model import LanguageModel
from kernelyard_llm.server.answer import Answer, Piece
from kernelyard_llm.server.bodies import Bodies, error_body
from kernelyard_llm.server.counts import ServerCounts
from kernelyard_llm.server.options import ServerOptions
from kernelyard_llm.server.protocol import Chat, Completion, check_model, prompts_of, read, sampling_of
from kernelyard_serve.errors import RETRY_SECONDS, as_ours, retry_after, status_of
from kernelyard_serve.http_body import BodyReader, ClientLeftError, unless_left
from kernelyard_serve.http_codec import to_json
from kernelyard_serve.metrics import CONTENT_TYPE

CLIENT_LEFT = 499  # the status in the counts; nobody gets it
Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(model: str | Path | LanguageModel, options: ServerOptions | None = None) -> Starlette:
    """Return the application that serves a language model: a path for `kernelyard_llm.load`, or NAME=PATH.

    Raises: LanguageModelError, and what loading and compiling raise.
    """
    options = options or ServerOptions()
    if isinstance(model, LanguageModel):
        name, loaded = "model", model
    else:
        name, _, path = str(model).rpartition("=")
        name, loaded = name or Path(path).stem, load(path, threads=options.threads, cache_dtype=options.cache_dtype)
    service = Service(Engine(loaded, _engine_options(options)), name, options)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.engine.close)

    pages: dict[tuple[str, str], Endpoint] = {
        ("/", "GET"): service.page,
        ("/health", "GET"): service.health,
        ("/metrics", "GET"): service.metrics,
        ("/v1/models", "GET"): service.models,
        ("/v1/models/{name}", "GET"): service.model,
        ("/v1/chat/completions", "POST"): service.chat,
        ("/v1/completions", "POST"): service.completions,
    }
    routes = [Route(path, service.handle_errors(page), methods=[method]) for (path, method), page in pages.items()]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _unknown_path})


async def _unknown_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return _json(body, error.status_code, dict(error.headers or {}))


def _engine_options(options: ServerOptions) -> EngineOptions:
    return EngineOptions(options.sequences, options.waiting, options.cache_tokens)


class Service:
    """The endpoints."""

    def __init__(self, engine: Engine, name: str, options: ServerOptions) -> None:
        self.engine, self.name, self._timeout = engine, name, options.timeout
        self.counts = ServerCounts()
        self._bodies = BodyReader(options.max_body, options.body_timeout, options.max_held)
        self._page = (files("kernelyard_llm.server") / "chat.html").read_text(encoding="utf-8")
        self._created = int(time.time())

    def handle_errors(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that answers with the errors of another, and counts its answers."""

        async def page(request: Request) -> Response:
            begin = time.perf_counter()
            try:
                response = await endpoint(request)
            except ClientLeftError:
                response = Response(status_code=CLIENT_LEFT)
            except Exception as error:  # whatever fails is an answer: those of others come out as one that says so
                response = _error(as_ours(error))
            if not isinstance(response, StreamingResponse):
                self.counts.count_answer(response.status_code, time.perf_counter() - begin)
            return response

        return page

    async def page(self, request: Request) -> Response:
        """Answer with a page to chat on."""
        return HTMLResponse(self._page)

    async def health(self, request: Request) -> Response:
        """Answer that the model is loaded."""
        if self.engine.is_closed:
            raise EngineStoppedError("the server is stopping")
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Counts and times for Prometheus."""
        return Response(self.counts.text(self.engine, self.name), headers={"content-type": CONTENT_TYPE})

    async def models(self, request: Request) -> Response:
        """Return the one model."""
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """Return the model by its name."""
        check_model(request.path_params["name"], self.name)
        return _json(self._model())

    def _model(self) -> dict[str, Any]:
        facts = {"id": self.name, "object": "model", "created": self._created, "owned_by": "kernelyard"}
        return {**facts, "context": self.engine.model.context}

    async def chat(self, request: Request) -> Response:
        """Answer messages."""
        asked: Chat = await self._read(request, Chat)
        prompt = await asyncio.to_thread(self.engine.model.prompt, asked.plain())
        return await self._answer(request, asked, [prompt], is_chat=True)

    async def completions(self, request: Request) -> Response:
        """Continue texts."""
        asked: Completion = await self._read(request, Completion)
        prompts = await asyncio.to_thread(prompts_of, asked, self.engine.model.encode)
        return await self._answer(request, asked, prompts, is_chat=False)

    async def _read(self, request: Request, kind: type[Chat] | type[Completion]) -> Any:
        body = await self._bodies.read(request.scope, request.receive)
        self._bodies.release(body)
        asked = read(body, kind)
        check_model(asked.model, self.name)
        return asked

    async def _answer(
        self, request: Request, asked: Chat | Completion, prompts: list[list[int]], is_chat: bool
    ) -> Response:
        samplings = [sampling_of(asked, index) for index in range(asked.n or 1)]
        answer = Answer(self.engine, self.counts, prompts, samplings, asked.new_tokens, asked.stops)
        bodies = Bodies(self.engine.model, self.name, is_chat, asked.best is not None)
        if not asked.stream:
            pieces = await unless_left(asyncio.ensure_future(_collect(answer, self._timeout)), request.receive)
            return _json(bodies.whole(pieces, answer))
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        return _Stream(answer, self._stream(answer, bodies, is_chat, with_usage))

    async def _stream(self, answer: Answer, bodies: Bodies, is_chat: bool, with_usage: bool) -> AsyncIterator[bytes]:
        begin, status = time.perf_counter(), CLIENT_LEFT
        try:
            for index in range(answer.choices if is_chat else 0):
                yield _event(bodies.first(index))
            async for piece in answer.pieces():
                yield _event(bodies.chunk(piece))
            if with_usage:
                yield _event(bodies.last(answer))
            status = 200
            yield b"data: [DONE]\n\n"
        except Exception as error:  # the status is sent: a stream tells what failed as its last event
            ours = as_ours(error)
            status = _status(ours)
            yield _event(error_body(ours, status))
        finally:
            answer.cancel()
            self.counts.count_answer(status, time.perf_counter() - begin)


class _Stream(StreamingResponse):
    """Events of an answer, which is given up with its client, also before the first of them."""

    def __init__(self, answer: Answer, events: AsyncIterator[bytes]) -> None:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        super().__init__(events, headers=headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.cancel()


async def _collect(answer: Answer, seconds: float | None) -> list[Piece]:
    """Return all pieces. Raises: CallTimeoutError, and what failed."""
    try:
        async with asyncio.timeout(seconds):
            return [piece async for piece in answer.pieces()]
    except TimeoutError:
        raise CallTimeoutError("the answer took too long", expected=f"within {seconds:g} s") from None
    finally:
        answer.cancel()


def _status(error: KernelyardError) -> int:
    if isinstance(error, EngineBusyError):
        return 429
    if isinstance(error, EngineStoppedError):
        return 503
    return 400 if isinstance(error, LanguageModelError) else status_of(error).http


def _error(error: KernelyardError) -> Response:
    status = _status(error)
    seconds = RETRY_SECONDS if status in (429, 503) else retry_after(error)
    headers = {} if seconds is None else {"retry-after": str(ceil(seconds))}
    if status in (408, 413):  # the rest of the body is not read
        headers["connection"] = "close"
    return _json(error_body(error, status), status, headers)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value), status, {"content-type": "application/json", **(headers or {})})


def _event(value: object) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"
