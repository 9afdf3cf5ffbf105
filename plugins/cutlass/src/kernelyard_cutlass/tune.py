"""Choosing by measuring: which of several kernels is fastest here, remembered between processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from kernelyard.runtime.api import DiskCache
from kernelyard_cutlass.kernels import Conv2dKernel, GemmKernel, Tile, to_json
from kernelyard_cutlass.tiles import Problem

CACHE = DiskCache("cutlass-tune")
WARM_UPS, ROUNDS, RUNS = 2, 3, 8
_ANY_TILE = Tile(1, 1, 1, 1, 1, 1)

Run = Callable[[], None]


def key_of(problem: Problem, kernels: Sequence[GemmKernel | Conv2dKernel], device: str) -> str:
    """Return the key of a measurement: sizes, dtype, layout, alignments, epilogue, the kernels compared, the device."""
    family = to_json(replace(kernels[0], tile=_ANY_TILE))
    compared = sorted(str(kernel.tile) for kernel in kernels)
    return json.dumps([asdict(problem), family, compared, device], sort_keys=True)


def fastest(key: str, names: Sequence[str], prepare: Callable[[int], Run], wait: Run) -> int:
    """Return the number of the fastest candidate: what was measured before, else measured now, in turns.

    names: of the candidates, as they are remembered. prepare(number): what runs one. wait: until all is done.
    """
    known = CACHE.get(key)
    if known is not None and known.decode() in names:
        return names.index(known.decode())
    runs = [prepare(number) for number in range(len(names))]
    best = [float("inf")] * len(runs)
    for run in runs:
        for _ in range(WARM_UPS):
            run()
    for _ in range(ROUNDS):
        for number, run in enumerate(runs):
            best[number] = min(best[number], _seconds(run, wait))
    number = best.index(min(best))
    CACHE.put(key, names[number].encode())
    return number


def _seconds(run: Run, wait: Run) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(RUNS):
        run()
    wait()
    return time.perf_counter() - start
