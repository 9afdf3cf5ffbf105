"""The networks that are written in PyTorch, by name, with what they are fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from recipes.cnns import mobilenet_v2, resnet, squeezenet, with_random_norms
from recipes.language import DecoderStep, Encoder, LargeBlock

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Sum(nn.Module):
    """x + y."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def mlp(batch: int) -> Made:
    """784-128-10, for handwritten digits."""
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), (torch.randn(batch, 784),)


def image_network(network: nn.Module, batch: int = 1) -> Made:
    """With one batch of images."""
    return with_random_norms(network), (torch.randn(batch, 3, 224, 224),)


def encoder(layers: int, width: int, inner: int, batch: int = 1, length: int = 128) -> Made:
    """With whole sequences of random words."""
    ids = torch.randint(0, 30522, (batch, length))
    return Encoder(layers, width, 12, inner), (ids, torch.ones_like(ids), torch.zeros_like(ids))


def decoder_step(cached: int = 256, batch: int = 1) -> Made:
    """With a cache of that many tokens."""
    step = DecoderStep()
    past = tuple(torch.randn(batch, 12, cached, 64) for _ in range(2 * len(step.layers)))
    return step, (torch.randint(0, 50257, (batch, 1)), torch.full((batch, 1), cached), *past)


def large_block(length: int = 64, batch: int = 1) -> Made:
    """With that many tokens."""
    places = torch.arange(length)[None].expand(batch, -1).contiguous()
    return LargeBlock(length=length), (torch.randn(batch, length, 2048), places)


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "add4": lambda: (Sum(), (torch.randn(4), torch.randn(4))),
    "mlp_b1": lambda: mlp(1),
    "mlp_b32": lambda: mlp(32),
    "mlp_b1024": lambda: mlp(1024),
    "squeezenet11": lambda: image_network(squeezenet()),
    "mobilenetv2": lambda: image_network(mobilenet_v2()),
    "resnet18": lambda: image_network(resnet(18)),
    "resnet50": lambda: image_network(resnet(50)),
    "minilm_s128": lambda: encoder(6, 384, 1536),
    "bert_base_s128": lambda: encoder(12, 768, 3072),
    "gpt2_step_kv256": decoder_step,
    "llama_block_s64": large_block,
}


def make(name: str) -> Made:
    """A network for inference and its feeds, the same each time."""
    torch.manual_seed(0)
    with torch.no_grad():
        network, feeds = NETWORKS[name]()
    return network.eval(), feeds


def write(name: str, folder: Path) -> None:
    """NAME.onnx, NAME.pt2 (`torch.export`) and NAME.npz (feeds, in order) into a folder."""
    network, feeds = make(name)
    with torch.no_grad():
        torch.export.save(torch.export.export(network, feeds), folder / f"{name}.pt2")
        program = torch.onnx.export(network, feeds, dynamo=True, opset_version=18, verbose=False)
    assert program is not None
    program.save(folder / f"{name}.onnx")
    names = [str(value.name) for value in program.model.graph.inputs]
    arrays = dict(zip(names, (feed.numpy() for feed in feeds), strict=True))
    np.savez(folder / f"{name}.npz", **arrays)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    import sys

    write(sys.argv[1], Path(sys.argv[2]))
