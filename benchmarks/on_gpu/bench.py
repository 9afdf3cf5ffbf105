"""Bench: engines take turns on a network, in one process."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from recipes.in_torch import Made
from torch import nn

import kernelyard as ky
from on_gpu.engines import Results, Run, as_tuple, compiled_by_torch, onnxruntime_on_gpu
from on_gpu.results import Row


@dataclass
class Engine:
    """A way to run a network. milliseconds: of each turn's calls."""

    name: str
    run: Run
    milliseconds: list[float] = field(default_factory=list)
    error: float = 0.0


class Bench:
    """device: "cuda" or "emulator"."""

    def __init__(self, device: str, rounds: int, burst_seconds: float) -> None:
        self.is_emulator = device == "emulator"
        self.place = "cpu" if self.is_emulator else "cuda"
        self.rounds, self.burst_seconds = rounds, burst_seconds
        capability = (9, 0) if self.is_emulator else torch.cuda.get_device_capability()
        self.target = ky.Target("cuda", arch="sm_{}{}".format(*capability))

    def measure(self, name: str, make: Callable[[], Made], dtype: torch.dtype) -> list[Row]:
        """Every engine on a network."""
        torch.manual_seed(0)
        with torch.no_grad():
            network, feeds = make()
        network = network.eval().to(self.place, dtype)
        feeds = tuple(feed.to(self.place, dtype if feed.is_floating_point() else None) for feed in feeds)
        if dtype == torch.float16 and feeds[0].dim() == 4:
            network = network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        engines, failures = self._engines(name, network, feeds)
        with torch.inference_mode():
            wanted = as_tuple(network(*feeds))
            for engine in engines:
                engine.error = max(map(difference, engine.run(), wanted))
            self._take_turns(engines)
        rows = [Row(name, each.name, statistics.median(each.milliseconds), each.error) for each in engines]
        return rows + failures

    def _engines(self, name: str, network: nn.Module, feeds: Results) -> tuple[list[Engine], list[Row]]:
        makers: dict[str, Callable[[nn.Module, Results], Run]] = {
            "kernelyard": lambda network, feeds: self._kernelyard(network, feeds, "auto"),
            "native-cuda": lambda network, feeds: self._kernelyard(network, feeds, []),
            "torch": lambda network, feeds: lambda: as_tuple(network(*feeds)),
        }
        if not self.is_emulator:
            makers["torch.compile"] = compiled_by_torch
            if importlib.util.find_spec("onnxruntime"):
                makers["onnxruntime"] = onnxruntime_on_gpu
        engines: list[Engine] = []
        failures: list[Row] = []
        for engine, make in makers.items():
            try:
                run = make(network, feeds)
                with torch.inference_mode():
                    run()
                engines.append(Engine(engine, run))
            except Exception as error:  # an engine that fails is told in the table; the others go on
                failures.append(Row(name, engine, failure=f"{type(error).__name__}: {error}"[:500]))
        return engines, failures

    def _kernelyard(self, network: nn.Module, feeds: Results, backends: str | list[str]) -> Run:
        with torch.no_grad():
            program = torch.export.export(network.cpu(), tuple(feed.cpu() for feed in feeds))
        network.to(self.place)
        exe = ky.compile(program, target=self.target, backends=backends)
        machine = ky.VirtualMachine(exe, ky.cuda("emulator" if self.is_emulator else 0))
        function = machine[exe.main.name]
        given = [feed.contiguous() for feed in feeds]

        def run() -> Results:
            results = function(*given)
            several = results if isinstance(results, tuple) else (results,)
            if self.is_emulator:
                return [torch.from_numpy(each.numpy()) for each in several]
            return [torch.from_dlpack(each) for each in several]

        return run

    def _take_turns(self, engines: Sequence[Engine]) -> None:
        counts = {}
        for engine in engines:
            self._milliseconds(engine, 2)
            quick = self._milliseconds(engine, 3) / 1e3
            counts[engine.name] = max(1, min(2000, int(self.burst_seconds / quick)))
        for number in range(self.rounds):
            turn = number % len(engines)
            for engine in (*engines[turn:], *engines[:turn]):
                engine.milliseconds.append(self._milliseconds(engine, counts[engine.name]))

    def _milliseconds(self, engine: Engine, count: int) -> float:
        """Of one call, of so many."""
        if self.is_emulator:
            start = time.perf_counter()
            for _ in range(count):
                engine.run()
            return 1e3 * (time.perf_counter() - start) / count
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(count):
            engine.run()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / count


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest, relative to the largest wanted."""
    a, b = found.double().cpu(), wanted.double().cpu()
    return float((a - b).abs().max() / (b.abs().max() + 1e-30)) if a.shape == b.shape else float("inf")
