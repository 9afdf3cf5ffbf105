"""A server of a model, on a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from kernelyard_llm.server import ServerOptions, create_app
from kernelyard_serve.server import Address, http_config, listen


@contextmanager
def serving(model: Any, **options: Any) -> Iterator[str]:
    """Yield the address of a server."""
    address = Address(port=0)
    with listen(address) as socket:
        config = http_config(create_app(model, ServerOptions(**options)), address)
        config.lifespan = "on"
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([socket],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{socket.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
