"""Networks of narrow layers: few channels, wide windows, paddings of channels, codes in the place of features.

Source: Lawhern et al. 2018 (arXiv:1611.08024); Bazarevsky et al. 2019 (arXiv:1907.05047); van den Oord et al. 2017
(arXiv:1711.00937).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the field's name for it)

from recipes.zoo.torch_models import Made


def electrodes() -> nn.Module:
    """Return filters over time, then over electrodes, each channel with two of the latter."""
    temporal = [nn.Conv2d(1, 8, (1, 64), padding=(0, 32), bias=False), nn.BatchNorm2d(8)]
    spatial = [nn.Conv2d(8, 16, (22, 1), groups=8, bias=False), nn.BatchNorm2d(16), nn.ELU(), nn.AvgPool2d((1, 4))]
    depthwise = nn.Conv2d(16, 16, (1, 16), padding=(0, 8), groups=16, bias=False)
    separable = [depthwise, nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ELU(), nn.AvgPool2d((1, 8))]
    return nn.Sequential(*temporal, *spatial, *separable, nn.Flatten(), nn.Linear(512, 4))


class Padded(nn.Module):
    """A separable convolution, and a residual that zeros make as wide."""

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.more = stride, width - channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 5, stride, 2, groups=channels), nn.Conv2d(channels, width, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x if self.stride == 1 else F.max_pool2d(x, 2)
        return F.relu(self.body(x) + F.pad(kept, (0, 0, 0, 0, 0, self.more)))


def faces() -> nn.Module:
    """Return blocks whose channels grow by a few at a time, and what they say of each place."""
    widths = (24, 24, 28, 32, 36, 42, 48, 56, 64, 72, 80, 88)
    pairs = itertools.pairwise(widths)
    blocks = [Padded(a, b, 2 if b in (32, 48) else 1) for a, b in pairs]
    return nn.Sequential(nn.Conv2d(3, 24, 5, 2, 2), nn.ReLU(), *blocks, nn.Conv2d(88, 34, 1))


class Codes(nn.Module):
    """An image to the nearest of 512 codes for each place, and back."""

    def __init__(self) -> None:
        super().__init__()
        down = [nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(), nn.Conv2d(128, 64, 1)]
        up = [nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1)]
        self.down, self.up = nn.Sequential(*down), nn.Sequential(nn.Conv2d(64, 128, 3, 1, 1), nn.ReLU(), *up)
        self.codes = nn.Parameter(torch.randn(512, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.down(x).permute(0, 2, 3, 1)
        far = (self.codes**2).sum(1) - 2 * rows @ self.codes.t()
        return self.up(self.codes[far.argmin(-1)].permute(0, 3, 1, 2))


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "eegnet": lambda: (electrodes(), (torch.randn(1, 1, 22, 1024),)),
    "blaze_face": lambda: (faces(), (torch.randn(1, 3, 128, 128),)),
    "vq_vae": lambda: (Codes(), (torch.randn(1, 3, 64, 64),)),
}
