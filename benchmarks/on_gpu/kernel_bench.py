"""KernelBench: kernels alone. Calls go round operands that are twice the second-level cache together, as one graph.

No call finds its operands in the cache of the one before, and no time is spent on launching.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from kernel_cases.case import Case
from kernels import tensor

import kernelyard as ky
from kernelyard_cuda.driver_api import require_cuda
from on_gpu.bench import made_or_failed
from on_gpu.bound import BoundProgram, Shared, replayed
from on_gpu.engines import Backends, Stage, as_tuple, tuning
from on_gpu.results import Row
from on_gpu.turns import Engine, Turns, difference

L2_NBYTES = 64 << 20  # of an H200 60 MB, of an A100 40 MB
MAX_SETS = 256  # of operands
EAGER = "eager"

# Engine -> the backends that are asked, and whether they measure what they choose from.
OURS: Mapping[str, tuple[Backends, bool]] = {
    "kernelyard": ("auto", False),
    "kernelyard-tuned": ("auto", True),
    "native-cuda": ([], False),
    "cublaslt": (["cublas"], False),  # a call of cublasLtMatmul: its first proposal, and the fastest of sixteen
    "cublaslt-tuned": (["cublas"], True),
    "cudnn": (["cudnn"], False),
    "cutlass": (["cutlass"], False),
}
KERNEL_ENGINES = (*OURS, EAGER)


class KernelBench:
    """engines: by name."""

    def __init__(self, stage: Stage, turns: Turns, engines: Sequence[str]) -> None:
        self.stage, self.turns, self.engines = stage, turns, engines

    def measure(self, name: str, case: Case) -> list[Row]:
        """Every engine on a case; one whose libraries do not take the operator has no row."""
        feeds = [spec.array() for spec in case.feeds]
        weights = [spec.array() for spec in case.weights]
        operands = [tensor(array).to(self.stage.place) for array in (*feeds, *weights)]
        assert case.torch is not None
        with torch.inference_mode():
            wanted = as_tuple(case.torch(torch, *operands)())
        count = 2 if self.stage.is_emulator else min(MAX_SETS, max(2, math.ceil(2 * L2_NBYTES / case.nbytes)))
        engines: list[Engine] = []
        failures: list[Row] = []
        for each in self.engines:

            def make(each: str = each) -> Engine | None:
                if each == EAGER:
                    return self._of_torch(case, operands, count)
                return self._ours(each, case, feeds, weights, wanted, count)

            found, failed = made_or_failed(name, each, make)
            engines += found
            failures += failed
        self.turns.take(engines)
        work, unit = (case.flops, "TFLOP/s") if case.flops else (case.nbytes, "TB/s")
        return [each.row(name, work, unit) for each in engines] + failures

    def _ours(
        self,
        name: str,
        case: Case,
        feeds: Sequence[np.ndarray],
        weights: Sequence[np.ndarray],
        wanted: Sequence[torch.Tensor],
        count: int,
    ) -> Engine | None:
        backends, tuned = OURS[name]
        options = tuning(backends) if tuned else {}
        exe = ky.compile(case.module(weights), target=self.stage.target, backends=backends, options=options)
        if isinstance(backends, list) and backends and not exe.report.regions:
            return None
        driver = require_cuda(self.stage.device.open(), name)
        shared = Shared(exe, driver)
        programs = [BoundProgram(exe, shared, feeds) for _ in range(count)]
        run, is_graph = replayed(driver, programs)
        found = [tensor(array) for array in programs[-1].results()]
        error = max(map(difference, found, wanted))
        if self.stage.is_emulator:
            return Engine(name, run, count, error=error)
        stream = torch.cuda.ExternalStream(driver.stream)
        return Engine(name, run, count, stream, error, "" if is_graph else "launched one by one, not as a graph")

    def _of_torch(self, case: Case, operands: Sequence[torch.Tensor], count: int) -> Engine:
        assert case.torch is not None
        moving = len(case.feeds)
        sets = [[each.clone() for each in operands[:moving]] + list(operands[moving:]) for _ in range(count)]
        runs = [case.torch(torch, *each) for each in sets]

        def run() -> None:
            with torch.inference_mode():
                for each in runs:
                    each()

        if self.stage.is_emulator:
            return Engine(EAGER, run, count)
        side = torch.cuda.Stream()  # as torch.cuda.graph wants it: a run on another stream first
        with torch.cuda.stream(side):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return Engine(EAGER, graph.replay, count)
