"""Run the fuzzer's graphs, written as ONNX, by onnxruntime and OpenVINO, and hold these against the same reference.

    python benchmarks/fuzz_peers.py --graphs 500

A difference is a hint, not yet a fault of theirs: the writer may say it wrongly, or ONNX may leave it open.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime

from kernelyard import dtypes
from kernelyard.errors import KernelyardError
from kernelyard_fuzz.bound import compute_expected
from kernelyard_fuzz.graphs import Graph, Recipe, graph_of_seed
from kernelyard_onnx_export import to_onnx

Feeds = dict[str, np.ndarray]


def onnxruntime_outputs(model: bytes, feeds: Feeds) -> list[np.ndarray]:
    """Return what onnxruntime computes, with one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    known = {each.name for each in session.get_inputs()}
    results = session.run(None, {name: feed for name, feed in feeds.items() if name in known})
    return [np.asarray(result) for result in results]


def openvino_outputs(model: bytes, feeds: Feeds) -> list[np.ndarray]:
    """Return what OpenVINO computes, with one thread, in the precision of the model."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    named = {name: feed for name, feed in feeds.items() if any(name in port.names for port in compiled.inputs)}
    results = compiled(named)
    # Its arrays of bfloat16 call themselves float16.
    narrow = dtypes.to_numpy("bfloat16")
    arrays = [(np.asarray(results[port]), port.element_type.to_string()) for port in compiled.outputs]
    return [array.view(narrow) if dtype == "bf16" else array for array, dtype in arrays]


PEERS: dict[str, Callable[[bytes, Feeds], list[np.ndarray]]] = {
    "onnxruntime": onnxruntime_outputs,
    "openvino": openvino_outputs,
}
NO_FLOAT64 = ("openvino",)


def tried(graph: Graph, model: bytes, peers: Sequence[str]) -> dict[str, str]:
    """Return by peer what came of a graph: "agrees", "refuses", "differs" or "not asked", and why."""
    results = compute_expected(graph.module, graph.feeds, runs=16)
    names = [param.name for param in graph.module["main"].params]  # pyright: ignore[reportAttributeAccessIssue]
    feeds = dict(zip(names, graph.feeds, strict=True))
    found: dict[str, str] = {}
    for peer in peers:
        if peer in NO_FLOAT64 and "float64" in str(graph.module):
            found[peer] = "not asked: it computes float64 in float32"
            continue
        try:
            outputs = PEERS[peer](model, feeds)
        except Exception as error:  # whatever a peer raises, it does not run the model
            found[peer] = f"refuses: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            continue
        pairs = enumerate(zip(results, outputs, strict=True))
        worst = max(((each.worst(output), at) for at, (each, output) in pairs), default=(0.0, 0))
        found[peer] = "agrees" if worst[0] <= 1 else f"differs: output {worst[1]}, {worst[0]:.3g} times the bound"
    return found


def main() -> None:
    """Print what differs, and how many graphs agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=3, help="operators of a graph: few, so that a find is small")
    parser.add_argument("--peers", default="onnxruntime,openvino")
    given = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    recipe, start = Recipe(smallest=1, largest=given.largest), time.process_time()
    for seed in range(given.seed, given.seed + given.graphs):
        graph = graph_of_seed(seed, recipe)
        try:
            model = to_onnx(graph.module).SerializeToString()
        except KernelyardError:
            counts["writer", "cannot say it"] += 1
            continue
        for peer, verdict in tried(graph, model, given.peers.split(",")).items():
            counts[peer, verdict.partition(":")[0]] += 1
            if verdict != "agrees":
                print(f"seed {seed}: {peer} {verdict}", flush=True)
    for (peer, verdict), count in sorted(counts.items()):
        print(f"{peer} {verdict}: {count}")
    print(f"{given.graphs / (time.process_time() - start):.1f} graphs per second of processor time")


if __name__ == "__main__":
    main()
