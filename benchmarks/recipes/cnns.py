"""Convolutional networks in PyTorch, with random weights.

Source: He et al. 2015 (arXiv:1512.03385); Sandler et al. 2018 (arXiv:1801.04381); Iandola et al. 2016
(arXiv:1602.07360), version 1.1.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the field's name for it)


def convolution(
    channels: int,
    features: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = None,
) -> nn.Sequential:
    """A convolution that keeps the size, its batch norm, and an activation."""
    parts = [
        nn.Conv2d(channels, features, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(features),
    ]
    return nn.Sequential(*parts, activation()) if activation else nn.Sequential(*parts)


class Residual(nn.Module):
    """A residual block: its body plus its input, as it is or projected."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, activation: bool = True) -> None:
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut or nn.Identity(), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x) + self.shortcut(x)
        return F.relu(y) if self.activation else y


def basic_block(channels: int, features: int, stride: int) -> Residual:
    """Two 3x3 convolutions."""
    body = nn.Sequential(
        convolution(channels, features, 3, stride, activation=nn.ReLU), convolution(features, features, 3)
    )
    is_same = stride == 1 and channels == features
    return Residual(body, None if is_same else convolution(channels, features, 1, stride))


def bottleneck(channels: int, features: int, stride: int) -> Residual:
    """A 3x3 convolution between two 1x1, of a quarter of the features."""
    inner = features // 4
    body = nn.Sequential(
        convolution(channels, inner, 1, activation=nn.ReLU),
        convolution(inner, inner, 3, stride, activation=nn.ReLU),
        convolution(inner, features, 1),
    )
    is_same = stride == 1 and channels == features
    return Residual(body, None if is_same else convolution(channels, features, 1, stride))


def resnet(depth: int) -> nn.Module:
    """ResNet-18 or ResNet-50 for 224x224 images and 1000 classes."""
    block, widen, counts = {18: (basic_block, 1, (2, 2, 2, 2)), 50: (bottleneck, 4, (3, 4, 6, 3))}[depth]
    layers: list[nn.Module] = [convolution(3, 64, 7, 2, activation=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate(counts):
        features = 64 * 2**stage * widen
        for number in range(count):
            layers.append(block(channels, features, 2 if number == 0 and stage else 1))
            channels = features
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 of width 1 for 224x224 images and 1000 classes."""
    layers: list[nn.Module] = [convolution(3, 32, 3, 2, activation=nn.ReLU6)]
    channels = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for widen, features, count, first_stride in stages:
        for number in range(count):
            stride = first_stride if number == 0 else 1
            inner = channels * widen
            body = [convolution(channels, inner, 1, activation=nn.ReLU6)] if widen > 1 else []
            body.append(convolution(inner, inner, 3, stride, inner, nn.ReLU6))
            block = nn.Sequential(*body, convolution(inner, features, 1))
            is_residual = stride == 1 and channels == features
            layers.append(Residual(block, activation=False) if is_residual else block)
            channels = features
    layers.append(convolution(channels, 1280, 1, activation=nn.ReLU6))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Fire(nn.Module):
    """A 1x1 convolution, then 1x1 and 3x3 side by side."""

    def __init__(self, channels: int, squeezed: int, features: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.small, self.large = nn.Conv2d(squeezed, features, 1), nn.Conv2d(squeezed, features, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.small(x)), F.relu(self.large(x))], 1)


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1 for 224x224 images and 1000 classes."""

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    fires = [Fire(64, 16, 64), Fire(128, 16, 64), pool(), Fire(128, 32, 128), Fire(256, 32, 128), pool()]
    fires += [Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)]
    stem = (nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool())
    return nn.Sequential(*stem, *fires, nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def with_random_norms(network: nn.Module) -> nn.Module:
    """The network for inference, with batch norms that are not trivial."""
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 1.5)
        norm.weight.data.uniform_(0.5, 1.5)
        norm.bias.data.normal_(0, 0.1)
    return network.eval()
