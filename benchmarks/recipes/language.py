"""Transformers in PyTorch, with random weights: encoders, a decoder's step over a cache, one block of a large decoder.

Source: Devlin et al. 2018 (arXiv:1810.04805); Radford et al. 2019, GPT-2; Touvron et al. 2023 (arXiv:2302.13971).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the field's name for it)


def heads_of(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, length, width) -> (batch, heads, length, width / heads)."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merged(x: torch.Tensor) -> torch.Tensor:
    """Merge the heads that `heads_of` split."""
    return x.transpose(1, 2).flatten(2)


class EncoderLayer(nn.Module):
    """Attention and two linear layers, each with a norm after its residual."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width, eps=1e-12) for _ in range(2)])

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (heads_of(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self.norms[0](x + self.out(merged(attended)))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """int64 ids, mask, kinds (batch, length) -> states (batch, length, width), pooled (batch, width)."""

    def __init__(self, layers: int, width: int, heads: int, inner: int, vocabulary: int = 30522) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (vocabulary, 512, 2))
        for table in (self.words, self.places, self.kinds):
            table.weight.data.mul_(0.05)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList([EncoderLayer(width, heads, inner) for _ in range(layers)])
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]] + self.kinds(kinds))
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, hidden)
        return x, torch.tanh(self.pooler(x[:, 0]))


class DecoderLayer(nn.Module):
    """Attention over a cache and itself, and two linear layers, each with a norm before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value = (heads_of(part, self.heads) for part in self.qkv(self.norms[0](x)).split(self.width, 2))
        key, value = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        x = x + self.out(merged(F.scaled_dot_product_attention(query, key, value)))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh")), key, value


class DecoderStep(nn.Module):
    """GPT-2's next token: int64 ids, places (batch, 1), keys and values of each layer -> logits, the grown cache."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.words.weight.data.mul_(0.02)
        self.places.weight.data.mul_(0.02)
        self.layers = nn.ModuleList([DecoderLayer(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, places: torch.Tensor, *cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.words(ids) + self.places(places)
        grown: list[torch.Tensor] = []
        for number, layer in enumerate(self.layers):
            x, key, value = layer(x, cache[2 * number], cache[2 * number + 1])
            grown += [key, value]
        return (self.head(self.norm(x)), *grown)


class RootMeanSquareNorm(nn.Module):
    """x divided by the root of its mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class LargeBlock(nn.Module):
    """A block of Llama's kind: grouped queries, rotary places, a gated linear unit. x (batch, length, width)."""

    speeds: torch.Tensor
    hidden: torch.Tensor

    def __init__(
        self, width: int = 2048, heads: int = 32, groups: int = 4, inner: int = 5632, length: int = 64
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norms = nn.ModuleList([RootMeanSquareNorm(width) for _ in range(2)])
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.register_buffer("speeds", 10000.0 ** -(torch.arange(0, self.size, 2).float() / self.size))
        self.register_buffer("hidden", torch.full((length, length), -1e4).triu(1))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        angles = places.to(x.dtype)[:, :, None] * self.speeds
        angles = torch.cat([angles, angles], -1)[:, None]
        y = self.norms[0](x)
        query = rotated(heads_of(self.query(y), self.heads), angles)
        key = rotated(heads_of(self.key(y), self.groups), angles)
        key, value = (self._repeated(part) for part in (key, heads_of(self.value(y), self.groups)))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=self.hidden.to(x.dtype)[None, None])
        x = x + self.out(merged(attended))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _repeated(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, None].expand(-1, -1, self.heads // self.groups, -1, -1).flatten(1, 2)


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embeddings: the halves of each head are rotated by the angles."""
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()
