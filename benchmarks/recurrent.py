"""Recurrent layers beside onnxruntime and OpenVINO, in turns in one process.

    python benchmarks/recurrent.py [--threads 1] [--steps 20 100 300 open] [--batch 1 8] [--hidden 64 128 256 512]
                                   [--kinds LSTM GRU] [--direction forward] [--rounds 10] [--json FILE]
    python benchmarks/recurrent.py --kinds DynamicQuantizeLSTM
    python benchmarks/recurrent.py --kinds Scan

One layer with as many inputs as hidden elements. `open`: the length is symbolic, and that of the feed is 100. A burst
of calls of one engine follows one of another; times are the least of a call in all bursts, in milliseconds. The last
columns: the time of the faster peer over ours, above 1 where ours is faster, and the largest difference to
onnxruntime's results. DynamicQuantizeLSTM: what onnxruntime's quantize_dynamic makes of an LSTM; OpenVINO does not
read it. Scan: a cell that the model writes out itself.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from recipes.scanned import scanned_cell

import kernelyard as ky

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1, "DynamicQuantizeLSTM": 4, "Scan": 1}
OPEN_STEPS = 100
BURST_SECONDS = 0.02
PAUSE_SECONDS = 0.002  # threads that spin go to sleep
Call = Callable[[], Sequence[Any]]


@dataclass(frozen=True)
class Case:
    """A layer, of a kind of `GATES`; steps: of its input, 0 where the length is symbolic."""

    kind: str
    steps: int
    batch: int
    hidden: int
    direction: str
    threads: int

    @property
    def label(self) -> str:
        """The case as it is printed."""
        steps = f"{self.steps:4}" if self.steps else "open"
        return f"{self.kind:4} {steps} steps, batch {self.batch:2}, hidden {self.hidden:4}"

    def model(self) -> onnx.ModelProto:
        """The layer as a model of ONNX."""
        if self.kind == "DynamicQuantizeLSTM":
            return quantized(replace(self, kind="LSTM").model())
        if self.kind == "Scan":
            return scanned_cell(self.steps or "steps", self.batch, self.hidden)
        rng, helper = np.random.default_rng(0), onnx.helper
        count, rows = 1 + (self.direction == "bidirectional"), GATES[self.kind] * self.hidden
        shapes = {"w": (count, rows, self.hidden), "r": (count, rows, self.hidden), "b": (count, 2 * rows)}
        bound = 1 / math.sqrt(self.hidden)
        weights = {name: rng.uniform(-bound, bound, shape).astype(np.float32) for name, shape in shapes.items()}
        more = {"linear_before_reset": 1} if self.kind == "GRU" else {}
        node = helper.make_node(
            self.kind, ["x", *weights], ["y"], hidden_size=self.hidden, direction=self.direction, **more
        )
        shape = (self.steps or "steps", self.batch, self.hidden)
        graph = helper.make_graph(
            [node],
            "layer",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with 8-bit weights."""
    from onnxruntime.quantization import quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        quantize_dynamic(model, path)
        return onnx.load(path)


@dataclass(frozen=True)
class Row:
    """Milliseconds of a call by engine; difference: to onnxruntime's results."""

    case: Case
    milliseconds: dict[str, float]
    difference: float

    @property
    def ratio(self) -> float:
        """The time of the faster peer over ours."""
        peers = (time for name, time in self.milliseconds.items() if name != "kernelyard")
        return min(peers) / self.milliseconds["kernelyard"]

    @property
    def text(self) -> str:
        """The row as it is printed."""
        times = " ".join(f"{name} {time:8.3f}" for name, time in self.milliseconds.items())
        return f"{self.case.label}  {times}  {self.ratio:6.2f}  {self.difference:.0e}"


def engines(case: Case, x: np.ndarray) -> Iterator[tuple[str, Call]]:
    """Yield a call of each engine that is installed."""
    model = case.model()
    program = ky.compile(model)
    program.threads = case.threads
    yield "kernelyard", lambda: [y.numpy() for y in program.run({"x": x}).values()]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = case.threads
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    yield "onnxruntime", lambda: session.run(None, {"x": x})
    if case.kind == "DynamicQuantizeLSTM":
        return
    try:
        openvino: Any = importlib.import_module("openvino")
    except ImportError:
        return
    how = {"INFERENCE_NUM_THREADS": case.threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.compile_model(openvino.Core().read_model(data, b""), "CPU", how).create_infer_request()
    yield "openvino", lambda: list(request.infer({"x": x}).values())


def measure(case: Case, rounds: int) -> Row:
    """Call the engines in turns."""
    x = np.random.default_rng(1).standard_normal((case.steps or OPEN_STEPS, case.batch, case.hidden), np.float32)
    calls = dict(engines(case, x))
    results = {name: call()[0] for name, call in calls.items()}
    difference = float(np.abs(results["kernelyard"] - results["onnxruntime"]).max(initial=0))
    found = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            end = time.perf_counter() + BURST_SECONDS
            while (start := time.perf_counter()) < end:
                call()
                found[name] = min(found[name], time.perf_counter() - start)
            time.sleep(PAUSE_SECONDS)
    return Row(case, {name: 1e3 * best for name, best in found.items()}, difference)


def main() -> None:
    """Measure the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", nargs="+", default=["20", "100", "300", "open"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--kinds", nargs="+", default=["LSTM", "GRU"], choices=list(GATES))
    parser.add_argument("--direction", default="forward", choices=["forward", "reverse", "bidirectional"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    for kind in args.kinds:
        for steps in (0 if each == "open" else int(each) for each in args.steps):
            for batch in args.batch:
                for hidden in args.hidden:
                    case = Case(kind, steps, batch, hidden, args.direction, args.threads)
                    rows.append(measure(case, args.rounds))
                    print(rows[-1].text, flush=True)
    for steps in dict.fromkeys(row.case.steps for row in rows):
        ratios = [row.ratio for row in rows if row.case.steps == steps]
        mean = statistics.geometric_mean(ratios)
        print(f"{steps or 'open'} steps: geometric mean {mean:.2f}, least {min(ratios):.2f}")
    if args.json:
        facts = [asdict(row) | {"ratio": row.ratio} for row in rows]
        args.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
