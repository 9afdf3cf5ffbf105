"""Networks of sound: separation, synthesis and recognition.

Source: Luo and Mesgarani 2018 (arXiv:1809.07454); Kong et al. 2020 (arXiv:2010.05646); van den Oord et al. 2016
(arXiv:1609.03499); Kriman et al. 2019 (arXiv:1910.10261); Gulati et al. 2020 (arXiv:2005.08100); Amodei et al. 2015
(arXiv:1512.02595); Defossez et al. 2019 (arXiv:1911.13254); Zhang et al. 2017 (arXiv:1711.07128).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the field's name for it)

from recipes.zoo.torch_models import Made


class Sum(nn.Module):
    """x plus what a body makes of it, times a factor."""

    def __init__(self, *body: nn.Module, factor: float = 1.0) -> None:
        super().__init__()
        self.body, self.factor = nn.Sequential(*body), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.factor * self.body(x)


class Transposed(nn.Module):
    """A module on channels-last rows of what has channels first, or the reverse."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.transpose(1, 2)).transpose(1, 2)


class ConvTasNet(nn.Module):
    """Two voices from one wave: masks by dilated depthwise convolutions."""

    def __init__(self, filters: int = 128, width: int = 64) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, filters, 16, 8), nn.ConvTranspose1d(filters, 1, 16, 8)

        def block(dilation: int) -> nn.Module:
            inner = 2 * width
            depthwise = nn.Conv1d(inner, inner, 3, padding=dilation, dilation=dilation, groups=inner)
            first = [nn.Conv1d(width, inner, 1), nn.PReLU(), nn.GroupNorm(1, inner)]
            return Sum(*first, depthwise, nn.PReLU(), nn.GroupNorm(1, inner), nn.Conv1d(inner, width, 1))

        blocks = [block(2**at) for at in range(6)]
        last = [nn.PReLU(), nn.Conv1d(width, 2 * filters, 1), nn.Sigmoid()]
        self.masks = nn.Sequential(nn.GroupNorm(1, filters), nn.Conv1d(filters, width, 1), *blocks, *last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        known = F.relu(self.encode(x))
        masks = self.masks(known).unflatten(1, (2, -1))
        return self.decode((masks * known[:, None]).flatten(0, 1))


def hifi_gan() -> nn.Module:
    """Return a vocoder: transposed convolutions, and dilated ones of several widths after each."""

    class Mixed(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.paths = nn.ModuleList(
                Sum(nn.LeakyReLU(0.1), nn.Conv1d(width, width, k, padding=(k - 1) * d // 2, dilation=d))
                for k, d in ((3, 1), (7, 3), (11, 5))
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return reduce(torch.add, [path(x) for path in self.paths]) / len(self.paths)

    parts: list[nn.Module] = [nn.Conv1d(80, 128, 7, padding=3)]
    for width, rate in ((64, 8), (32, 8), (16, 4)):
        parts += [nn.LeakyReLU(0.1), nn.ConvTranspose1d(2 * width, width, 2 * rate, rate, rate // 2), Mixed(width)]
    return nn.Sequential(*parts, nn.LeakyReLU(), nn.Conv1d(16, 1, 7, padding=3), nn.Tanh())


class WaveNet(nn.Module):
    """Gated dilated causal convolutions, whose skips are summed."""

    def __init__(self, width: int = 32, layers: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**at) for at in range(layers))
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 128, 1), nn.ReLU(), nn.Conv1d(128, 256, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, skips = self.first(x), torch.zeros(1)
        for at, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            left, right = gate(F.pad(x, (2**at, 0))).chunk(2, 1)
            kept, skip = out(torch.tanh(left) * torch.sigmoid(right)).chunk(2, 1)
            x, skips = x + kept, skips + skip
        return self.last(skips)


def quartznet() -> nn.Module:
    """Return separable convolutions over time with residuals."""

    def block(width: int, kernel: int) -> nn.Module:
        def separable() -> list[nn.Module]:
            depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)
            return [depthwise, nn.Conv1d(width, width, 1, bias=False), nn.BatchNorm1d(width), nn.ReLU()]

        return Sum(*separable(), *separable())

    first = [nn.Conv1d(64, 256, 33, 2, 16, bias=False), nn.BatchNorm1d(256), nn.ReLU()]
    return nn.Sequential(
        *first, *(block(256, kernel) for kernel in (33, 39, 51)), nn.Conv1d(256, 29, 1), nn.LogSoftmax(1)
    )


class Rows(nn.Module):
    """Attention of rows to themselves."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Conformer(nn.Module):
    """Half a feed-forward, attention, a gated convolution, half a feed-forward, in each layer."""

    def __init__(self, width: int = 192, layers: int = 3) -> None:
        super().__init__()
        self.shrink = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU())
        self.first = nn.Linear(width * 19, width)

        def forward_part() -> nn.Module:
            inner = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)]
            return Sum(*inner, factor=0.5)

        def mixing() -> nn.Module:
            depthwise = nn.Conv1d(width, width, 31, padding=15, groups=width)
            inner = [nn.Conv1d(width, 2 * width, 1), nn.GLU(1), depthwise, nn.BatchNorm1d(width), nn.SiLU()]
            return Sum(nn.LayerNorm(width), Transposed(nn.Sequential(*inner, nn.Conv1d(width, width, 1))))

        def layer() -> list[nn.Module]:
            attention = Sum(nn.LayerNorm(width), Rows(width, 4))
            return [forward_part(), attention, mixing(), forward_part(), nn.LayerNorm(width)]

        self.layers = nn.Sequential(*(part for _ in range(layers) for part in layer()), nn.Linear(width, 100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shrink(x[:, None]).transpose(1, 2).flatten(2)
        return torch.log_softmax(self.layers(self.first(x)), -1)


class Recurrent(nn.Module):
    """Convolutions over a spectrogram, then recurrent layers over time."""

    def __init__(self, kind: type[nn.GRU | nn.LSTM] = nn.GRU) -> None:
        super().__init__()
        parts = [nn.Conv2d(1, 32, (11, 41), (2, 2), (5, 20)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20)]
        self.convolutions = nn.Sequential(*parts, nn.Conv2d(32, 32, (11, 21), (1, 2), (5, 10)), nn.Hardtanh(0, 20))
        self.layers = kind(32 * 20, 192, 2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(384, 29)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolutions(x[:, None]).transpose(1, 2).flatten(2)
        return self.last(self.layers(x)[0])


class Demucs(nn.Module):
    """A U-Net over a wave with gated units, and a recurrent layer at its bottom."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        pairs = list(zip((1, *widths), widths, strict=False))
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 8, 4, 2), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(1)) for a, b in pairs
        )
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv1d(b, 2 * b, 3, padding=1), nn.GLU(1), nn.ConvTranspose1d(b, a, 8, 4, 2))
            for a, b in reversed(pairs)
        )
        self.recurrent = nn.LSTM(widths[-1], widths[-1], batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        x = self.recurrent(x.transpose(1, 2))[0].transpose(1, 2)
        for block in self.up:
            x = block(x + kept.pop())
        return x


def keywords() -> nn.Module:
    """Return depthwise separable convolutions over features of one second."""
    parts: list[nn.Module] = [nn.Conv2d(1, 64, (10, 4), 2, (4, 1)), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(4):
        parts += [nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.BatchNorm2d(64), nn.ReLU()]
        parts += [nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12), nn.Softmax(-1))


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "conv_tasnet": lambda: (ConvTasNet(), (torch.randn(1, 1, 8000),)),
    "hifi_gan": lambda: (hifi_gan(), (torch.randn(1, 80, 48),)),
    "wavenet": lambda: (WaveNet(), (torch.randn(1, 1, 2000),)),
    "quartznet": lambda: (quartznet(), (torch.randn(1, 64, 300),)),
    "conformer": lambda: (Conformer(), (torch.randn(1, 400, 80),)),
    "deep_speech": lambda: (Recurrent(), (torch.randn(1, 200, 80),)),
    "demucs": lambda: (Demucs(), (torch.randn(1, 1, 16000),)),
    "keyword_spotter": lambda: (keywords(), (torch.randn(1, 1, 49, 10),)),
}
