"""From an ONNX file to a program that is ready to run: time and memory, beside a session of onnxruntime.

    python benchmarks/import_time.py model.onnx [...] [--runs 3] [--json out.json]
    python benchmarks/import_time.py --nodes 100 1000 10000

Each run is a process of its own, the two engines in turns. Time counts from the interpreter's start, imports included,
to the machine that is ready for its first run: by the clock, and the processor's of all threads (by stage that of the
main thread, while others take digests of weights). Memory is the largest
resident set, less that of the bare interpreter. Of the runs the least of each is shown. Without files it is how import
and compilation grow with the nodes, in one process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 2**20
RESIDENT_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
STAGES = {  # functions, and the file of the driver that calls them
    **dict.fromkeys(("simplify", "place", "offload", "generate", "link"), "compile"),
    **dict.fromkeys(("import_model", "build_report"), "session.session"),
}
NODES = (100, 1_000, 10_000)
WIDTH = 16


def peak() -> int:
    """The largest resident set so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RESIDENT_UNIT


def timed(owner: Any, name: str, seconds: dict[str, float]) -> None:
    """Have a function add the time that it takes."""
    function: Callable[..., Any] = getattr(owner, name)

    def wrapper(*args: Any) -> Any:
        start = time.thread_time()
        try:
            return function(*args)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.thread_time() - start

    setattr(owner, name, wrapper)


def kernelyard_ready(path: str) -> dict[str, float]:
    """Compile a file and load it; the main thread's seconds by stage."""
    from kernelyard.runtime.execute.virtual_machine import VirtualMachine  # inside, because imports are measured too

    driver = importlib.import_module("kernelyard.driver.compile")
    seconds: dict[str, float] = {"imports": time.thread_time()}
    for name, file in STAGES.items():
        timed(importlib.import_module(f"kernelyard.driver.{file}"), name, seconds)
    VirtualMachine(driver.compile(path))
    return seconds


def onnxruntime_ready(path: str) -> dict[str, float]:
    """Make a session of a file."""
    import onnxruntime

    seconds = {"imports": time.thread_time()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return seconds


ENGINES = {"kernelyard": kernelyard_ready, "onnxruntime": onnxruntime_ready}


def child(engine: str, path: str) -> None:
    """One run, in a process of its own: what it measured as JSON on the last line."""
    bare = peak()
    stages = ENGINES[engine](path)
    wall, processor = time.perf_counter() - STARTED, time.process_time()
    print(json.dumps({"seconds": wall, "processor": processor, "bytes": peak() - bare, "stages": stages}))


def measured(path: str, runs: int) -> dict[str, dict[str, Any]]:
    """The least of each number over the runs, by engine."""
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for _ in range(runs):
        for engine in ENGINES:
            command = [sys.executable, __file__, "--child", engine, path]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found[engine].append(json.loads(text.splitlines()[-1]))
    return {
        engine: {
            **{name: min(run[name] for run in each) for name in ("seconds", "processor", "bytes")},
            "stages": {name: min(run["stages"][name] for run in each) for name in each[0]["stages"]},
        }
        for engine, each in found.items()
    }


def size_of(path: str) -> int:
    """Bytes of a model, with those of the files beside it that hold its weights."""
    import onnx

    from kernelyard_onnx.model_file import read_model
    from kernelyard_onnx.outline import INSIDE

    tensors = read_model(path)[0].graph.initializer
    entries = [
        {e.key: e.value for e in t.external_data} for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL
    ]
    beside = {entry["location"] for entry in entries} - {INSIDE}
    return os.path.getsize(path) + sum((Path(path).parent / location).stat().st_size for location in beside)


def report(path: str, found: dict[str, dict[str, Any]]) -> None:
    """Print what was measured of one model."""
    size = size_of(path)
    print(f"{path}: {size / MEGABYTE:.0f} MB")
    print(f"  {'':12} {'seconds':>8} {'processor':>10} {'peak MB':>8} {'of model':>9}")
    for engine, run in found.items():
        numbers = f"{run['seconds']:8.2f} {run['processor']:10.2f} {run['bytes'] / MEGABYTE:8.0f}"
        print(f"  {engine:12} {numbers} {run['bytes'] / size:8.2f}x")
    stages = found["kernelyard"]["stages"]
    print("  " + ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in stages.items()))


def chain(nodes: int) -> bytes:
    """A network of layers, each with weights of its own, residuals, and softmax now and then."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    made, weights, random = [], [], np.random.default_rng(0)
    for n in range(nodes):
        kind = ("MatMul", "Add", "Relu", "Add", "Softmax", "Tanh")[n % 6]
        inputs = [f"t{n}"]
        if n % 6 < 2:
            weights.append(numpy_helper.from_array(random.standard_normal((WIDTH,) * (2 - n % 6), np.float32), f"w{n}"))
            inputs.append(f"w{n}")
        elif n % 6 == 3:
            inputs.append(f"t{n - 3}")
        made.append(helper.make_node(kind, inputs, [f"t{n + 1}"]))
    ends = [helper.make_tensor_value_info(f"t{n}", onnx.TensorProto.FLOAT, ["n", WIDTH]) for n in (0, nodes)]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def growth(counts: list[int]) -> dict[int, dict[str, float]]:
    """Processor milliseconds for each node, by how many there are."""
    import kernelyard as ky
    from kernelyard_onnx.frontend import ONNXFrontend

    ky.compile(chain(12))
    found: dict[int, dict[str, float]] = {}
    for count in counts:
        data = chain(count)
        start = time.process_time()
        module = ONNXFrontend().import_model(data, {})
        middle = time.process_time()
        ky.compile(module)
        end = time.process_time()
        found[count] = {"import": 1e3 * (middle - start) / count, "compile": 1e3 * (end - middle) / count}
        print(f"{count:6} nodes:", ", ".join(f"{what} {ms:.3f} ms each" for what, ms in found[count].items()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--nodes", type=int, nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.models[0])
        return
    results: dict[str, Any] = {}
    for path in arguments.models:
        results[path] = measured(path, arguments.runs)
        report(path, results[path])
    if arguments.nodes is not None or not arguments.models:
        results["nodes"] = growth(arguments.nodes or list(NODES))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


STARTED = time.perf_counter() - time.process_time()  # about when the interpreter was started

if __name__ == "__main__":
    main()
