"""A small server of digests for tests: what bazel-remote keeps and refuses, and faults on request."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Fault = Callable[[BaseHTTPRequestHandler], bool]


class Store(ThreadingHTTPServer):
    """Keep bodies by path; `fault` may answer in its place, and then returns True."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.headers: list[str | None] = []
        self.fault: Fault = lambda handler: False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Store  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self._note()
        if not self.server.fault(self):
            body = self.server.bodies.get(self.path)
            self.answer(404 if body is None else 200, body or b"")

    def do_PUT(self) -> None:
        self._note()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.fault(self):
            return
        kind, digest = self.path.strip("/").split("/")
        if kind == "cas" and hashlib.sha256(body).hexdigest() != digest:
            self.answer(400, b"another digest")
            return
        self.server.bodies[self.path] = body
        self.answer(200, b"")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _note(self) -> None:
        self.server.asked.append(f"{self.command} {self.path.split('/')[1]}")
        self.server.headers.append(self.headers["Authorization"])

    def log_message(self, *args: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


@contextmanager
def running_store() -> Iterator[Store]:
    """Run a server until the block ends."""
    with Store() as store:
        thread = threading.Thread(target=store.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()
