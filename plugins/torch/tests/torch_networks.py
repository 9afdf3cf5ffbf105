"""Small networks of many kinds, with random weights."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


class BertLayer(nn.Module):
    def __init__(self, size: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, size), nn.Embedding(64, size)
        self.layer = nn.TransformerEncoderLayer(size, heads, 64, 0.1, "gelu", batch_first=True)
        self.norm = nn.LayerNorm(size)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        places = torch.arange(tokens.shape[1])
        x = self.norm(self.words(tokens) + self.places(places))
        x = self.layer(x, src_key_padding_mask=mask == 0)
        return {"last_hidden_state": x, "pooled": torch.tanh(x[:, 0])}


class GPT2Block(nn.Module):
    def __init__(self, size: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.wte, self.wpe = nn.Embedding(50, size), nn.Embedding(64, size)
        self.ln_1, self.ln_2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.c_attn, self.c_proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.fc, self.proj = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.head = nn.Linear(size, 50, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        x = self.wte(tokens) + self.wpe(torch.arange(length, device=tokens.device))
        q, k, v = self.c_attn(self.ln_1(x)).split(x.shape[-1], dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        visible = torch.tril(torch.ones(length, length, dtype=torch.bool))
        scores = scores.masked_fill(~visible, float("-inf"))
        y = (F.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.c_proj(y)
        x = x + self.proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))
        return self.head(x)


class LlamaBlock(nn.Module):
    """RMSNorm, rotary embedding, grouped queries, SwiGLU."""

    def __init__(self, size: int = 32, heads: int = 4, shared: int = 2) -> None:
        super().__init__()
        self.heads, self.shared, self.part = heads, shared, size // heads
        self.norm, self.norm2 = nn.RMSNorm(size, eps=1e-6), nn.RMSNorm(size, eps=1e-6)
        self.q, self.o = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.k, self.v = (nn.Linear(size, shared * self.part, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(size, 2 * size, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * size, size, bias=False)
        frequencies = 10000 ** (-torch.arange(0, self.part, 2).float() / self.part)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.norm(x)
        q = self.q(y).view(batch, length, self.heads, self.part).transpose(1, 2)
        k = self.k(y).view(batch, length, self.shared, self.part).transpose(1, 2)
        v = self.v(y).view(batch, length, self.shared, self.part).transpose(1, 2)
        angles = torch.outer(torch.arange(length).float(), self.frequencies)
        angles = torch.cat((angles, angles), -1)
        q, k = self.rotate(q, angles.cos(), angles.sin()), self.rotate(k, angles.cos(), angles.sin())
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class ViT(nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size, 8, 8)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, size)), nn.Parameter(torch.randn(1, 17, size))
        self.layer = nn.TransformerEncoderLayer(size, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(size, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.layer(x)[:, 0])


class T5(nn.Module):
    """An encoder and a decoder, with relative positions in buckets and cross-attention."""

    def __init__(self, size: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.bias = nn.Embedding(40, size), nn.Embedding(16, heads)
        self.qkv, self.o = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.q, self.kv = nn.Linear(size, size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.norm, self.weight = nn.LayerNorm(size), nn.Parameter(torch.ones(size))

    def bucket(self, length: int) -> torch.Tensor:
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        near = distance.abs()
        # Not 4: where a logarithm comes out whole, its last bit would decide.
        far = 4 + (torch.log(near.float().clamp(min=1) / 3.9) / math.log(16 / 3.9) * 4).long()
        return (distance > 0).long() * 8 + torch.where(near < 4, near, torch.minimum(far, torch.full_like(far, 7)))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def encode(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        q, k, v = map(self.split, self.qkv(self.scaled(x)).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) + self.bias(self.bucket(tokens.shape[1])).permute(2, 0, 1)[None]
        y = (scores.softmax(-1) @ v).transpose(1, 2)
        return x + self.o(y.reshape(x.shape))

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self.encode(tokens)
        x = self.words(target)
        k, v = map(self.split, self.kv(memory).chunk(2, -1))
        y = F.scaled_dot_product_attention(self.split(self.q(self.norm(x))), k, v)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        return x @ self.words.weight.T


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(32, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        y, state = self.lstm(x)
        y, last = self.gru(y)
        return y, (last, state[0])
