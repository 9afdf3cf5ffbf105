"""How a server serves: limits, batching, warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelyard_serve.batching import BatchPolicy
from kernelyard_serve.http_body import BodyReader

MIB = 1 << 20


@dataclass(frozen=True)
class ServeOptions:
    """Set how a server serves; all its models share these options.

    batch: how requests become calls. timeout: seconds until a request is given up that does not say. max_body: bytes of
    a request's body. body_timeout: seconds in which a body has to arrive. max_held: bytes of all bodies together.
    threads: of one call (None: the processors). warm: sets of sizes by symbol that are prepared before the server is
    ready. control: clients may load and unload.
    """

    batch: BatchPolicy = field(default_factory=BatchPolicy)
    timeout: float | None = 60.0
    max_body: int = 64 * MIB
    body_timeout: float = 30.0
    max_held: int = 1024 * MIB
    threads: int | None = None
    warm: tuple[Mapping[str, int], ...] = ()
    control: bool = True

    def body_reader(self) -> BodyReader:
        """Return what reads bodies within these limits, for all connections of a server."""
        return BodyReader(self.max_body, self.body_timeout, self.max_held)
