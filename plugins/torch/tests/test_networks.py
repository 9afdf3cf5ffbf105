"""Networks of many kinds by torch.export: first that oneDNN took its part, then that the numbers are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kernelyard.testing import assert_offloaded

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import torch_networks as n  # noqa: E402
from torch.export import Dim  # noqa: E402

BATCH, LENGTH = Dim("batch", min=2, max=16), Dim("length", min=2, max=32)


def image(batch: int, channels: int = 3, size: int = 32) -> Any:
    return torch.randn(batch, channels, size, size)


def tokens(batch: int, length: int, vocabulary: int = 40) -> Any:
    return torch.randint(0, vocabulary, (batch, length))


@dataclass(frozen=True)
class Case:
    """make: the model. inputs: of a batch and a length. dynamic: which sizes are open. pattern: what oneDNN runs."""

    make: Callable[[], Any]
    inputs: Callable[[int, int], tuple[Any, ...]]
    dynamic: tuple[Any, ...]
    pattern: str
    at_least: int = 1


CASES = {
    "mlp": Case(n.MLP, lambda b, s: (torch.randn(b, 16),), ({0: BATCH},), "dnnl.matmul", 3),
    "resnet": Case(n.ResNet, lambda b, s: (image(b),), ({0: BATCH},), "dnnl.conv2d", 4),
    "mobilenet": Case(n.MobileNet, lambda b, s: (image(b),), ({0: BATCH},), "dnnl.conv2d", 7),
    "convnext": Case(n.ConvNeXtBlock, lambda b, s: (image(b, 8, 14),), ({0: BATCH},), "dnnl.conv2d"),
    "unet": Case(n.UNet, lambda b, s: (image(b, 3, 16),), ({0: BATCH},), "dnnl.conv2d", 3),
    "bert": Case(
        n.BertLayer,
        lambda b, s: (tokens(b, s), (torch.arange(s) < s - 1).long().expand(b, s).contiguous()),
        ({0: BATCH, 1: LENGTH}, {0: BATCH, 1: LENGTH}),
        "dnnl.matmul",
        4,
    ),
    "gpt2": Case(n.GPT2Block, lambda b, s: (tokens(b, s),), ({0: BATCH, 1: LENGTH},), "dnnl.matmul", 4),
    "llama": Case(n.LlamaBlock, lambda b, s: (torch.randn(b, s, 32),), ({0: BATCH, 1: LENGTH},), "dnnl.matmul", 6),
    "vit": Case(n.ViT, lambda b, s: (image(b),), ({0: BATCH},), "dnnl.matmul", 4),
    "t5": Case(
        n.T5,
        lambda b, s: (tokens(b, s), tokens(b, 5)),
        ({0: BATCH, 1: LENGTH}, {0: BATCH}),
        "dnnl.matmul",
        4,
    ),
    "lstm": Case(n.Recurrent, lambda b, s: (torch.randn(b, 5, 8),), ({0: BATCH},), "dnnl.matmul", 4),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("open_sizes", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", ["dnnl", "native"])
def test_results_are_those_of_eager(name: str, open_sizes: bool, backend: str, agree: Callable[..., Any]) -> None:
    case = CASES[name]
    exe = agree(
        case.make(),
        *case.inputs(3, 7),
        dynamic_shapes=case.dynamic if open_sizes else None,
        others=[case.inputs(2, 11), case.inputs(5, 4)] if open_sizes else (),
        backends=["dnnl"] if backend == "dnnl" else [],
    )
    if backend == "dnnl":
        assert_offloaded(exe, "dnnl", case.pattern, at_least=case.at_least)
    else:
        assert "reference" not in exe.report.coverage
