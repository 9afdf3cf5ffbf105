"""U-Nets, detectors and networks that make images larger.

Source: Ronneberger et al. 2015 (arXiv:1505.04597); Oktay et al. 2018 (arXiv:1804.03999); Zhou et al. 2018
(arXiv:1807.10165); Liu et al. 2016 (arXiv:1512.02325); Redmon and Farhadi 2018 (arXiv:1804.02767); Zhou et al. 2019
(arXiv:1904.07850); Lin et al. 2017 (arXiv:1612.03144); Shi et al. 2016 (arXiv:1609.05158); Lim et al. 2017
(arXiv:1707.02921); Johnson et al. 2016 (arXiv:1603.08155); Zagoruyko and Komodakis 2016 (arXiv:1605.07146).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the field's name for it)

from recipes.cnns import convolution
from recipes.zoo.torch_models import Made


def double(channels: int, features: int, kind: type[nn.Module] = nn.Conv2d) -> nn.Sequential:
    """Return two convolutions with norms, of images or volumes."""
    norm = nn.BatchNorm2d if kind is nn.Conv2d else nn.InstanceNorm3d
    parts = [kind(channels, features, 3, padding=1), norm(features), nn.ReLU()]
    return nn.Sequential(*parts, kind(features, features, 3, padding=1), norm(features), nn.ReLU())


class UNet(nn.Module):
    """An encoder and a decoder with shortcuts between their levels; attention: gates on the shortcuts."""

    def __init__(self, widths: tuple[int, ...], kind: type[nn.Module] = nn.Conv2d, attention: bool = False) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2) if kind is nn.Conv2d else nn.MaxPool3d(2)
        up = nn.ConvTranspose2d if kind is nn.Conv2d else nn.ConvTranspose3d
        levels = list(itertools.pairwise(widths))
        self.down = nn.ModuleList([double(3 if kind is nn.Conv2d else 1, widths[0], kind)])
        self.down.extend(double(above, below, kind) for above, below in levels)
        self.up = nn.ModuleList(up(below, above, 2, 2) for above, below in reversed(levels))
        self.join = nn.ModuleList(double(2 * above, above, kind) for above, _ in reversed(levels))
        self.gates = nn.ModuleList(Gate(above) for above, _ in reversed(levels)) if attention else None
        self.head = kind(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.down[0](x)]
        for block in self.down[1:]:
            kept.append(block(self.pool(kept[-1])))
        x = kept.pop()
        for at, (up, join) in enumerate(zip(self.up, self.join, strict=True)):
            x, shortcut = up(x), kept.pop()
            x = join(torch.cat([self.gates[at](x, shortcut) if self.gates else shortcut, x], 1))
        return self.head(x)


class Gate(nn.Module):
    """Weigh a shortcut by how it agrees with what comes from below."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Conv2d(width, width // 2, 1), nn.Conv2d(width, width // 2, 1)
        self.weight = nn.Conv2d(width // 2, 1, 1)

    def forward(self, x: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
        return shortcut * torch.sigmoid(self.weight(F.relu(self.query(x) + self.key(shortcut))))


class NestedUNet(nn.Module):
    """A U-Net whose shortcuts are U-Nets."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.depth = len(widths)
        self.blocks = nn.ModuleDict()
        for column in range(self.depth):
            for row in range(self.depth - column):
                before = (3, *widths)[row] if column == 0 else column * widths[row] + widths[row + 1]
                self.blocks[f"{row}_{column}"] = double(before, widths[row])
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: dict[tuple[int, int], torch.Tensor] = {}
        for column in range(self.depth):
            for row in range(self.depth - column):
                if column:
                    below = F.interpolate(found[row + 1, column - 1], scale_factor=2, mode="bilinear")
                    given = torch.cat([*(found[row, at] for at in range(column)), below], 1)
                else:
                    given = F.max_pool2d(found[row - 1, 0], 2) if row else x
                found[row, column] = self.blocks[f"{row}_{column}"](given)
        return torch.sigmoid(self.head(found[0, self.depth - 1]))


class Backbone(nn.Module):
    """Feature maps of 1/8, 1/16 and 1/32; activation: of each convolution."""

    def __init__(self, activation: type[nn.Module], depthwise: bool = False) -> None:
        super().__init__()
        stages, channels = [], 3
        for width in (24, 48, 96, 160, 256):
            groups = width if depthwise else 1
            down = convolution(channels, width, 3, 2, activation=activation)
            body = [convolution(width, width, 3, groups=groups, activation=activation), convolution(width, width, 1)]
            stages.append(nn.Sequential(down, *body, activation()))
            channels = width
        self.stages = nn.ModuleList(stages)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[2:]


class SSD(nn.Module):
    """Boxes and classes at each cell of three maps, decoded against anchors."""

    anchors: torch.Tensor

    def __init__(self, classes: int = 21, anchors: int = 6) -> None:
        super().__init__()
        self.backbone, self.classes = Backbone(nn.ReLU6, depthwise=True), classes
        widths = (96, 160, 256)
        self.boxes = nn.ModuleList(nn.Conv2d(width, anchors * 4, 3, padding=1) for width in widths)
        self.scores = nn.ModuleList(nn.Conv2d(width, anchors * classes, 3, padding=1) for width in widths)
        self.register_buffer("anchors", torch.rand(1, 6 * (40 * 40 + 20 * 20 + 10 * 10), 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        maps = self.backbone(x)
        boxes = [head(each).permute(0, 2, 3, 1).reshape(1, -1, 4) for head, each in zip(self.boxes, maps, strict=True)]
        scores = [
            head(each).permute(0, 2, 3, 1).reshape(1, -1, self.classes)
            for head, each in zip(self.scores, maps, strict=True)
        ]
        offsets, anchors = torch.cat(boxes, 1), self.anchors
        centres = offsets[..., :2] * 0.1 * anchors[..., 2:] + anchors[..., :2]
        sizes = torch.exp(offsets[..., 2:] * 0.2) * anchors[..., 2:]
        return torch.cat([centres - sizes / 2, centres + sizes / 2], -1), torch.softmax(torch.cat(scores, 1), -1)


class YOLO(nn.Module):
    """Boxes relative to a grid; split: each stage is a bottleneck beside a shortcut of half the channels."""

    def __init__(self, split: bool) -> None:
        super().__init__()
        activation = nn.SiLU if split else nn.LeakyReLU
        self.backbone, self.split = Backbone(activation), split
        self.blocks = nn.ModuleList(
            convolution(width // 2, width // 2, 3, activation=nn.SiLU) for width in (96, 160, 256)
        )
        self.heads = nn.ModuleList(nn.Conv2d(width, 3 * 85, 1) for width in (96, 160, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for head, block, each in zip(self.heads, self.blocks, self.backbone(x), strict=True):
            if self.split:
                left, right = each.chunk(2, 1)
                each = torch.cat([left, right + block(right)], 1)
            cells = head(each)
            height, width = cells.shape[2:]
            cells = cells.view(1, 3, 85, height, width).permute(0, 1, 3, 4, 2)
            grid = torch.stack(torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy"), -1)
            cells = torch.sigmoid(cells)
            places = (cells[..., :2] * 2 - 0.5 + grid) * (320 // height)
            found.append(torch.cat([places, (cells[..., 2:4] * 2) ** 2, cells[..., 4:]], -1).reshape(1, -1, 85))
        return torch.cat(found, 1)


class CenterNet(nn.Module):
    """Centres of objects as peaks of a heat map, and the best of them."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone(nn.ReLU)
        self.up = nn.Sequential(nn.ConvTranspose2d(256, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU())
        self.heat, self.size = nn.Conv2d(64, 20, 3, padding=1), nn.Conv2d(64, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.up(self.backbone(x)[-1])
        heat = torch.sigmoid(self.heat(x))
        peaks = heat * (F.max_pool2d(heat, 3, 1, 1) == heat).float()
        best, places = peaks.flatten(1).topk(50)
        cells = (places % (x.shape[2] * x.shape[3]))[:, None].expand(-1, 2, -1)
        return best, self.size(x).flatten(2).gather(2, cells)


class Pyramid(nn.Module):
    """Maps of all scales with what lies above them added, and a head for each."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.backbone = Backbone(nn.ReLU)
        self.side = nn.ModuleList(nn.Conv2d(channels, width, 1) for channels in (96, 160, 256))
        self.head = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU(), nn.Conv2d(width, 80, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = [side(each) for side, each in zip(self.side, self.backbone(x), strict=True)]
        for at in (1, 0):
            maps[at] = maps[at] + F.interpolate(maps[at + 1], scale_factor=2, mode="nearest")
        return torch.cat([self.head(each).flatten(2) for each in maps], 2)


class Residual(nn.Module):
    """x plus two convolutions of it, with norms of a kind or none."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module] = lambda _: nn.Identity()) -> None:
        super().__init__()
        parts = [nn.Conv2d(width, width, 3, padding=1), norm(width), nn.ReLU()]
        self.body = nn.Sequential(*parts, nn.Conv2d(width, width, 3, padding=1), norm(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def larger(width: int, blocks: int) -> nn.Module:
    """Return a network that makes an image 3 times as large: EDSR, or ESPCN where it has no blocks."""
    first = [nn.Conv2d(3, width, 5, padding=2), nn.Tanh()] if not blocks else [nn.Conv2d(3, width, 3, padding=1)]
    last = [nn.Conv2d(width, 27, 3, padding=1), nn.PixelShuffle(3)]
    return nn.Sequential(*first, *(Residual(width) for _ in range(blocks)), *last)


def style() -> nn.Module:
    """Return a network that changes an image's style: reflected borders, norms of each image, upsampling."""

    def step(channels: int, features: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        parts = [nn.ReflectionPad2d(kernel // 2), nn.Conv2d(channels, features, kernel, stride)]
        return [*parts, nn.InstanceNorm2d(features, affine=True), nn.ReLU()]

    middle = [Residual(64, lambda width: nn.InstanceNorm2d(width, affine=True)) for _ in range(3)]
    up = [nn.Upsample(scale_factor=2), *step(64, 32, 3), nn.Upsample(scale_factor=2), *step(32, 16, 3)]
    last = [nn.ReflectionPad2d(4), nn.Conv2d(16, 3, 9)]
    return nn.Sequential(*step(3, 16, 9), *step(16, 32, 3, 2), *step(32, 64, 3, 2), *middle, *up, *last)


def wide() -> nn.Module:
    """Return a wide residual network before activations, for small images."""

    def block(width: int) -> nn.Module:
        return Residual(width, nn.BatchNorm2d)

    parts = [nn.Conv2d(3, 64, 3, padding=1), block(64), nn.Conv2d(64, 128, 3, 2, 1), block(128)]
    last = [nn.Conv2d(128, 256, 3, 2, 1), block(256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)]
    return nn.Sequential(*parts, *last)


def image(network: nn.Module, size: int, channels: int = 3) -> Made:
    """Return the network with one square image."""
    return network, (torch.randn(1, channels, size, size),)


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "unet": lambda: image(UNet((32, 64, 128, 256)), 128),
    "unet_attention": lambda: image(UNet((24, 48, 96, 192), attention=True), 128),
    "unet_3d": lambda: (UNet((16, 32, 64), nn.Conv3d), (torch.randn(1, 1, 32, 32, 32),)),
    "unet_plus_plus": lambda: image(NestedUNet(), 96),
    "ssd_lite": lambda: image(SSD(), 320),
    "yolo_tiny": lambda: image(YOLO(split=False), 320),
    "yolo_split": lambda: image(YOLO(split=True), 320),
    "centernet": lambda: image(CenterNet(), 256),
    "feature_pyramid": lambda: image(Pyramid(), 256),
    "espcn": lambda: image(larger(32, 0), 96),
    "edsr": lambda: image(larger(48, 4), 64),
    "style_transfer": lambda: image(style(), 128),
    "wide_resnet": lambda: image(wide(), 32),
}
