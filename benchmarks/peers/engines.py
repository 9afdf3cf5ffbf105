"""The engines that are compared. Each makes a model ready and gives what runs it: arrays in, arrays out, as users do.

Only the engine that is asked for is imported: each runs in a process of its own.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], Sequence[np.ndarray]]
Feeds = Mapping[str, np.ndarray]


def kernelyard(model: Path, feeds: Feeds, threads: int, backends: str = "auto", precision: str = "float32") -> Run:
    """backends: "auto", or names with commas ("" for our own kernels alone)."""
    import kernelyard as ky

    chosen = backends if backends == "auto" else [name for name in backends.split(",") if name]
    if model.suffix == ".kyar":
        exe = ky.load(model)
    else:
        exe = ky.compile(model, target="cpu", backends=chosen, precision=precision)
    exe.threads = threads
    given = dict(feeds)
    return lambda: [tensor.numpy() for tensor in exe.run(given).values()]


def onnxruntime(model: Path, feeds: Feeds, threads: int) -> Run:
    """With its default optimisations."""
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    given = dict(feeds)
    return lambda: session.run(None, given)


def openvino(model: Path, feeds: Feeds, threads: int, precision: str | None = "f32") -> Run:
    """precision: "f32"; None for what it takes by itself, which is bfloat16 where the CPU has it."""
    ov = importlib.import_module("openvino")
    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    if precision is not None:
        config["INFERENCE_PRECISION_HINT"] = precision
    core = ov.Core()
    compiled = core.compile_model(core.read_model(str(model)), "CPU", config)
    request = compiled.create_infer_request()
    given = [next(feeds[name] for name in port.names if name in feeds) for port in compiled.inputs]
    outputs = compiled.outputs

    def run() -> list[np.ndarray]:
        results = request.infer(given)
        return [results[port] for port in outputs]

    return run


def torch(model: Path, feeds: Feeds, threads: int, is_compiled: bool = False) -> Run:
    """Run what `torch.export` wrote beside the model; is_compiled: by torch.compile, with frozen weights."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if is_compiled:
        os.environ["TORCHINDUCTOR_FREEZING"] = "1"
    library = importlib.import_module("torch")
    library.set_num_threads(threads)
    program = model.with_suffix(".pt2")
    if not program.exists():
        raise FileNotFoundError("the model is not written in PyTorch")
    network = library.export.load(program).module()
    given = [library.from_numpy(array) for array in feeds.values()]
    context = library.no_grad if is_compiled else library.inference_mode  # freezing wants the former
    if is_compiled:
        network = library.compile(network)

    def run() -> list[np.ndarray]:
        with context():
            results = network(*given)
        return [each.numpy() for each in (results if isinstance(results, tuple) else (results,))]

    return run


def tvm(model: Path, feeds: Feeds, threads: int) -> Run:
    """With its default build for this CPU."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    library, onnx = importlib.import_module("tvm"), importlib.import_module("onnx")
    relax = importlib.import_module("tvm.relax")
    graph = importlib.import_module("tvm.relax.frontend.onnx").from_onnx(onnx.load(str(model)))
    cpu = library.get_global_func("target.llvm_get_system_cpu")()
    target = library.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
    main = relax.VirtualMachine(library.compile(graph, target=target), library.cpu())["main"]
    tensor, given = library.runtime.tensor, list(feeds.values())

    def run() -> list[np.ndarray]:
        results = main(*map(tensor, given))
        return [each.numpy() for each in ([results] if isinstance(results, library.runtime.Tensor) else results)]

    return run


ENGINES: Mapping[str, Callable[[Path, Feeds, int], Run]] = {
    "kernelyard": kernelyard,
    "kernelyard bf16": lambda model, feeds, threads: kernelyard(model, feeds, threads, precision="bf16"),
    "native-cpu": lambda model, feeds, threads: kernelyard(model, feeds, threads, ""),
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "openvino bf16": lambda model, feeds, threads: openvino(model, feeds, threads, None),
    "torch": torch,
    "torch.compile": lambda model, feeds, threads: torch(model, feeds, threads, is_compiled=True),
    "tvm": tvm,
}
# Whose version is told, and imported first.
DISTRIBUTIONS = {
    "kernelyard": "kernelyard",
    "kernelyard bf16": "kernelyard",
    "native-cpu": "kernelyard",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "openvino bf16": "openvino",
    "torch": "torch",
    "torch.compile": "torch",
    "tvm": "apache-tvm",
}
# What is imported before the clock of getting ready starts, where it is not the distribution's own name.
MODULES = {"kernelyard": "kernelyard.driver.compile", "native-cpu": "kernelyard.driver.compile", "tvm": "tvm"}
