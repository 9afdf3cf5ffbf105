"""Measure the overhead of a call beyond its kernels: two small programs beside onnxruntime, interleaved in one run.

    python benchmarks/overhead.py [--rounds 300] [--json FILE]

The programs are one addition of four floats and a 784-128-10 perceptron at batch 1, on one thread, each compiled for
native-cpu alone and for oneDNN through its plugin. `kernels` is what the native steps take among themselves, walked
without Python in between; `call` is `exe(x)` and `run` is `exe.run({"x": x})`, NumPy array in, Tensor out; the overhead
is `call` less `kernels`. onnxruntime, where it is installed, runs the same ONNX model: its whole call. Reported: the
10th percentile of the rounds in microseconds, and onnxruntime's over ours (above 1: ours is faster).
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

import kernelyard as ky
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BindContext, BoundTensor, NativeCall
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.program.execution_plan import ExecutionPlan

try:
    onnxruntime: Any = importlib.import_module("onnxruntime")
except ImportError:
    onnxruntime = None

BACKENDS: Mapping[str, list[str]] = {"native-cpu": [], "dnnl": ["dnnl"]}
BURST = 100  # calls in a row: the clock is read once for all
KERNEL_REPEATS = 200  # the steps that many times in one table, so that entering it once does not count

Burst = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """limit: the overhead in microseconds that a call may have."""

    name: str
    model: onnx.ModelProto
    feed: np.ndarray
    limit: float


@dataclass(frozen=True)
class Row:
    """Microseconds; ort is None without onnxruntime."""

    workload: str
    backend: str
    kernels: float
    call: float
    run: float
    limit: float
    ort: float | None

    @property
    def overhead(self) -> float:
        return self.call - self.kernels

    @property
    def ratio(self) -> float | None:
        """onnxruntime's whole call over ours."""
        return self.ort / self.call if self.ort is not None else None


def workloads() -> list[Workload]:
    """The programs, with random weights."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(0.05)

    layers = [weight(784, 128), weight(128), weight(128, 10), weight(10)]
    dense = [
        ("MatMul", ["x", "w0"], "m0"),
        ("Add", ["m0", "w1"], "a0"),
        ("Relu", ["a0"], "r0"),
        ("MatMul", ["r0", "w2"], "m1"),
        ("Add", ["m1", "w3"], "y"),
    ]
    return [
        Workload("add of 4 floats", _model([("Add", ["x", "x"], "y")], (4,), (4,), []), weight(4), 1.5),
        Workload("784-128-10 MLP", _model(dense, (1, 784), (1, 10), layers), weight(1, 784), 3.0),
    ]


def _model(
    nodes: list[tuple[str, list[str], str]], x: tuple[int, ...], y: tuple[int, ...], weights: list[np.ndarray]
) -> onnx.ModelProto:
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [output]) for op, inputs, output in nodes],
        "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, y)],
        [onnx.numpy_helper.from_array(array, f"w{number}") for number, array in enumerate(weights)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def kernels_alone(exe: ky.Executable, feed: np.ndarray) -> CallTable:
    """The program's native steps `KERNEL_REPEATS` times over, in one table."""
    program = exe.programs["main"]
    plan = ExecutionPlan(program, (feed.shape,))
    arrays: list[np.ndarray] = []
    for register, shape in zip(program.registers, plan.shapes, strict=True):
        if register.kind == "alias":
            arrays.append(arrays[register.source].reshape(shape))
        elif register.kind == "constant":
            arrays.append(exe.resident(register.digest))
        else:
            arrays.append(memory.aligned_empty(shape, register.dtype))
            arrays[-1][...] = feed if register.kind == "input" else 0
    tensors = [
        BoundTensor(memory.address_of(a), a.shape, r.dtype) for a, r in zip(arrays, program.registers, strict=True)
    ]
    scratch = memory.Workspace()
    calls = [
        exe.modules[step.module].bind(
            step.symbol, [tensors[r] for r in step.inputs + step.outputs], plan.values, BindContext(1, scratch)
        )
        for step in program.steps
    ]
    steps = [step for call in calls for step in call.steps]
    if not all(isinstance(step, NativeCall) for step in steps):
        raise SystemExit(f"{program.name} has steps that are not native")
    table = CallTable(steps * KERNEL_REPEATS)
    _KEPT.append((arrays, calls, scratch))
    return table


_KEPT: list[object] = []  # what the tables' addresses lie in


def measure(bursts: Mapping[str, tuple[Burst, int]], rounds: int) -> dict[str, float]:
    """The 10th percentile over rounds, in microseconds per call; each burst makes the number of calls beside it."""
    times: dict[str, list[float]] = {name: [] for name in bursts}
    for _ in range(rounds):
        for name, (burst, count) in bursts.items():
            start = time.perf_counter()
            burst()
            times[name].append((time.perf_counter() - start) / count)
    return {name: float(np.percentile(each, 10)) * 1e6 for name, each in times.items()}


def _calls(function: Callable[[], object]) -> tuple[Burst, int]:
    def burst() -> None:
        for _ in range(BURST):
            function()

    return burst, BURST


def rows_of(workload: Workload, rounds: int) -> list[Row]:
    """The workload for every set of backends, and onnxruntime, in turns."""
    feed, feeds = workload.feed, {"x": workload.feed}
    bursts: dict[str, tuple[Burst, int]] = {"nothing": _calls(lambda: None)}
    expected: np.ndarray | None = None
    if onnxruntime is not None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(workload.model.SerializeToString(), options, ["CPUExecutionProvider"])
        (expected,) = session.run(None, feeds)
        bursts["ort"] = _calls(lambda: session.run(None, feeds))
    for name, backends in BACKENDS.items():
        exe = ky.compile(workload.model, backends=backends)
        exe.threads = 1
        result: Any = exe(feed)
        if expected is not None:
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)
        bursts[f"{name} kernels"] = (kernels_alone(exe, feed).run, KERNEL_REPEATS)
        bursts[f"{name} call"] = _calls(lambda exe=exe: exe(feed))
        bursts[f"{name} run"] = _calls(lambda exe=exe: exe.run(feeds))
    found = measure(bursts, rounds)
    loop = found["nothing"]  # calling a lambda in a loop is the benchmark's, not the engines'
    ort = found["ort"] - loop if "ort" in found else None
    return [
        Row(
            workload.name,
            name,
            found[f"{name} kernels"],
            found[f"{name} call"] - loop,
            found[f"{name} run"] - loop,
            workload.limit,
            ort,
        )
        for name in BACKENDS
    ]


def show(rows: list[Row]) -> None:
    """Print the table."""
    table = Table(
        "program", "backend", "kernels µs", "exe(x) µs", "overhead µs", "limit µs", "exe.run µs", "ort µs", "ort / ours"
    )
    for row in rows:
        numbers = (row.kernels, row.call, row.overhead, row.limit, row.run, row.ort, row.ratio)
        table.add_row(row.workload, row.backend, *("-" if number is None else f"{number:.2f}" for number in numbers))
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [row for workload in workloads() for row in rows_of(workload, arguments.rounds)]
    show(rows)
    if arguments.json is not None:
        facts = [{**vars(row), "overhead": row.overhead, "ratio": row.ratio} for row in rows]
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
