"""Networks on graphs and point clouds, which gather and scatter, and recommenders.

Source: Kipf and Welling 2016 (arXiv:1609.02907); Velickovic et al. 2017 (arXiv:1710.10903); Hamilton et al. 2017
(arXiv:1706.02216); Xu et al. 2018 (arXiv:1810.00826); Wang et al. 2018 (arXiv:1801.07829); Qi et al. 2016
(arXiv:1612.00593); Naumov et al. 2019 (arXiv:1906.00091); Guo et al. 2017 (arXiv:1703.04247).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the field's name for it)

from recipes.zoo.torch_models import Made

NODES, EDGES, FEATURES = 1000, 5000, 64


def summed(values: torch.Tensor, targets: torch.Tensor, count: int) -> torch.Tensor:
    """Return the sum of the rows that go to each of so many targets."""
    places = targets[:, None].expand_as(values)
    return torch.zeros(count, values.shape[1]).scatter_add(0, places, values)


class Passing(nn.Module):
    """Two layers of messages along edges; kind: how a layer makes and gathers them."""

    def __init__(self, kind: str, width: int = 64) -> None:
        super().__init__()
        self.kind = kind
        scale = 2 if kind == "sage" else 1
        self.layers = nn.ModuleList(nn.Linear(scale * size, width) for size in (FEATURES, width))
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.attention = nn.ParameterList(nn.Parameter(torch.randn(2, width, 4) * 0.1) for _ in range(2))
        self.last = nn.Linear(width, 7)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sources, targets = edges[0], edges[1]
        for at in range(2):
            x = F.relu(getattr(self, self.kind)(at, x, sources, targets))
        return torch.log_softmax(self.last(x), -1)

    def gcn(self, at: int, x: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Convolve: messages are divided by the roots of both degrees."""
        degrees = summed(torch.ones(sources.shape[0], 1), targets, NODES) + 1
        scaled = self.layers[at](x) * degrees.rsqrt()
        return (summed(scaled[sources], targets, NODES) + scaled) * degrees.rsqrt()

    def sage(self, at: int, x: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Take the mean of the neighbours beside the node itself."""
        degrees = summed(torch.ones(sources.shape[0], 1), targets, NODES).clamp(min=1)
        return self.layers[at](torch.cat([x, summed(x[sources], targets, NODES) / degrees], 1))

    def gin(self, at: int, x: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sum the neighbours, then two dense layers."""
        return self.inner[at](F.relu(self.layers[at](1.1 * x + summed(x[sources], targets, NODES))))

    def gat(self, at: int, x: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Weigh messages by a softmax over each target's edges, in four heads."""
        x = self.layers[at](x)
        here, there = x @ self.attention[at][0], x @ self.attention[at][1]
        scores = F.leaky_relu(here[sources] + there[targets], 0.2)
        places = targets[:, None].expand_as(scores)
        largest = torch.full((NODES, 4), -1e9).scatter_reduce(0, places, scores, "amax")
        weights = torch.exp(scores - largest[targets])
        weights = weights / summed(weights, targets, NODES)[targets]
        messages = x[sources].unflatten(1, (4, -1)) * weights[..., None]
        return summed(messages.flatten(1), targets, NODES)


class EdgeConvolution(nn.Module):
    """Each point with its nearest neighbours, found anew in every layer."""

    def __init__(self, neighbours: int = 10) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.layers = nn.ModuleList(nn.Linear(2 * a, b) for a, b in ((3, 32), (32, 64)))
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            squares = (x * x).sum(-1)
            distances = squares[:, None] + squares[None] - 2 * x @ x.T
            nearest = distances.topk(self.neighbours, largest=False)[1]
            here = x[:, None].expand(-1, self.neighbours, -1)
            x = F.leaky_relu(layer(torch.cat([here, x[nearest] - here], -1))).amax(1)
        return self.last(x.amax(0))


class PointNet(nn.Module):
    """Each point by itself, turned by what all of them say, and the largest of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 64, 1), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.ReLU())
        self.matrix = nn.Linear(128, 9)
        body = [nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 512, 1), nn.BatchNorm1d(512)]
        self.body, self.last = nn.Sequential(*body), nn.Linear(512, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        matrix = self.matrix(self.turn(x).amax(2)).view(-1, 3, 3)
        return self.last(self.body(matrix @ x).amax(2))


class Recommender(nn.Module):
    """Embeddings of categories and their products; with factors: sums of products instead of each."""

    starts: torch.Tensor
    pairs: torch.Tensor

    def __init__(self, factors: bool, fields: int = 26, width: int = 16) -> None:
        super().__init__()
        self.factors, self.width = factors, width
        self.table = nn.Embedding(fields * 500, width)
        self.register_buffer("starts", torch.arange(fields) * 500)
        self.dense = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        count = (fields + 1) * width if factors else (fields + 1) * fields // 2 + width
        self.top = nn.Sequential(nn.Linear(count, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("pairs", torch.tril_indices(fields + 1, fields + 1, -1))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        known = self.dense(numbers)
        rows = torch.cat([known[:, None], self.table(categories + self.starts)], 1)
        if self.factors:
            products = 0.5 * (rows.sum(1) ** 2 - (rows**2).sum(1)).sum(1, keepdim=True)
            return torch.sigmoid(self.top(rows.flatten(1)) + products)
        products = (rows @ rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([known, products], 1)))


def graph(kind: str) -> Made:
    """Return a network on a random graph."""
    return Passing(kind), (torch.randn(NODES, FEATURES), torch.randint(0, NODES, (2, EDGES)))


def clicks(factors: bool, batch: int = 64) -> Made:
    """Return a recommender with a batch of visits."""
    return Recommender(factors), (torch.rand(batch, 13), torch.randint(0, 500, (batch, 26)))


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "gcn": lambda: graph("gcn"),
    "graph_sage": lambda: graph("sage"),
    "gin": lambda: graph("gin"),
    "gat": lambda: graph("gat"),
    "edge_conv": lambda: (EdgeConvolution(), (torch.randn(512, 3),)),
    "pointnet": lambda: (PointNet(), (torch.randn(4, 3, 1024),)),
    "dlrm": lambda: clicks(factors=False),
    "deep_fm": lambda: clicks(factors=True),
}
