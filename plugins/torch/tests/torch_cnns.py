"""Convolutional networks by their published structure, narrow and shallow, with every kind of block that they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

Activation = Callable[[], nn.Module]


class Conv(nn.Sequential):
    """A convolution that keeps sizes (over its stride), batch norm, an activation."""

    def __init__(
        self,
        inner: int,
        outer: int,
        kernel: int | tuple[int, int] = 3,
        stride: int = 1,
        groups: int = 1,
        act: Activation | None = nn.ReLU,
    ) -> None:
        sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
        conv = nn.Conv2d(inner, outer, sizes, stride, [size // 2 for size in sizes], groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outer), *([] if act is None else [act()]))


class Classifier(nn.Sequential):
    """Means of planes, and a product."""

    def __init__(self, channels: int, act: Activation | None = None) -> None:
        hidden = [] if act is None else [nn.Linear(channels, channels), act()]
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *hidden, nn.Dropout(0.2), nn.Linear(channels, 10))


# --- ResNet -----------------------------------------------------------------------------------------------------------
class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else Conv(inner, outer, 1, stride, act=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def basic(inner: int, outer: int, stride: int = 1) -> Residual:
    return Residual(inner, outer, stride, nn.Sequential(Conv(inner, outer, 3, stride), Conv(outer, outer, act=None)))


def bottleneck(inner: int, outer: int, stride: int = 1, groups: int = 1) -> Residual:
    wide = outer // 4
    body = nn.Sequential(Conv(inner, wide, 1), Conv(wide, wide, 3, stride, groups), Conv(wide, outer, 1, act=None))
    return Residual(inner, outer, stride, body)


def resnet() -> nn.Module:
    return nn.Sequential(
        Conv(3, 8, 7, 2),
        nn.MaxPool2d(3, 2, 1),
        *(basic(8, 8), basic(8, 16, 2)),
        *(bottleneck(16, 32, 2), bottleneck(32, 32, groups=4)),
        Classifier(32),
    )


# --- MobileNet and EfficientNet ---------------------------------------------------------------------------------------
class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, act: Activation, gate: Activation) -> None:
        super().__init__()
        narrow = max(channels // 4, 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, narrow, 1), act(), nn.Conv2d(narrow, channels, 1), gate()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


class Inverted(nn.Module):
    """An inverted residual: wide, by channel, narrow."""

    def __init__(
        self,
        inner: int,
        outer: int,
        expand: int = 4,
        kernel: int = 3,
        stride: int = 1,
        act: Activation = nn.ReLU6,
        squeeze: nn.Module | None = None,
    ) -> None:
        super().__init__()
        wide = inner * expand
        layers: list[nn.Module] = [] if expand == 1 else [Conv(inner, wide, 1, act=act)]
        layers += [Conv(wide, wide, kernel, stride, wide, act), squeeze or nn.Identity()]
        self.body = nn.Sequential(*layers, Conv(wide, outer, 1, act=None))
        self.adds = inner == outer and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet_v2() -> nn.Module:
    blocks = (Inverted(8, 8, 1), Inverted(8, 12, 6, stride=2), Inverted(12, 12, 6), Inverted(12, 16, 6, stride=2))
    return nn.Sequential(Conv(3, 8, 3, 2, act=nn.ReLU6), *blocks, Conv(16, 32, 1, act=nn.ReLU6), Classifier(32))


def mobilenet_v3() -> nn.Module:
    def squeeze(channels: int) -> Squeeze:
        return Squeeze(channels, nn.ReLU, nn.Hardsigmoid)

    blocks = (
        Inverted(8, 8, 1, 3, 2, nn.ReLU, squeeze(8)),
        Inverted(8, 12, 4, 3, 1, nn.ReLU),
        Inverted(12, 12, 4, 5, 1, nn.Hardswish, squeeze(48)),
        Inverted(12, 16, 4, 5, 2, nn.Hardswish, squeeze(48)),
    )
    stem, last = Conv(3, 8, 3, 2, act=nn.Hardswish), Conv(16, 32, 1, act=nn.Hardswish)
    return nn.Sequential(stem, *blocks, last, Classifier(32, nn.Hardswish))


def efficientnet() -> nn.Module:
    def block(inner: int, outer: int, expand: int, kernel: int, stride: int) -> Inverted:
        gate = Squeeze(inner * expand, nn.SiLU, nn.Sigmoid)
        return Inverted(inner, outer, expand, kernel, stride, nn.SiLU, gate)

    blocks = (block(8, 8, 1, 3, 1), block(8, 12, 6, 5, 2), block(12, 12, 6, 5, 1), block(12, 16, 6, 3, 2))
    return nn.Sequential(Conv(3, 8, 3, 2, act=nn.SiLU), *blocks, Conv(16, 32, 1, act=nn.SiLU), Classifier(32))


# --- DenseNet ---------------------------------------------------------------------------------------------------------
class Dense(nn.Module):
    """Norm and activation come before the convolutions; each layer reads what all before it gave."""

    def __init__(self, inner: int, growth: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                *(nn.BatchNorm2d(wide), nn.ReLU(), nn.Conv2d(wide, 4 * growth, 1, bias=False)),
                *(nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)),
            )
            for wide in range(inner, inner + growth * count, growth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


def densenet() -> nn.Module:
    narrow = (nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 12, 1, bias=False), nn.AvgPool2d(2, 2))
    stem = (Conv(3, 12, 7, 2), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(
        *stem, Dense(12, 4, 3), *narrow, Dense(12, 4, 2), nn.BatchNorm2d(20), nn.ReLU(), Classifier(20)
    )


# --- Inception --------------------------------------------------------------------------------------------------------
class Parallel(nn.Module):
    """Branches joined by channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def inception() -> nn.Module:
    mixed = Parallel(
        Conv(8, 8, 1),
        nn.Sequential(Conv(8, 6, 1), Conv(6, 8, 5)),
        nn.Sequential(Conv(8, 6, 1), Conv(6, 6, (1, 7)), Conv(6, 8, (7, 1))),
        nn.Sequential(Conv(8, 6, 1), Parallel(Conv(6, 4, (1, 3)), Conv(6, 4, (3, 1)))),
        nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), Conv(8, 8, 1)),
    )
    reduced = Parallel(
        nn.Sequential(nn.Conv2d(40, 8, 3, 2), nn.ReLU()), nn.MaxPool2d(3, 2), nn.Sequential(nn.Conv2d(40, 8, 3, 2))
    )
    return nn.Sequential(
        Conv(3, 8, 3, 2), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2, ceil_mode=True), mixed, reduced, Classifier(56)
    )


# --- ShuffleNet and SqueezeNet ----------------------------------------------------------------------------------------
class Shuffled(nn.Module):
    """Half of the channels goes past, then all channels are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(Conv(half, half, 1), Conv(half, half, groups=half, act=None), Conv(half, half, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, dim=1)
        y = torch.cat([left, self.body(right)], 1)
        batch, channels, height, width = y.shape
        return y.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous().flatten(1, 2)


def shufflenet() -> nn.Module:
    return nn.Sequential(
        *(Conv(3, 16, 3, 2), nn.MaxPool2d(3, 2, 1), Shuffled(16), Shuffled(16), nn.ChannelShuffle(4)),
        Conv(16, 24, 1),
        Classifier(24),
    )


class Fire(nn.Module):
    def __init__(self, inner: int, narrow: int, outer: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inner, narrow, 1)
        self.left, self.right = nn.Conv2d(narrow, outer // 2, 1), nn.Conv2d(narrow, outer // 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.squeeze(x), inplace=True)
        return torch.cat([F.relu(self.left(x), inplace=True), F.relu(self.right(x), inplace=True)], 1)


def squeezenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(Fire(8, 4, 16), Fire(16, 4, 16), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(16, 8, 32)),
        *(nn.Dropout(0.5), nn.Conv2d(32, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten()),
    )


# --- U-Net ------------------------------------------------------------------------------------------------------------
class UNet(nn.Module):
    """Two levels: one goes up by a transposed convolution, one by resizing and padding to the size of its other side."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.double(3, 8), self.double(8, 16), self.double(16, 32)])
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.wide, self.last = self.double(32, 16), self.double(24, 8)
        self.norm, self.out = nn.GroupNorm(4, 8), nn.Conv2d(8, 2, 1)

    @staticmethod
    def double(inner: int, outer: int) -> nn.Module:
        return nn.Sequential(Conv(inner, outer), Conv(outer, outer, act=lambda: nn.LeakyReLU(0.1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        deep = self.down[2](F.max_pool2d(second, 2))
        y = self.wide(torch.cat([second, F.pad(self.up(deep), self.missing(deep, second))], 1))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=True)
        y = self.last(torch.cat([first, F.interpolate(y, first.shape[2:], mode="nearest")], 1))
        return torch.sigmoid(self.out(self.norm(y)))

    @staticmethod
    def missing(deep: torch.Tensor, wanted: torch.Tensor) -> list[int]:
        high, wide = (wanted.shape[axis] - 2 * deep.shape[axis] for axis in (2, 3))
        return [wide // 2, wide - wide // 2, high // 2, high - high // 2]


# --- YOLO -------------------------------------------------------------------------------------------------------------
class Split(nn.Module):
    """A cross-stage block: part of the channels goes through residual convolutions, every stage of which is kept."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        half = outer // 2
        self.enter, self.leave = Conv(inner, outer, 1, act=nn.SiLU), Conv(3 * half, outer, 1, act=nn.SiLU)
        self.body = nn.Sequential(Conv(half, half, act=nn.SiLU), Conv(half, half, act=nn.SiLU))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.enter(x).chunk(2, 1)
        return self.leave(torch.cat([left, right, right + self.body(right)], 1))


class Pyramid(nn.Module):
    """Pooled over and over, and joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.leave = Conv(channels, channels // 2, 1, act=nn.SiLU), Conv(2 * channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [self.enter(x)]
        for _ in range(3):
            found.append(F.max_pool2d(found[-1], 5, 1, 2))
        return self.leave(torch.cat(found, 1))


class YOLO(nn.Module):
    """Two scales without anchors: distances as expected values of chances, boxes, and the best of them."""

    def __init__(self, classes: int = 3, bins: int = 4) -> None:
        super().__init__()
        self.classes, self.bins = classes, bins
        self.stem = nn.Sequential(Conv(3, 8, 3, 2, act=nn.SiLU), Conv(8, 16, 3, 2, act=nn.SiLU), Split(16, 16))
        self.deep = nn.Sequential(Conv(16, 32, 3, 2, act=nn.SiLU), Split(32, 32), Pyramid(32))
        self.top, self.bottom = Split(48, 16), Split(48, 32)
        self.down = Conv(16, 16, 3, 2, act=nn.SiLU)
        self.heads = nn.ModuleList(nn.Conv2d(wide, 4 * bins + classes, 1) for wide in (16, 32))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        near = self.stem(x)
        far = self.deep(near)
        near = self.top(torch.cat([F.interpolate(far, scale_factor=2, mode="nearest"), near], 1))
        far = self.bottom(torch.cat([self.down(near), far], 1))
        found = [self.decode(head(y), step) for head, y, step in zip(self.heads, (near, far), (4, 8), strict=True)]
        boxes, scores = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
        best, kind = scores.max(-1)
        best, places = best.topk(10, dim=1)
        return boxes.gather(1, places[..., None].expand(-1, -1, 4)), best, kind.gather(1, places)

    def decode(self, y: torch.Tensor, step: int) -> Sequence[torch.Tensor]:
        batch, _, height, width = y.shape
        distances, scores = y.flatten(2).transpose(1, 2).split([4 * self.bins, self.classes], 2)
        chances = distances.reshape(batch, height * width, 4, self.bins).softmax(-1)
        distances = chances @ torch.arange(self.bins, dtype=y.dtype, device=y.device)
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        centers = torch.stack([columns, rows], -1).reshape(1, -1, 2) + 0.5
        low, high = centers - distances[..., :2], centers + distances[..., 2:]
        return torch.cat([(low + high) / 2, high - low], -1) * step, scores.sigmoid()
