"""Remote cache: bytes by key on a server that speaks HTTP's GET and PUT of digests, as bazel-remote does.

`/cas/DIGEST` is a value by its SHA-256, and `/ac/DIGEST` of a key an ActionResult whose standard output is the value:
servers that check messages and digests ask for these. Source: Bazel's remote caching (HTTP caching protocol), and
build.bazel.remote.execution.v2 (remote_execution.proto: ActionResult.stdout_digest, Digest).

Values are data for a reader that checks them. No code is kept here: who can write to the server would run it.
"""

from __future__ import annotations

import base64
import hashlib
import queue
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import lru_cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from kernelyard.errors import RemoteCacheWarning, warn_caller
from kernelyard.runtime.installed.server_url import read_server_url

SECONDS = 5.0  # that one answer may take as a whole
MAX_BYTES = 1 << 24
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STDOUT_DIGEST, _HASH, _SIZE = 6, 1, 2  # fields of the messages
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; source: protobuf.dev, "Encoding"


@lru_cache(maxsize=8)
def remote_cache(url: str) -> RemoteCache:
    """Return the remote cache at a URL: one per process, so that an outage is detected and reported once."""
    return RemoteCache(url)


class RemoteCache:
    """Bytes by key on a server. Nothing is raised for a server that fails: it is asked no more, after one warning.

    url: http or https, with the name and the password in it that the server asks for.
    Raises: OptionError for another kind of URL.
    """

    def __init__(self, url: str, seconds: float = SECONDS) -> None:
        self.url, account = read_server_url(url)
        self._headers = {"Content-Type": "application/octet-stream"}
        if account:
            self._headers["Authorization"] = f"Basic {base64.b64encode(account.encode()).decode()}"
        self._seconds = seconds
        self._is_down = self._is_read_only = self._has_warned = False

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; None where there is none, where the server fails, and where a digest differs.

        Warns: RemoteCacheWarning, once.
        """
        result = self._ask("GET", f"ac/{_sha256(key.encode())}")
        if result is None:
            return None
        digest = _digest_in(result)
        if digest is None:
            self.distrust("a result that names no digest")
            return None
        value = self._ask("GET", f"cas/{digest}")
        if value is not None and _sha256(value) != digest:
            self.distrust("data of another digest")
            return None
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep a value. Warns: RemoteCacheWarning, once, where the server does not take it."""
        digest = _sha256(value)
        if self._ask("PUT", f"cas/{digest}", value) is not None:  # first, as servers look for what a result names
            self._ask("PUT", f"ac/{_sha256(key.encode())}", _result_of(digest, len(value)))

    def distrust(self, what: str) -> None:
        """Warn of an answer that is not used."""
        self._warn(f"it answered with {what}, which is not used")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes | None:
        """Return the body of an answer; None where it is "not found", or there is none."""
        if self._is_down or (method == "PUT" and self._is_read_only):
            return None
        request = urllib.request.Request(f"{self.url}/{path}", body, self._headers, method=method)
        try:
            return run_within(self._seconds, lambda: _body_of(request, self._seconds))
        except HTTPError as error:
            error.close()
            if method == "GET" and error.code == 404:
                return None
            self._is_read_only = self._is_read_only or method == "PUT"
            self._is_down = method == "GET"
            self._warn(f"{method} is answered by {error.code} {error.reason}")
        except (OSError, HTTPException) as error:
            self._is_down = True
            self._warn(str(getattr(error, "reason", None) or error or type(error).__name__))
        return None

    def _warn(self, what: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            message = f"the remote cache {self.url} is of no use: {what}; this machine's own cache is used"
            warn_caller(message, RemoteCacheWarning)


def run_within(seconds: float, call: Callable[[], bytes]) -> bytes:
    """Return what a call returns. Raises: TimeoutError where that takes longer, whatever it waits for; what it raises.

    A thread is left behind then: names that are looked up, and headers that trickle in, have no limit of their own.
    """
    answers: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(call())
        except (OSError, HTTPException) as error:
            answers.put(error)

    threading.Thread(target=run, name="kernelyard-remote-cache", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _body_of(request: urllib.request.Request, seconds: float) -> bytes:
    """Return what a server answers. Raises: OSError, HTTPException."""
    end = time.monotonic() + seconds
    with urllib.request.urlopen(request, timeout=seconds) as response:
        body = bytearray()
        while part := response.read1(1 << 16):
            body += part
            if len(body) > MAX_BYTES:
                raise OSError(f"an answer of more than {MAX_BYTES >> 20} MiB")
            if time.monotonic() > end:
                raise TimeoutError(f"no answer within {seconds:g} s")
    return bytes(body)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- the message ------------------------------------------------------------------------------------------------------
def _result_of(digest: str, size: int) -> bytes:
    """Return an ActionResult whose standard output is named by a digest."""
    message = _field(_HASH, digest.encode()) + bytes([_SIZE << 3 | _VARINT]) + _varint(size)
    return _field(_STDOUT_DIGEST, message)


def _digest_in(result: bytes) -> str | None:
    """Return the digest that an ActionResult names; None where these bytes are none."""
    try:
        message = dict(_fields(result))[_STDOUT_DIGEST]
        digest = dict(_fields(message))[_HASH].decode("ascii")
    except (KeyError, ValueError, IndexError, AttributeError, TypeError):  # what reading other bytes ends with
        return None
    return digest if _DIGEST.fullmatch(digest) else None


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: bytes, or a number. Raises: ValueError, IndexError."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    while at < len(message):
        tag = number()
        kind = tag & 7
        if kind == _VARINT:
            yield tag >> 3, number()
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        size = number() if kind == _BYTES else size
        if size is None or at + size > len(message):
            raise ValueError("no message")
        yield tag >> 3, message[at : at + size]
        at += size
