"""Engines: ways to run a network of PyTorch on a GPU, or (ours and PyTorch) where the emulator is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Results = Sequence[torch.Tensor]
Run = Callable[[], Results]


def as_tuple(results: Any) -> Results:
    """One result, or several."""
    return results if isinstance(results, tuple) else (results,)


def compiled_by_torch(network: nn.Module, feeds: Results) -> Run:
    """torch.compile at its best."""
    compiled = torch.compile(network, mode="max-autotune")
    return lambda: as_tuple(compiled(*feeds))


def onnxruntime_on_gpu(network: nn.Module, feeds: Results) -> Run:
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

    def run() -> Results:
        session.run_with_iobinding(binding)
        return [torch.from_numpy(value) for value in binding.copy_outputs_to_cpu()]

    return run
