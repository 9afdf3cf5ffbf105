"""Write networks of PyTorch as ONNX models with random weights and feeds.

    python -m recipes.zoo.torch_models FOLDER NAME ...

The libraries are imported once; each network is then made in a process of its own, with a limit of time.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from recipes.zoo.catalogue import split

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
SECONDS = 300
NEWLINE = "\n"
OPSET = 17, 18  # of the exporter that traces, and of that which compiles Python


class _Flat(nn.Module):
    """A network whose results are one tuple of the tensors with numbers in them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *feeds: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_tensors(self.network(*feeds)))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def with_random_statistics(network: nn.Module) -> nn.Module:
    """Fill the running statistics of batch norms, as training would, and scales that begin at 0."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            if module.affine:
                module.weight.data.uniform_(0.5, 1.0)
    return network


def write(name: str, folder: Path) -> str:
    """NAME.onnx and NAME.npz (feeds) into a folder; returns which exporter wrote it. Raises: what both exporters do."""
    kind, architecture = split(name)
    torch.manual_seed(0)
    with torch.no_grad():
        network, feeds = importlib.import_module(f"recipes.zoo.{kind}_networks").make(architecture)
        flat = _Flat(with_random_statistics(network)).eval()
        results = flat(*feeds)
        if not results or not all(bool(torch.isfinite(result).all()) for result in results):
            raise ValueError(f"{name} gives {[tuple(result.shape) for result in results]}, expected finite numbers")
        path = folder / f"{name}.onnx"
        exporter = _export(flat, feeds, path)
    model = onnx.load(path, load_external_data=False)
    known = {value.name for value in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in known]
    order = [int(name.split("_")[1]) for name in inputs]  # feeds that nothing reads are left out
    np.savez(path.with_suffix(".npz"), **{name: feeds[at].numpy() for name, at in zip(inputs, order, strict=True)})
    return exporter


def _export(network: nn.Module, feeds: tuple[torch.Tensor, ...], path: Path) -> str:
    names = [f"feed_{at}" for at in range(len(feeds))]
    common = {"input_names": names, "verbose": False, "external_data": False}
    try:
        torch.onnx.export(network, feeds, str(path), dynamo=False, opset_version=OPSET[0], **common)
    except Exception:  # whatever the older exporter stumbles over, the newer one may take
        path.unlink(missing_ok=True)
        torch.onnx.export(network, feeds, str(path), dynamo=True, opset_version=OPSET[1], **common)
        return "dynamo"
    return "trace"


def _run(name: str, folder: Path) -> None:
    channel = os.fdopen(os.dup(1), "w")
    for number in (1, 2):  # an exporter that fails prints the graph, from C++
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    try:
        said = write(name, folder)
    except Exception as error:
        (folder / f"{name}.txt").write_text(traceback.format_exc(), encoding="utf-8")
        said = f"not made: {type(error).__name__}: {str(error).strip().partition(NEWLINE)[0][:200]}"
    print(f"{name}: {said}", file=channel, flush=True)


def main(folder: Path, names: list[str]) -> None:
    """Make those that are not there yet."""
    torch.set_num_threads(1)
    for kind in dict.fromkeys(split(name)[0] for name in names):
        importlib.import_module(f"recipes.zoo.{kind}_networks")
    folder.mkdir(parents=True, exist_ok=True)
    fork = multiprocessing.get_context("fork")
    for name in names:
        if (folder / f"{name}.npz").exists():
            continue
        process = fork.Process(target=_run, args=(name, folder))
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
            (folder / f"{name}.txt").write_text(f"not made within {SECONDS} s\n", encoding="utf-8")
            print(f"{name}: not made within {SECONDS} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
