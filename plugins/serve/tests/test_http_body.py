"""Bodies arrive in parts, and within limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kernelyard.errors import KernelyardError
from kernelyard_serve.http_body import BodyReader, ClientLeftError

LEFT: dict[str, Any] = {"type": "http.disconnect"}


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def read(reader: BodyReader, *messages: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    """Read a body; after the messages nothing comes."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.sleep(1000)
        return left.pop(0)

    return asyncio.run(reader.read({"headers": headers}, receive))


def test_parts_are_put_together_and_held() -> None:
    reader = BodyReader(10, 10, 100)
    body = read(reader, part(b"abc"), part(b""), part(b"de", more=False))
    assert (body, reader.held) == (b"abcde", 5)
    reader.release(body)
    assert reader.held == 0


@pytest.mark.parametrize(
    ("messages", "headers", "code"),
    [
        ([part(b"x" * 6), part(b"x" * 5), part(b"x" * 50, more=False)], (), "KY803"),
        ([], ((b"content-length", b"11"), (b"expect", b"100-continue")), "KY803"),
        ([part(b"x", more=False)], ((b"content-encoding", b"gzip"),), "KY802"),
        ([part(b"x" * 6), part(b"x", more=False)], (), "KY807"),
        ([part(b"xx")], (), "KY804"),
    ],
)
def test_what_is_refused_is_not_held(messages: list[dict[str, Any]], headers: Any, code: str) -> None:
    reader = BodyReader(10, 0.05, 6 if code == "KY807" else 100)
    with pytest.raises(KernelyardError) as caught:
        read(reader, *messages, headers=headers)
    assert (caught.value.code, reader.held) == (code, 0)


def test_a_client_that_leaves_holds_nothing() -> None:
    reader = BodyReader(10, 10, 100)
    with pytest.raises(ClientLeftError):
        read(reader, part(b"x"), LEFT)
    assert reader.held == 0
