"""Engines: ways to run a network of PyTorch on a GPU, or (ours and PyTorch's own) where the emulator is."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import kernelyard as ky

Tensors = Sequence[torch.Tensor]
Run = Callable[[], Tensors]
Backends = str | list[str]


@dataclass(frozen=True)
class Stage:
    """Where engines run: a GPU, or the emulator beside PyTorch on the CPU."""

    is_emulator: bool

    @property
    def place(self) -> str:
        """PyTorch's name of it."""
        return "cpu" if self.is_emulator else "cuda"

    @property
    def device(self) -> ky.Device:
        """Ours."""
        return ky.cuda("emulator" if self.is_emulator else 0)

    @property
    def target(self) -> ky.Target:
        """The target of the device."""
        capability = (9, 0) if self.is_emulator else torch.cuda.get_device_capability()
        return ky.Target("cuda", arch="sm_{}{}".format(*capability))


def tuning(backends: Backends) -> dict[str, dict[str, bool]]:
    """The options that make libraries measure what they choose from."""
    wanted = ("cublas", "cudnn", "cutlass") if backends == "auto" else backends
    return {name: {"tune": True} for name in wanted if importlib.util.find_spec(f"kernelyard_{name}")}


def as_tuple(results: Any) -> Tensors:
    """One result, or several."""
    return results if isinstance(results, tuple) else (results,)


def kernelyard(stage: Stage, network: nn.Module, feeds: Tensors, backends: Backends, tuned: bool = False) -> Run:
    """A program of ours; feeds and results are tensors of PyTorch."""
    with torch.no_grad():
        program = torch.export.export(network.cpu(), tuple(feed.cpu() for feed in feeds))
    network.to(stage.place)
    options = tuning(backends) if tuned else {}
    exe = ky.compile(program, target=stage.target, backends=backends, options=options)
    function = ky.VirtualMachine(exe, stage.device)[exe.main.name]
    given = [feed.contiguous() for feed in feeds]

    def run() -> Tensors:
        results = as_tuple(function(*given))
        if stage.is_emulator:
            return [torch.from_numpy(each.numpy()) for each in results]
        return [torch.from_dlpack(each) for each in results]

    return run


def eager(stage: Stage, network: nn.Module, feeds: Tensors) -> Run:
    """PyTorch as it is."""
    return lambda: as_tuple(network(*feeds))


def compiled_by_torch(stage: Stage, network: nn.Module, feeds: Tensors, mode: str | None) -> Run:
    """torch.compile."""
    compiled = torch.compile(network, mode=mode)
    return lambda: as_tuple(compiled(*feeds))


def onnxruntime_on_gpu(stage: Stage, network: nn.Module, feeds: Tensors) -> Run:
    """onnxruntime's CUDA provider, with results bound to the device."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise RuntimeError("this onnxruntime has no CUDA")
    with tempfile.TemporaryDirectory(prefix="kernelyard-bench-") as folder, torch.no_grad():
        path = str(Path(folder, "model.onnx"))
        torch.onnx.export(network, tuple(feeds), path, dynamo=True, opset_version=18, verbose=False)
        session = onnxruntime.InferenceSession(path, providers=["CUDAExecutionProvider"])
    binding = session.io_binding()
    for each, feed in zip(session.get_inputs(), feeds, strict=True):
        element = np.dtype(str(feed.dtype).removeprefix("torch."))
        binding.bind_input(each.name, "cuda", 0, element, tuple(feed.shape), feed.contiguous().data_ptr())
    for each in session.get_outputs():
        binding.bind_output(each.name, "cuda")

    def run() -> Tensors:
        session.run_with_iobinding(binding)
        return [torch.from_numpy(value) for value in binding.copy_outputs_to_cpu()]

    return run


ENGINES: Mapping[str, Callable[[Stage, nn.Module, Tensors], Run]] = {
    "kernelyard": partial(kernelyard, backends="auto"),
    "kernelyard-tuned": partial(kernelyard, backends="auto", tuned=True),
    "native-cuda": partial(kernelyard, backends=[]),
    "eager": eager,
    "compile": partial(compiled_by_torch, mode=None),
    "max-autotune": partial(compiled_by_torch, mode="max-autotune"),
    "onnxruntime": onnxruntime_on_gpu,
}
ON_EMULATOR = ("kernelyard", "kernelyard-tuned", "native-cuda", "eager")


def engines_here(stage: Stage) -> list[str]:
    """Names of the engines that this machine has."""
    if stage.is_emulator:
        return list(ON_EMULATOR)
    return [name for name in ENGINES if name != "onnxruntime" or importlib.util.find_spec("onnxruntime")]
