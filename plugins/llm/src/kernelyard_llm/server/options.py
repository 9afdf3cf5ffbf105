"""Limits of a server of a language model."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server. sequences and waiting: see `EngineOptions`. max_body: bytes of a request. body_timeout:
    seconds in which a body has to arrive. max_held: bytes of all bodies together. timeout: seconds of an answer that
    is not streamed (None: no limit).
    """

    sequences: int = 32
    waiting: int = 128
    cache_tokens: int | None = None
    threads: int | None = None
    max_body: int = 8 * MIB
    body_timeout: float = 30.0
    max_held: int = 256 * MIB
    timeout: float | None = None
