"""Networks of series: forecasts, state spaces, and recurrent layers as PyTorch exports them.

Source: Oreshkin et al. 2019 (arXiv:1905.10437); Bai et al. 2018 (arXiv:1803.01271); Gu et al. 2022 (arXiv:2206.11893);
Gu and Dao 2023 (arXiv:2312.00752); Shi et al. 2015 (arXiv:1507.05717).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the field's name for it)

from recipes.zoo.torch_models import Made


class Forecast(nn.Module):
    """Blocks of dense layers, each of which takes away what it explains and adds to the forecast."""

    def __init__(self, length: int = 120, ahead: int = 24, width: int = 256) -> None:
        super().__init__()

        def block() -> nn.Module:
            layers = [nn.Linear(length, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
            return nn.Sequential(*layers, nn.Linear(width, length + ahead))

        self.length = length
        self.blocks = nn.ModuleList(block() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(1)
        for block in self.blocks:
            said = block(x)
            x, total = x - said[:, : self.length], total + said[:, self.length :]
        return total


def temporal() -> nn.Module:
    """Return dilated causal convolutions with residuals."""

    class Block(nn.Module):
        def __init__(self, width: int, dilation: int) -> None:
            super().__init__()
            self.before = 2 * dilation, 0
            self.first = nn.Conv1d(width, width, 3, dilation=dilation)
            self.second = nn.Conv1d(width, width, 3, dilation=dilation)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.relu(self.first(F.pad(x, self.before)))
            return F.relu(x + F.relu(self.second(F.pad(y, self.before))))

    return nn.Sequential(nn.Conv1d(8, 64, 1), *(Block(64, 2**at) for at in range(5)), nn.Conv1d(64, 8, 1))


class Diagonal(nn.Module):
    """A state space with a diagonal matrix: its kernel is computed, and applied as a matrix of lags."""

    def __init__(self, width: int = 64, states: int = 32, length: int = 256) -> None:
        super().__init__()
        self.rates, self.turns = nn.Parameter(torch.rand(width, states)), nn.Parameter(torch.rand(width, states) * 3)
        self.weights, self.out = nn.Parameter(torch.randn(width, states) / states), nn.Linear(width, width)
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(self.length)
        decay = torch.exp(-0.1 * torch.exp(self.rates)[..., None] * steps)
        kernel = (self.weights[..., None] * decay * torch.cos(self.turns[..., None] * steps)).sum(1)
        lags = steps[:, None] - steps[None]
        matrix = torch.where(lags >= 0, kernel[:, lags.clamp(min=0)], torch.zeros(1))
        y = torch.einsum("cts,bsc->btc", matrix, x)
        return x + self.out(F.gelu(y))


class Selective(nn.Module):
    """A state space whose rates come with the input, step by step."""

    def __init__(self, width: int = 96, states: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.mix = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.rates, self.pair = nn.Linear(width, width), nn.Linear(width, 2 * states)
        self.decay = nn.Parameter(torch.rand(width, states))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, gate = self.first(x).chunk(2, -1)
        length = x.shape[1]
        y = F.silu(self.mix(y.transpose(1, 2))[..., :length].transpose(1, 2))
        rates = F.softplus(self.rates(y))
        into, out = self.pair(y).chunk(2, -1)
        kept = torch.exp(-rates[..., None] * torch.exp(self.decay))
        given = (rates * y)[..., None] * into[:, :, None]
        state, found = torch.zeros_like(given[:, 0]), []
        for at in range(32):
            state = kept[:, at] * state + given[:, at]
            found.append((state * out[:, at, None]).sum(-1))
        return self.last(torch.stack(found, 1) * F.silu(gate))


class Tagger(nn.Module):
    """Words to tags by a recurrent layer in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(8000, 128), nn.LSTM(128, 128, 2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(256, 20)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(self.table(words))[0])


class Translator(nn.Module):
    """An encoder's last state begins a decoder, which attends to all of them."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.table = nn.Embedding(8000, width)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.last = nn.Linear(2 * width, 8000)

    def forward(self, words: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        known, state = self.encoder(self.table(words))
        rows, _ = self.decoder(self.table(said), state)
        mixed = torch.softmax(rows @ known.transpose(1, 2), -1) @ known
        return self.last(torch.cat([rows, mixed], -1))


class LineReader(nn.Module):
    """A line of text: convolutions that halve the height more than the width, then recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for channels, width, pool in ((1, 32, (2, 2)), (32, 64, (2, 2)), (64, 128, (2, 1)), (128, 128, (4, 1))):
            parts += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(pool)]
        self.body = nn.Sequential(*parts)
        self.layers, self.last = nn.LSTM(128, 96, batch_first=True, bidirectional=True), nn.Linear(192, 97)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(self.body(x).squeeze(2).transpose(1, 2))[0])


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "nbeats": lambda: (Forecast(), (torch.randn(32, 120),)),
    "tcn": lambda: (temporal(), (torch.randn(1, 8, 400),)),
    "s4d": lambda: (Diagonal(), (torch.randn(1, 256, 64),)),
    "selective_scan": lambda: (Selective(), (torch.randn(1, 32, 96),)),
    "bilstm_tagger": lambda: (Tagger(), (torch.randint(0, 8000, (1, 60)),)),
    "seq2seq_gru": lambda: (Translator(), (torch.randint(0, 8000, (1, 40)), torch.randint(0, 8000, (1, 20)))),
    "crnn": lambda: (LineReader(), (torch.randn(1, 1, 32, 160),)),
}
