"""A decoder's steps, one after the other: feeds of the host and of the device, with and without graphs, two threads.

    python benchmarks/first_run/decode.py [--device emulator --quick]

Every step has the same shapes: what is measured is a call, not a new plan. Caches that are fed back lie at two sets of
addresses in turn.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import kernelyard as ky
from kernelyard.errors import KernelyardError
from kernelyard.runtime.device.array import DeviceArray
from kernelyard_cuda.driver_api import CudaDriver, require_cuda

sys.path.insert(0, str(Path(__file__).parents[1]))

from on_gpu.engines import Stage
from on_gpu.models import small_step
from recipes.in_torch import Made, decoder_step

Feeds = Sequence[Any]


def compiled(made: Made, stage: Stage, dtype: torch.dtype) -> tuple[ky.Executable, list[np.ndarray]]:
    """The program on any backend, and its feeds on the host."""
    network, feeds = made
    feeds = tuple(feed.to(dtype) if feed.is_floating_point() else feed for feed in feeds)
    with torch.no_grad():
        program = torch.export.export(network.eval().to(dtype), feeds)
    return ky.compile(program, target=stage.target), [feed.numpy() for feed in feeds]


def milliseconds(machine: ky.VirtualMachine, sets: Sequence[Feeds], count: int) -> float:
    """Of a step, of so many, once six have run; their feeds are taken in turn."""
    function, turn = machine[machine.executable.main.name], itertools.cycle(sets)
    for _ in range(6):
        function(*next(turn))
    machine.wait()
    start = time.perf_counter()
    for _ in range(count):
        function(*next(turn))
    machine.wait()
    return 1e3 * (time.perf_counter() - start) / count


def told(name: str, driver: CudaDriver, measure: Callable[[], float]) -> None:
    """Print a time, and how many graphs were made meanwhile."""
    graphs: list[Callable[[], None] | None] = []
    capture = driver.capture

    def counted(run: Callable[[], None]) -> Callable[[], None] | None:
        graphs.append(capture(run))
        return graphs[-1]

    with mock.patch.object(driver, "capture", counted):
        took = measure()
    print(f"{name}: {took:.4g} ms a step, {len(graphs) - graphs.count(None)} graphs", flush=True)


def measured(exe: ky.Executable, feeds: list[np.ndarray], stage: Stage, count: int) -> None:
    """Every way."""
    driver = require_cuda(stage.device.open(), "decode")

    def machine() -> ky.VirtualMachine:
        return ky.VirtualMachine(exe, stage.device)

    near = [[DeviceArray.of(driver, feed) for feed in feeds] for _ in range(2)]
    told("feeds of the host", driver, lambda: milliseconds(machine(), [feeds], count))
    told("feeds of the device", driver, lambda: milliseconds(machine(), near[:1], count))
    told("feeds of the device at two places in turn", driver, lambda: milliseconds(machine(), near, count))
    with mock.patch.object(type(driver), "capture", return_value=None):
        told("feeds of the device, without graphs", driver, lambda: milliseconds(machine(), near[:1], count))
    shared = machine()

    def both() -> float:
        with ThreadPoolExecutor(2) as pool:
            return max(pool.map(lambda each: milliseconds(shared, [each], count), near))

    told("two threads, each", driver, both)


def main() -> int:
    """Return 1 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a small network, few steps")
    args = parser.parse_args()
    stage = Stage(args.device == "emulator")
    if not stage.is_emulator and not torch.cuda.is_available():
        print("PyTorch sees no GPU here; --device emulator --quick goes the same way without one")
        return 1
    try:
        made, dtype = (small_step(), torch.float32) if args.quick else (decoder_step(), torch.float16)
        exe, feeds = compiled(made, stage, dtype)
        measured(exe, feeds, stage, 3 if args.quick else 100)
    except KernelyardError as error:
        print(f"no step runs here: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
