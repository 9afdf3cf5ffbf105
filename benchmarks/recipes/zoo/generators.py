"""Make networks that generate images: adversarial, diffusion (U-Net, transformer, decoder), and radiance fields.

Source: Radford et al. 2015 (arXiv:1511.06434); Ho et al. 2020 (arXiv:2006.11239); Rombach et al. 2022
(arXiv:2112.10752); Peebles and Xie 2022 (arXiv:2212.09748); Mildenhall et al. 2020 (arXiv:2003.08934).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the field's name for it)

from recipes.zoo.torch_models import Made


def dcgan() -> nn.Module:
    """Return transposed convolutions from a vector to an image of 64 pixels."""
    layers: list[nn.Module] = []
    widths = (100, 256, 128, 64, 32)
    for at, (channels, width) in enumerate(itertools.pairwise(widths)):
        layers += [nn.ConvTranspose2d(channels, width, 4, 2 if at else 1, 1 if at else 0, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh())


def wave(time: torch.Tensor, width: int) -> torch.Tensor:
    """Return sines and cosines of a time at many frequencies."""
    angles = time[:, None].float() * torch.exp(-math.log(10000) * torch.arange(width // 2) / (width // 2))
    return torch.cat([angles.sin(), angles.cos()], -1)


class Block(nn.Module):
    """Group norm, SiLU, convolution, twice, with a time added between; a shortcut around it."""

    def __init__(self, channels: int, width: int, time: int = 0) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, width, 3, padding=1))
        self.time = nn.Linear(time, width) if time else None
        self.second = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.shortcut = nn.Identity() if channels == width else nn.Conv2d(channels, width, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor | None = None) -> torch.Tensor:
        y = self.first(x)
        if self.time is not None and time is not None:
            y = y + self.time(F.silu(time))[:, :, None, None]
        return self.second(y) + self.shortcut(x)


class Attention(nn.Module):
    """Attention among pixels, and to words where there are some."""

    def __init__(self, width: int, heads: int, words: int = 0) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(8, width), heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.pair = nn.Linear(words or width, 2 * width)

    def forward(self, x: torch.Tensor, words: torch.Tensor | None = None) -> torch.Tensor:
        rows = self.norm(x).flatten(2).transpose(1, 2)
        keys, values = self.pair(rows if words is None else words).chunk(2, -1)
        parts = [each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query(rows), keys, values)]
        mixed = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        return x + self.out(mixed).transpose(1, 2).reshape(x.shape)


class DiffusionUNet(nn.Module):
    """Noise to be taken away from a latent image at a time, told by words."""

    def __init__(self, width: int = 64, words: int = 256) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([Block(width, width, time), Block(width, 2 * width, time)])
        self.shrink = nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)])
        self.middle = nn.ModuleList([Block(2 * width, 2 * width, time), Block(2 * width, 2 * width, time)])
        self.own, self.told = Attention(2 * width, 4), Attention(2 * width, 4, words)
        self.up = nn.ModuleList([Block(4 * width, width, time), Block(2 * width, width, time)])
        self.last = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, x: torch.Tensor, time: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        known = self.time(wave(time, self.width))
        x, kept = self.first(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, known)
            kept.append(x)
            x = shrink(x)
        x = self.middle[0](x, known)
        x = self.middle[1](self.told(self.own(x), words), known)
        for block in self.up:
            x = torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), kept.pop()], 1)
            x = block(x, known)
        return self.last(x)


class Decoder(nn.Module):
    """From a latent image to one with 4 times the height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 128, 3, padding=1)
        self.middle = nn.ModuleList([Block(128, 128), Attention(128, 1), Block(128, 128)])
        self.blocks = nn.ModuleList([Block(128, 64), Block(64, 32)])
        self.last = nn.Sequential(nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 3, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for part in self.middle:
            x = part(x)
        for block in self.blocks:
            x = F.interpolate(block(x), scale_factor=2.0, mode="nearest")
        return self.last(x)


class DiffusionTransformer(nn.Module):
    """Patches of a latent image; time and class scale and shift what each layer reads."""

    def __init__(self, width: int = 384, layers: int = 3) -> None:
        super().__init__()
        self.width = width
        self.patch, self.places = nn.Conv2d(4, width, 2, 2), nn.Parameter(torch.randn(1, 256, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(1000, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.scales = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(layers))
        self.mix = nn.ModuleList(nn.MultiheadAttention(width, 6, batch_first=True) for _ in range(layers))
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.last = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.places
        known = F.silu(self.time(wave(time, self.width)) + self.classes(label))
        for scales, mix, inner in zip(self.scales, self.mix, self.inner, strict=True):
            shift, scale, gate, shift2, scale2, gate2 = scales(known)[:, None].chunk(6, -1)
            rows = self.norm(x) * (1 + scale) + shift
            x = x + gate * mix(rows, rows, rows, need_weights=False)[0]
            x = x + gate2 * inner(self.norm(x) * (1 + scale2) + shift2)
        x = self.last(self.norm(x)).reshape(1, 16, 16, 2, 2, 4)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(1, 4, 32, 32)


class RadianceField(nn.Module):
    """Colour and density of points that are seen from directions."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(63 if at == 0 else width, width) for at in range(4))
        self.second = nn.ModuleList(nn.Linear(width + 63 if at == 0 else width, width) for at in range(3))
        self.density, self.colour = (
            nn.Linear(width, 1),
            nn.Sequential(nn.Linear(width + 27, 128), nn.ReLU(), nn.Linear(128, 3)),
        )

    @staticmethod
    def encode(x: torch.Tensor, count: int) -> torch.Tensor:
        """Return sines and cosines of doubled frequencies beside x."""
        angles = [x * 2.0**at for at in range(count)]
        return torch.cat([x, *(f(angle) for angle in angles for f in (torch.sin, torch.cos))], -1)

    def forward(self, points: torch.Tensor, views: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = self.encode(points, 10)
        x = known
        for layer in self.first:
            x = F.relu(layer(x))
        x = torch.cat([x, known], -1)
        for layer in self.second:
            x = F.relu(layer(x))
        return F.relu(self.density(x)), torch.sigmoid(self.colour(torch.cat([x, self.encode(views, 4)], -1)))


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "dcgan_generator": lambda: (dcgan(), (torch.randn(1, 100, 1, 1),)),
    "diffusion_unet": lambda: (
        DiffusionUNet(),
        (torch.randn(1, 4, 32, 32), torch.tensor([500]), torch.randn(1, 77, 256)),
    ),
    "diffusion_vae": lambda: (Decoder(), (torch.randn(1, 4, 32, 32),)),
    "diffusion_transformer": lambda: (
        DiffusionTransformer(),
        (torch.randn(1, 4, 32, 32), torch.tensor([500]), torch.tensor([7])),
    ),
    "nerf": lambda: (RadianceField(), (torch.rand(1024, 3), torch.rand(1024, 3))),
}
