"""Networks with their feeds, at sizes for a GPU, and at small ones for the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from recipes.cnns import resnet
from recipes.in_torch import Made, decoder_step, encoder, image_network, large_block, mlp
from recipes.language import DecoderStep, Encoder, LargeBlock
from torch import nn


class Product(nn.Module):
    """x @ w."""

    def __init__(self, depth: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(depth, columns) / depth**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def product(rows: int, depth: int, columns: int) -> Made:
    """One matrix product."""
    return Product(depth, columns), (torch.randn(rows, depth),)


# Name -> the network with its feeds, and its dtype; of images the memory is channels-last where it is float16.
MODELS: Mapping[str, tuple[Callable[[], Made], torch.dtype]] = {
    "mlp_b1": (lambda: mlp(1), torch.float32),
    "mlp_b32": (lambda: mlp(32), torch.float32),
    "mlp_b1024": (lambda: mlp(1024), torch.float32),
    "resnet50_b1": (lambda: image_network(resnet(50), 1), torch.float16),
    "resnet50_b32": (lambda: image_network(resnet(50), 32), torch.float16),
    "bert_base_1x128": (lambda: encoder(12, 768, 3072, 1), torch.float16),
    "bert_base_32x128": (lambda: encoder(12, 768, 3072, 32), torch.float16),
    "gpt2_step_kv256": (decoder_step, torch.float16),
    "llama_block_s64": (large_block, torch.float16),
    "matmul_1024": (lambda: product(1024, 1024, 1024), torch.float16),
    "matmul_4096": (lambda: product(4096, 4096, 4096), torch.float16),
    "matmul_4096_f32": (lambda: product(4096, 4096, 4096), torch.float32),
    "gemv_4096": (lambda: product(1, 4096, 4096), torch.float16),
}


def small_encoder() -> Made:
    """Two layers over eight words."""
    ids = torch.randint(0, 50, (1, 8))
    return Encoder(2, 24, 2, 32, 50), (ids, torch.ones_like(ids), torch.zeros_like(ids))


def small_step() -> Made:
    """Two layers over a cache of five."""
    past = tuple(torch.randn(1, 2, 5, 12) for _ in range(4))
    return DecoderStep(2, 24, 2, 50), (torch.tensor([[3]]), torch.tensor([[5]]), *past)


def small_block() -> Made:
    """Six tokens."""
    return LargeBlock(32, 4, 2, 48, 6), (torch.randn(1, 6, 32), torch.arange(6)[None])


# The same kinds of networks, as small as the emulator wants them.
QUICK: Mapping[str, tuple[Callable[[], Made], torch.dtype]] = {
    "mlp_b2": (lambda: mlp(2), torch.float32),
    "encoder": (small_encoder, torch.float32),
    "decoder_step": (small_step, torch.float32),
    "large_block": (small_block, torch.float32),
    "matmul_f16": (lambda: product(64, 96, 80), torch.float16),
}
