"""Reading bodies of requests within limits, and answering them, as ASGI applications do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import ceil

from starlette.types import Receive, Scope, Send

from kernelyard.errors import KernelyardError
from kernelyard_serve.errors import RequestFormatError, RequestSizeError, SlowRequestError, retry_after, status_of
from kernelyard_serve.http_codec import to_json

JSON = b"application/json"
BINARY = b"application/octet-stream"
Headers = Sequence[tuple[bytes, bytes]]


class ClientLeftError(Exception):
    """The client closed its connection: nobody reads an answer."""


def header(scope: Scope, name: bytes) -> str | None:
    """Return the value of a header, None where there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


async def read_body(scope: Scope, receive: Receive, max_size: int, seconds: float) -> bytes:
    """Return the body of a request. Raises: RequestSizeError, SlowRequestError, RequestFormatError, ClientLeftError."""
    encoding = header(scope, b"content-encoding")
    if encoding not in (None, "identity"):
        raise RequestFormatError("compressed bodies are not accepted", found=encoding[:40], expected="no encoding")
    declared = header(scope, b"content-length") or ""
    if declared.isdecimal() and int(declared) > max_size and header(scope, b"expect") is not None:
        raise _too_large(declared, max_size)  # it is not sent at all
    try:
        async with asyncio.timeout(seconds):
            return await _read(receive, max_size)
    except TimeoutError:
        raise SlowRequestError("the body did not arrive in time", expected=f"within {seconds:g} s") from None


async def _read(receive: Receive, max_size: int) -> bytes:
    """Return the body; what is too much is read, as clients read no answer before they have sent all, but not kept."""
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        part = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size > max_size:
            parts.clear()
        else:
            parts.append(part)
    if size > max_size:
        raise _too_large(str(size), max_size)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(found: str, max_size: int) -> RequestSizeError:
    hint = "send less at once, or start the server with a larger --max-body"
    return RequestSizeError("the body is too large", found=f"{found} bytes", expected=f"at most {max_size}", hint=hint)


async def answer(send: Send, status: int, body: bytes, kind: bytes = JSON, headers: Headers = ()) -> None:
    """Send an answer."""
    fields = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def answer_error(send: Send, error: KernelyardError) -> int:
    """Send an error, and return its status: what the protocol wants to know is text, the same facts follow."""
    status = status_of(error).http
    facts: Mapping[str, object] = {**error.to_json(), "error": str(error), "kind": type(error).__name__}
    headers: list[tuple[bytes, bytes]] = []
    seconds = retry_after(error)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % ceil(seconds)))
    if isinstance(error, (RequestSizeError, SlowRequestError)):  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    await answer(send, status, to_json(facts), headers=headers)
    return status
