"""Configure the network of a language model: its sizes and which of the usual parts it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

# The functions of a program: tokens of some sequences to hidden states, these to logits, and one token of one sequence,
# or of each of several, to logits.
EXTEND, HEAD, DECODE, DECODE_BATCH = "extend", "head", "decode", "decode_batch"
# Rows of a page of the cache.
PAGE = 64
MOST_LAYERS = 1024  # of a network; a file that says more is damaged

Norm = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
CacheDtype = Literal["float32", "float16", "bfloat16", "int8"]
CACHE_DTYPES: tuple[CacheDtype, ...] = get_args(CacheDtype)


@dataclass(frozen=True)
class Rope:
    """Rotary positions. size: how many numbers of a head turn; factors: what their wavelengths are multiplied by.

    magnitude: what numbers that turn are multiplied by.
    """

    base: float
    size: int
    linear_factor: float = 1.0
    factors: tuple[float, ...] | None = None
    magnitude: float = 1.0

    def frequencies(self) -> np.ndarray:
        """Return the angle per position of each pair."""
        exponents = np.arange(0, self.size, 2, dtype=np.float64) / self.size
        frequencies = self.base**-exponents / self.linear_factor
        if self.factors is not None:
            frequencies = frequencies / np.asarray(self.factors)
        return frequencies.astype(np.float32)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts. count of them there are, `used` of which compute each token; normalized: weights sum to 1.

    shared: there is one more, which computes all tokens, behind a gate of its own.
    """

    count: int
    used: int
    normalized: bool
    shared: bool = False


@dataclass(frozen=True)
class LayerConfig:
    """Configure a layer. window: how many positions attention sees, None for all; rope: None for none."""

    window: int | None = None
    rope: Rope | None = None


@dataclass(frozen=True)
class ModelConfig:
    """A decoder: `layers` of attention and a feed-forward network between an embedding and a head.

    gated: the feed-forward network multiplies two projections. parallel: it reads the norm that attention reads.
    is_tied: the head is the embedding, whatever else the file has. embedding_scale: what embeddings are multiplied by.
    attention_scale: of scores; None for 1 / sqrt(head_size). context: the positions that it was trained for.
    cache_dtype: of cached keys and values; int8 has a scale for each row of a head.
    """

    family: str
    layers: tuple[LayerConfig, ...]
    width: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    epsilon: float
    norm: Norm = "rms"
    activation: Activation = "silu"
    gated: bool = True
    parallel: bool = False
    is_tied: bool = False
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_softcap: float | None = None
    final_softcap: float | None = None
    experts: Experts | None = field(default=None)
    cache_dtype: CacheDtype = "float32"

    def __post_init__(self) -> None:
        """Raises: ValueError for sizes that no network has."""
        sizes = (self.width, self.heads, self.kv_heads, self.head_size, self.vocabulary, self.context)
        if min(sizes) < 1 or self.epsilon < 0 or not self.layers or self.heads % self.kv_heads:
            raise ValueError("a size of the network is impossible")

    @property
    def cache_parts(self) -> tuple[str, ...]:
        """Names of what is cached of each layer."""
        return ("keys", "values", "key_scales", "value_scales")[: 4 if self.cache_dtype == "int8" else 2]
