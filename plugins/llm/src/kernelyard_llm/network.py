"""The network of a language model in `kernelyard.nn`: a decoder over a cache of keys and values.

Weights keep GGUF's names (`blk.0.attn_q.weight`), whatever file they come from; which optional parts there are follows
from which weights there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from kernelyard import nn
from kernelyard_llm.blocks import Planes
from kernelyard_llm.configuration import Experts, LayerConfig, ModelConfig
from kernelyard_llm.errors import ModelFileError
from kernelyard_llm.stored_weights import DEFAULT_PRODUCTS, Dense, Embedding, Products, stack_weights

Weight: TypeAlias = "np.ndarray | Planes"
Weights: TypeAlias = "Mapping[str, Weight]"


class Decoder(nn.Module):
    """All of the network.

    `extend` turns tokens of some sequences into hidden states and new rows of the cache, `head` hidden states into
    logits; `decode` does both for one token of one sequence, and `decode_batch` for one of each, by kernels for one.
    """

    def __init__(self, config: ModelConfig, weights: Weights, products: Products = DEFAULT_PRODUCTS) -> None:
        self.config = config
        part = _Part(weights, config, products)
        is_tied = "output.weight" not in weights
        self.output = part.dense("token_embd" if is_tied else "output")
        self.embedding = None if is_tied else Embedding(part.weight("token_embd.weight"))
        positions = part.find("position_embd.weight")
        self.positions = None if positions is None else Embedding(positions)
        self.layers = nn.ModuleList(
            [Layer(config, layer, part.inner(f"blk.{number}.")) for number, layer in enumerate(config.layers)]
        )
        self.norm = part.norm("output_norm")

    def extend(
        self,
        tokens: nn.Tensor,
        lengths: nn.Tensor,
        tables: nn.Tensor,
        keys: tuple[nn.Tensor, ...],
        values: tuple[nn.Tensor, ...],
        key_scales: tuple[nn.Tensor, ...] = (),
        value_scales: tuple[nn.Tensor, ...] = (),
    ) -> dict[str, nn.Tensor]:
        """Return hidden states (batch, n, width) of tokens (batch, n) behind `lengths` rows in the pages of `tables`.

        keys, values, key_scales, value_scales: the pages of each layer.
        """
        parts = [part for part in (keys, values, key_scales, value_scales) if part]
        caches = [Cache(self.config, layer, lengths, tables) for layer in zip(*parts, strict=True)]
        return self._hidden(tokens, lengths, caches)

    def _hidden(self, tokens: nn.Tensor, lengths: nn.Tensor, caches: Sequence[Cache]) -> dict[str, nn.Tensor]:
        """Return the hidden states, and what is cached of the tokens: of each part (layers, batch, n, heads, ...)."""
        places = nn.op.unsqueeze(lengths, 1) + nn.op.arange(tokens.shape[1])
        x = self.output.take(tokens) if self.embedding is None else self.embedding(tokens)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        if self.positions is not None:
            x = x + self.positions(places)
        angles = Angles(places)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, angles, cache)
        new = {
            part: nn.op.concat([nn.op.unsqueeze(cache.new[part], 0) for cache in caches], 0)
            for part in self.config.cache_parts
        }
        return {"hidden": x, **{f"new_{part}": rows for part, rows in new.items()}}

    def decode(
        self,
        tokens: nn.Tensor,
        lengths: nn.Tensor,
        tables: nn.Tensor,
        keys: tuple[nn.Tensor, ...],
        values: tuple[nn.Tensor, ...],
        key_scales: tuple[nn.Tensor, ...] = (),
        value_scales: tuple[nn.Tensor, ...] = (),
    ) -> dict[str, nn.Tensor]:
        """Return logits (batch, vocabulary) of tokens (batch, 1); the others as `extend`."""
        results = self.extend(tokens, lengths, tables, keys, values, key_scales, value_scales)
        hidden = results.pop("hidden")
        return {"logits": self.head(hidden.reshape(tokens.shape[0], self.config.width)), **results}

    decode_batch = decode

    def head(self, hidden: nn.Tensor) -> nn.Tensor:
        """Hidden states (rows, width) -> logits (rows, vocabulary)."""
        return _cap(self.output(self.norm(hidden)), self.config.final_softcap)


class Cache:
    """Of one layer: parts in pages (heads, pages, rows, ...), tables (batch, pages) of sequences, lengths that count.

    new: rows of the parts to be written behind those, once they have been attended to.
    """

    def __init__(self, config: ModelConfig, parts: Sequence[nn.Tensor], lengths: nn.Tensor, tables: nn.Tensor) -> None:
        self.config, self._pages, self._scales = config, parts[:2], parts[2:]
        self._lengths, self._tables = lengths, tables
        self.new: dict[str, nn.Tensor] = {}

    def attend(self, q: nn.Tensor, k: nn.Tensor, v: nn.Tensor, **how: Any) -> nn.Tensor:
        """Attend to the rows of the pages, then to new ones (batch, n, heads, size)."""
        self.new = dict(zip(self.config.cache_parts, self._store(k, v), strict=True))
        return nn.op.paged_attention(q, k, v, *self._pages, self._tables, self._lengths, *self._scales, **how)

    def _store(self, *rows: nn.Tensor) -> Sequence[nn.Tensor]:
        if not self._scales:
            return [each.astype(self.config.cache_dtype) for each in rows]
        pairs = [_quantize(each) for each in rows]
        return [part for parts in zip(*pairs, strict=True) for part in parts]


def _quantize(rows: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
    """Return rows (batch, n, heads, size) as int8, and their scales (batch, n, heads)."""
    largest = nn.op.max(nn.op.abs(rows), -1)
    scales = nn.op.maximum(largest, 1e-20) / 127.0
    return nn.op.round(rows / nn.op.unsqueeze(scales, -1)).astype("int8"), scales


class Angles:
    """Cosines and sines of rotary positions (batch, n, 1, pairs), once for all layers that turn alike."""

    def __init__(self, places: nn.Tensor) -> None:
        self._places = places
        self._made: dict[object, tuple[nn.Tensor, nn.Tensor]] = {}

    def of(self, layer: LayerConfig) -> tuple[nn.Tensor, nn.Tensor]:
        """Return cosines and sines of a layer."""
        rope = layer.rope
        assert rope is not None
        if rope not in self._made:
            places = self._places.astype("float32").reshape(*self._places.shape, 1, 1)
            angles = places * rope.frequencies()
            turns = nn.op.cos(angles), nn.op.sin(angles)
            self._made[rope] = (
                turns if rope.magnitude == 1.0 else (turns[0] * rope.magnitude, turns[1] * rope.magnitude)
            )
        return self._made[rope]


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a norm before it, behind it, or both, and an addition."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, part: _Part) -> None:
        self.attention = Attention(config, layer, part)
        self.feed_forward, self.is_parallel = feed_forward(config, part), config.parallel
        self.attention_norm, self.attention_post_norm = part.norms("attn_norm", "post_attention_norm")
        self.feed_forward_norm, self.feed_forward_post_norm = (
            (None, None) if config.parallel else part.norms("ffn_norm", "post_ffw_norm")
        )

    def forward(self, x: nn.Tensor, angles: Angles, cache: Cache) -> nn.Tensor:
        read = _maybe(self.attention_norm, x)
        y = self.attention(read, angles, cache)
        x = x + _maybe(self.attention_post_norm, y)
        y = self.feed_forward(read if self.is_parallel else _maybe(self.feed_forward_norm, x))
        return x + _maybe(self.feed_forward_post_norm, y)


class Attention(nn.Module):
    """Grouped-query attention over a cache."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, part: _Part) -> None:
        self.config, self.layer = config, layer
        size = config.head_size
        self.widths = (config.heads * size, config.kv_heads * size, config.kv_heads * size)
        self.qkv = part.projections("attn_qkv", ("attn_q", "attn_k", "attn_v"), self.widths)
        self.output = part.dense("attn_output")
        self.query_norm, self.key_norm = part.find_norm("attn_q_norm"), part.find_norm("attn_k_norm")

    def forward(self, x: nn.Tensor, angles: Angles, cache: Cache) -> nn.Tensor:
        config = self.config
        batch, n, _ = x.shape
        q, k, v = self.qkv(x)
        q, k = (
            _split_and_norm_heads(norm, each, config.head_size)
            for norm, each in ((self.query_norm, q), (self.key_norm, k))
        )
        v = v.reshape(batch, n, -1, config.head_size)
        if self.layer.rope is not None:
            q, k = (_rotate(each, *angles.of(self.layer), self.layer.rope.size) for each in (q, k))
        y = cache.attend(
            *(q, k, v),
            scale=config.attention_scale,
            window=self.layer.window,
            softcap=config.attention_softcap,
        )
        return self.output(y.reshape(batch, n, self.widths[0]))


def _split_and_norm_heads(norm: _Norm | None, x: nn.Tensor, size: int) -> nn.Tensor:
    """Return projections (batch, n, heads * size) as heads, by a norm of each head, or of all of them together."""
    batch, n, width = x.shape
    if norm is not None and norm.weight.shape[0] == width != size:
        x, norm = norm(x), None
    return _maybe(norm, x.reshape(batch, n, -1, size))


def _rotate(x: nn.Tensor, cosine: nn.Tensor, sine: nn.Tensor, size: int) -> nn.Tensor:
    """Return heads whose first `size` numbers are turned in pairs: a number and the one half of `size` behind it."""
    half = size // 2
    first, second, *rest = nn.op.split(x, [half, size] if size < _require_known(x.shape[-1]) else [half], -1)
    return nn.op.concat([first * cosine - second * sine, second * cosine + first * sine, *rest], -1)


def _require_known(size: object) -> int:
    assert isinstance(size, int)
    return size


def feed_forward(config: ModelConfig, part: _Part) -> nn.Module:
    """Return the feed-forward network of a layer, or its mixture of experts."""
    has_experts = config.experts is not None and part.find("ffn_gate_inp.weight") is not None
    return (
        MixtureOfExperts(config, config.experts, part) if config.experts and has_experts else FeedForward(config, part)
    )


class FeedForward(nn.Module):
    """Two projections, with an activation between them, and a gate where there is one."""

    def __init__(self, config: ModelConfig, part: _Part, suffix: str = "") -> None:
        self.activation, self.gated = config.activation, config.gated
        self.up = (
            part.projections(f"ffn_up{suffix}", (f"ffn_gate{suffix}", f"ffn_up{suffix}"), None)
            if config.gated
            else part.projections(f"ffn_up{suffix}", (f"ffn_up{suffix}",), None)
        )
        self.down = part.dense(f"ffn_down{suffix}")

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        first, *rest = self.up(x)
        activated = _ACTIVATIONS[self.activation](first)
        return self.down(activated * rest[0] if rest else activated)


class MixtureOfExperts(nn.Module):
    """Feed-forward networks of which each token uses a few.

    Those that some token uses are computed, for all tokens, with weight 0 for tokens that do not use them.
    """

    def __init__(self, config: ModelConfig, experts: Experts, part: _Part) -> None:
        self.experts = experts
        self.router = part.dense("ffn_gate_inp")
        self.parts = nn.ModuleList([FeedForward(config, part.expert(n)) for n in range(experts.count)])
        self.shared = FeedForward(config, part, "_shexp") if experts.shared else None
        self.shared_gate = part.dense("ffn_gate_inp_shexp") if experts.shared else None

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        count, used = self.experts.count, self.experts.used
        shares = nn.op.softmax(self.router(x))
        best, chosen = nn.op.topk(shares, used, -1)
        if self.experts.normalized:
            best = best / nn.op.sum(best, -1, keepdims=True)
        marks = nn.op.one_hot(chosen, count)  # (batch, n, used, count)
        weights = nn.op.sum(marks * nn.op.unsqueeze(best, -1), -2)
        are_used = nn.op.split(nn.op.max(weights, [*range(weights.ndim - 1)]) > 0, count, 0)
        total = x * 0.0
        for expert, weight, is_used in zip(self.parts, nn.op.split(weights, count, -1), are_used, strict=True):
            total = nn.op.cond(is_used.reshape(), partial(_add, expert), _identity, [total, x, weight])
        if self.shared is not None and self.shared_gate is not None:
            total = total + self.shared(x) * nn.op.sigmoid(self.shared_gate(x))
        return total


def _add(expert: nn.Module, total: nn.Tensor, x: nn.Tensor, weight: nn.Tensor) -> nn.Tensor:
    return total + expert(x) * weight


def _identity(total: nn.Tensor, x: nn.Tensor, weight: nn.Tensor) -> nn.Tensor:
    return total


class Projections(nn.Module):
    """Several projections of one tensor: one product, where their weights are stored alike."""

    def __init__(self, parts: list[Dense], widths: tuple[int, ...]) -> None:
        self.parts, self.widths = nn.ModuleList(parts), widths

    def forward(self, x: nn.Tensor) -> tuple[nn.Tensor, ...]:
        if len(self.parts) == len(self.widths):
            return tuple(part(x) for part in self.parts)
        ends = np.cumsum(self.widths)[:-1].tolist()
        return tuple(nn.op.split(self.parts[0](x), ends, -1))


class _Norm(nn.Module):
    def __init__(self, weight: np.ndarray, bias: np.ndarray | None, epsilon: float, is_rms: bool) -> None:
        self.weight = nn.Parameter(weight.shape, "float32", weight.astype(np.float32))
        self.bias = None if bias is None else nn.Parameter(bias.shape, "float32", bias.astype(np.float32))
        self.epsilon, self.is_rms = epsilon, is_rms

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        if self.is_rms:
            return nn.op.rms_norm(x, self.weight, eps=self.epsilon)
        return nn.op.layer_norm(x, _require_known(x.shape[-1]), self.weight, self.bias, self.epsilon)


class _Part:
    """The weights of a part of the network: those whose names begin alike."""

    def __init__(
        self, weights: Weights, config: ModelConfig, products: Products, prefix: str = "", expert: int | None = None
    ) -> None:
        self._weights, self._config, self._prefix, self._expert = weights, config, prefix, expert
        self._products: Products = products

    def inner(self, prefix: str) -> _Part:
        return _Part(self._weights, self._config, self._products, self._prefix + prefix)

    def expert(self, number: int) -> _Part:
        return _Part(self._weights, self._config, self._products, self._prefix, number)

    def find(self, name: str) -> Weight | None:
        if self._expert is not None and name.endswith(".weight"):
            stem = name.removesuffix(".weight")
            return self._weights.get(f"{self._prefix}{stem}.{self._expert}.weight")
        return self._weights.get(self._prefix + name)

    def weight(self, name: str) -> Weight:
        found = self.find(name)
        if found is None:
            raise ModelFileError(
                f"the model has no weight {self._prefix}{name}", expected=f"the weights of {self._config.family}"
            )
        return found

    def _floats(self, name: str) -> np.ndarray | None:
        found = self.find(name)
        return found.floats() if isinstance(found, Planes) else found

    def norm(self, name: str) -> _Norm:
        self.weight(f"{name}.weight")
        found = self.find_norm(name)
        assert found is not None
        return found

    def find_norm(self, name: str) -> _Norm | None:
        weight = self._floats(f"{name}.weight")
        if weight is None:
            return None
        return _Norm(weight, self._floats(f"{name}.bias"), self._config.epsilon, self._config.norm == "rms")

    def norms(self, before: str, behind: str) -> tuple[_Norm | None, _Norm | None]:
        """Return the norms around a part of a layer, of which there is at least one."""
        last = self.find_norm(behind)
        return (self.norm(before) if last is None else self.find_norm(before)), last

    def dense(self, name: str) -> Dense:
        return Dense(self.weight(f"{name}.weight"), self._floats(f"{name}.bias"), self._products)

    def projections(self, whole: str, names: tuple[str, ...], widths: tuple[int, ...] | None) -> Projections:
        """Return projections that are stored one by one (`names`), or as one (`whole`)."""
        if any(self.find(f"{name}.weight") is None for name in names):
            together = self.dense(whole)
            even = (together.columns // len(names),) * len(names)
            return Projections([together], widths or even)
        parts = [self.weight(f"{name}.weight") for name in names]
        biases = [self._floats(f"{name}.bias") for name in names]
        found = tuple(part.shape[0] for part in parts)
        one = stack_weights(parts)
        if one is None or len(parts) == 1:
            return Projections([Dense(*pair, self._products) for pair in zip(parts, biases, strict=True)], found)
        known = [np.zeros(n, np.float32) if b is None else b for n, b in zip(found, biases, strict=True)]
        has_bias = any(bias is not None for bias in biases)
        return Projections([Dense(one, np.concatenate(known) if has_bias else None, self._products)], found)


def _maybe(module: nn.Module | None, x: nn.Tensor) -> nn.Tensor:
    return x if module is None else module(x)


def _cap(x: nn.Tensor, cap: float | None) -> nn.Tensor:
    return x if cap is None else nn.op.tanh(x / cap) * cap


_ACTIVATIONS = {
    "silu": nn.op.silu,
    "gelu": nn.op.gelu,
    "relu": nn.op.relu,
    "gelu_tanh": lambda x: nn.op.gelu(x, approximate=True),
}
