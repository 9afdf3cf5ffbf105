"""The machine's roof: how many operations it carries out, and how many bytes it moves, at most, in a second.

Measured once, as large matrix products and copies, and kept in the cache of this machine.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.installed.processor import processor

SIDE = 768  # of the matrices: 7 MB for three
COPIED_NBYTES = 64 << 20  # of each thread, more than a core's part of any cache
ROUNDS = 5


def measure_roof(threads: int) -> dict[str, float]:
    """Return `gflops`, of float32, and `gbytes`, read and written in memory, per second with so many threads."""
    cache = DiskCache("roof")
    key = f"{platform.node()} {platform.machine()} {os.cpu_count()} {processor().model} {threads}"
    kept = cache.get(key)
    if kept is not None:
        return json.loads(kept)
    found = {"gflops": _gflops(threads), "gbytes": _gbytes(threads)}
    cache.put(key, json.dumps(found).encode())
    return found


def _gflops(threads: int) -> float:
    """Measure the GFLOP/s of a matmul that we compile ourselves: the BLAS in NumPy's wheel has threads of its own."""
    from kernelyard.driver.compile import compile as compile_module
    from kernelyard.ir import FunctionBuilder, IRModule

    b = FunctionBuilder()
    weights = np.ones((SIDE, SIDE), np.float32)
    product = b.op("matmul", b.input("x", (SIDE, SIDE)), weights)
    executable = compile_module(IRModule({"main": b.function(product)}))
    executable.threads = threads
    return 2 * SIDE**3 / _least(lambda: executable(weights)) / 1e9


def _gbytes(threads: int) -> float:
    arrays = [(np.ones(COPIED_NBYTES // 8), np.ones(COPIED_NBYTES // 8)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = _least(lambda: list(pool.map(lambda pair: np.copyto(*pair), arrays)))
    return 2 * threads * COPIED_NBYTES / seconds / 1e9


def _least(run: Callable[[], object]) -> float:
    run()
    times: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
