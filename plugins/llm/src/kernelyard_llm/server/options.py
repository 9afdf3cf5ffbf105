"""Limits of a server of a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelyard_llm.configuration import CacheDtype

MIB = 1 << 20


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server. sequences and waiting: see `EngineOptions`. max_body: bytes of a request. body_timeout:
    seconds in which a body has to arrive. max_held: bytes of all bodies together. timeout: seconds of an answer that
    is not streamed (None: no limit). cache_dtype: see `kernelyard_llm.load`.
    """

    sequences: int = 32
    waiting: int = 128
    cache_tokens: int | None = None
    threads: int | None = None
    max_body: int = 8 * MIB
    body_timeout: float = 30.0
    max_held: int = 256 * MIB
    timeout: float | None = None
    cache_dtype: CacheDtype | None = None
