"""Networks with inputs of a batch and a length, which sizes may be open, and what oneDNN must take of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_networks as n
from torch.export import Dim

BATCH, LENGTH = Dim("batch", min=2, max=16), Dim("length", min=2, max=32)


def image(batch: int, channels: int = 3, size: int = 32) -> Any:
    return torch.randn(batch, channels, size, size)


def tokens(batch: int, length: int, vocabulary: int = 40) -> Any:
    return torch.randint(0, vocabulary, (batch, length))


@dataclass(frozen=True)
class Case:
    """make: the model. inputs: of a batch and a length. dynamic: which sizes are open. pattern: what oneDNN runs."""

    make: Callable[[], Any]
    inputs: Callable[[int, int], tuple[Any, ...]]
    dynamic: tuple[Any, ...]
    pattern: str
    at_least: int = 1


CASES = {
    "mlp": Case(n.MLP, lambda b, s: (torch.randn(b, 16),), ({0: BATCH},), "dnnl.matmul", 3),
    "bert": Case(
        n.BertLayer,
        lambda b, s: (tokens(b, s), (torch.arange(s) < s - 1).long().expand(b, s).contiguous()),
        ({0: BATCH, 1: LENGTH}, {0: BATCH, 1: LENGTH}),
        "dnnl.matmul",
        4,
    ),
    "gpt2": Case(n.GPT2Block, lambda b, s: (tokens(b, s),), ({0: BATCH, 1: LENGTH},), "dnnl.matmul", 4),
    "llama": Case(n.LlamaBlock, lambda b, s: (torch.randn(b, s, 32),), ({0: BATCH, 1: LENGTH},), "dnnl.matmul", 6),
    "vit": Case(n.ViT, lambda b, s: (image(b),), ({0: BATCH},), "dnnl.matmul", 4),
    "t5": Case(
        n.T5,
        lambda b, s: (tokens(b, s), tokens(b, 5)),
        ({0: BATCH, 1: LENGTH}, {0: BATCH}),
        "dnnl.matmul",
        4,
    ),
    "lstm": Case(n.Recurrent, lambda b, s: (torch.randn(b, 5, 8),), ({0: BATCH},), "dnnl.matmul", 4),
}
