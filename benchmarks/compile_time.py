"""Where the time of a compile goes, on native-cpu alone: stages of a model, and how they grow with its kernels.

    python benchmarks/compile_time.py [model.onnx ...] [--runs 3]

Without a model it is an encoder of BERT-base's sizes, made here. The cache of kernels is off, but for the line that
says so. Reported is the least processor time of the runs; passes are measured by the clock.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims
from kernelyard.driver.session.import_model import import_model
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.transform.pass_infra.instruments import TimingInstrument
from kernelyard.transform.pass_infra.pass_base import PassContext
from kernelyard_native_cpu import _native, generator

LAYERS, ROWS, WIDTH, HEADS = 12, 128, 768, 12
KERNEL_STAGES = ("legalize", "fuse", "schedule, LLVM text", "LLVM")
COUNTS = (50, 100, 200, 400)  # of kernels, to see how the time grows


def encoder() -> IRModule:
    """BERT-base's encoder with weights of its own in each layer."""
    b, rng = FunctionBuilder(), np.random.default_rng(0)

    def linear(x: Var, size: int) -> Var:
        weight = rng.standard_normal((dims.evaluate(x.tensor_type.shape[-1], {}), size), np.float32) * np.float32(0.02)
        return b.op("add", b.op("matmul", x, weight), np.zeros(size, np.float32))

    def heads(x: Var) -> Var:
        split = b.op("reshape", x, shape=(1, ROWS, HEADS, WIDTH // HEADS))
        return b.op("permute_dims", split, axes=(0, 2, 1, 3))

    def norm(x: Var) -> Var:
        return b.op("nn.layer_norm", x, np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32), axes=(2,))

    x = first = b.input("x", (1, ROWS, WIDTH))
    for _ in range(LAYERS):
        q, k, v = (heads(linear(x, WIDTH)) for _ in range(3))
        scores = b.op("multiply", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 1, 3, 2))), 0.125)
        mixed = b.op("permute_dims", b.op("matmul", b.op("nn.softmax", scores, axis=3), v), axes=(0, 2, 1, 3))
        x = norm(b.op("add", linear(b.op("reshape", mixed, shape=(1, ROWS, WIDTH)), WIDTH), x))
        x = norm(b.op("add", linear(b.op("nn.gelu", linear(x, 4 * WIDTH)), WIDTH), x))
    assert x is not first
    return IRModule({"main": b.function(x)})


def kernels(count: int) -> IRModule:
    """So many kernels, no two the same."""
    b = FunctionBuilder()
    x = b.input("x", (8, 4))
    results = []
    for n in range(count):
        part = b.op("pad", x, pads=(0, 0, 0, n), mode="constant")
        results.append(b.op("nn.softmax", b.op("tanh", part), axis=1))
    return IRModule({"main": b.function(*results)})


@contextmanager
def counted(owner: Any, name: str, seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time that a function takes to a stage."""
    function: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any) -> Any:
        start = time.process_time()
        try:
            return function(*args)
        finally:
            seconds[stage] = seconds.get(stage, 0.0) + time.process_time() - start

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, function)


def stages(model: object) -> tuple[dict[str, float], int]:
    """Seconds by stage of one compile, and how many kernels there are."""
    seconds: dict[str, float] = {}
    passes = TimingInstrument()
    start = time.process_time()
    module = import_model(get_manager(), model, {})
    seconds["import"] = time.process_time() - start
    start = time.process_time()
    with (
        PassContext(instruments=[passes]),
        counted(generator, "write_module", seconds, "schedule, LLVM text"),
        counted(_native, "compile_object", seconds, "LLVM"),
    ):
        exe = ky.compile(module, backends=[], strict=True)
    whole = time.process_time() - start
    own = {"legalize_ops": "legalize", "fuse_ops": "fuse", "fuse_tir": "fuse"}
    for timing in passes.times:
        if timing.name in own:
            seconds[own[timing.name]] = seconds.get(own[timing.name], 0.0) + timing.seconds
    seconds["all kernels"] = sum(seconds.get(stage, 0.0) for stage in KERNEL_STAGES)
    seconds["everything"] = whole + seconds["import"]
    return seconds, len(exe.report.kernels)


def least(model: object, runs: int) -> tuple[dict[str, float], int]:
    """The least time of each stage over some compiles."""
    found = [stages(model) for _ in range(runs)]
    return {stage: min(seconds[stage] for seconds, _ in found) for stage in found[0][0]}, found[0][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["KERNELYARD_CACHE_MB"] = "0"
    for name, model in [(path, path) for path in arguments.models] or [("an encoder of BERT-base's sizes", encoder())]:
        seconds, count = least(model, arguments.runs)
        print(f"{name}: {count} kernels")
        for stage, time_of_stage in seconds.items():
            print(f"  {stage:20} {1e3 * time_of_stage:7.0f} ms")
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {"KERNELYARD_CACHE_DIR": folder, "KERNELYARD_CACHE_MB": "100"}
            stages(model)
            seconds, _ = stages(model)
            print(f"  {'everything, cached':20} {1e3 * seconds['everything']:7.0f} ms")
        os.environ["KERNELYARD_CACHE_MB"] = "0"
    print("all kernels, by how many there are")
    for count in COUNTS:
        seconds, found = least(kernels(count), 1)
        print(f"  {found:4} {1e3 * seconds['all kernels']:7.0f} ms, {1e3 * seconds['all kernels'] / found:.2f} each")


if __name__ == "__main__":
    main()
