"""Whole models and single products on a GPU, beside PyTorch and onnxruntime in the same run.

    python benchmarks/gpu.py [NAME ...] [--rounds 10] [--results FOLDER]
    python benchmarks/gpu.py --device emulator --quick     # the same way through without a GPU: small, and slow

Engines take turns in one process. A turn's time is that between two CUDA events around its calls, on PyTorch's stream,
which waits for each result. The ratio is torch.compile's time (mode "max-autotune") over ours: above 1, Kernelyard is
faster. Writes gpu.json and gpu.md into the folder of results, with device, driver and library versions.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipes.cnns import resnet
from recipes.in_torch import Made, decoder_step, encoder, image_network, large_block, mlp
from recipes.language import DecoderStep, Encoder, LargeBlock
from rich.console import Console
from torch import nn

import kernelyard as ky

HERE = Path(__file__).parent
DISTRIBUTIONS = ("kernelyard", "torch", "onnxruntime-gpu", "cuda-bindings", "nvidia-cublas", "nvidia-cublas-cu12")


class Product(nn.Module):
    """x @ w."""

    def __init__(self, depth: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(depth, columns) / depth**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def product(rows: int, depth: int, columns: int) -> Made:
    """One matrix product."""
    return Product(depth, columns), (torch.randn(rows, depth),)


# Name -> the network with its feeds, and its dtype; of images the memory is channels-last where it is float16.
MODELS: Mapping[str, tuple[Callable[[], Made], torch.dtype]] = {
    "mlp_b1": (lambda: mlp(1), torch.float32),
    "mlp_b32": (lambda: mlp(32), torch.float32),
    "mlp_b1024": (lambda: mlp(1024), torch.float32),
    "resnet50_b1": (lambda: image_network(resnet(50), 1), torch.float16),
    "resnet50_b32": (lambda: image_network(resnet(50), 32), torch.float16),
    "bert_base_1x128": (lambda: encoder(12, 768, 3072, 1), torch.float16),
    "bert_base_32x128": (lambda: encoder(12, 768, 3072, 32), torch.float16),
    "gpt2_step_kv256": (decoder_step, torch.float16),
    "llama_block_s64": (large_block, torch.float16),
    "matmul_1024": (lambda: product(1024, 1024, 1024), torch.float16),
    "matmul_4096": (lambda: product(4096, 4096, 4096), torch.float16),
    "matmul_4096_f32": (lambda: product(4096, 4096, 4096), torch.float32),
    "gemv_4096": (lambda: product(1, 4096, 4096), torch.float16),
}


def small_encoder() -> Made:
    """Two layers over eight words."""
    ids = torch.randint(0, 50, (1, 8))
    return Encoder(2, 24, 2, 32, 50), (ids, torch.ones_like(ids), torch.zeros_like(ids))


def small_step() -> Made:
    """Two layers over a cache of five."""
    past = tuple(torch.randn(1, 2, 5, 12) for _ in range(4))
    return DecoderStep(2, 24, 2, 50), (torch.tensor([[3]]), torch.tensor([[5]]), *past)


def small_block() -> Made:
    """Six tokens."""
    return LargeBlock(32, 4, 2, 48, 6), (torch.randn(1, 6, 32), torch.arange(6)[None])


# The same kinds of networks, as small as the emulator wants them.
QUICK: Mapping[str, tuple[Callable[[], Made], torch.dtype]] = {
    "mlp_b2": (lambda: mlp(2), torch.float32),
    "encoder": (small_encoder, torch.float32),
    "decoder_step": (small_step, torch.float32),
    "large_block": (small_block, torch.float32),
    "matmul_f16": (lambda: product(64, 96, 80), torch.float16),
}

Results = Sequence[torch.Tensor]
Run = Callable[[], Results]


@dataclass
class Engine:
    """A way to run a network. milliseconds: of each turn's calls."""

    name: str
    run: Run
    milliseconds: list[float] = field(default_factory=list)
    error: float = 0.0


@dataclass(frozen=True)
class Row:
    """An engine on a model. error: the largest difference to eager PyTorch, relative to the largest result."""

    model: str
    engine: str
    milliseconds: float = 0.0
    error: float = 0.0
    failure: str = ""


def as_tuple(results: Any) -> Results:
    """One result, or several."""
    return results if isinstance(results, tuple) else (results,)


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


def compiled_by_torch(network: nn.Module, feeds: Results) -> Run:
    """torch.compile at its best."""
    compiled = torch.compile(network, mode="max-autotune")
    return lambda: as_tuple(compiled(*feeds))


def onnxruntime_on_gpu(network: nn.Module, feeds: Results) -> Run:
    """onnxruntime's CUDA provider, with results bound to the device."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise RuntimeError("this onnxruntime has no CUDA")
    with tempfile.TemporaryDirectory(prefix="kernelyard-bench-") as folder, torch.no_grad():
        path = str(Path(folder, "model.onnx"))
        torch.onnx.export(network, tuple(feeds), path, dynamo=True, opset_version=18, verbose=False)
        session = onnxruntime.InferenceSession(path, providers=["CUDAExecutionProvider"])
    binding = session.io_binding()
    for each, feed in zip(session.get_inputs(), feeds, strict=True):
        element = np.dtype(str(feed.dtype).removeprefix("torch."))
        binding.bind_input(each.name, "cuda", 0, element, tuple(feed.shape), feed.contiguous().data_ptr())
    for each in session.get_outputs():
        binding.bind_output(each.name, "cuda")

    def run() -> Results:
        session.run_with_iobinding(binding)
        return [torch.from_numpy(value) for value in binding.copy_outputs_to_cpu()]

    return run


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest, relative to the largest wanted."""
    a, b = found.double().cpu(), wanted.double().cpu()
    return float((a - b).abs().max() / (b.abs().max() + 1e-30)) if a.shape == b.shape else float("inf")


def machine_line(is_emulator: bool) -> str:
    """Device, driver and libraries."""
    versions = []
    for name in DISTRIBUTIONS:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    device = "the emulator" if is_emulator else f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return f"{device}; {', '.join(versions)}; {time.strftime('%Y-%m-%d')}"


def markdown(rows: Sequence[Row], line: str) -> str:
    """The table as a page's text."""
    engines = list(dict.fromkeys(row.engine for row in rows))
    lines = [line, "", f"| model | {' | '.join(engines)} | torch.compile / ours | error |"]
    lines.append(f"|---|{'---:|' * (len(engines) + 2)}")
    for model in dict.fromkeys(row.model for row in rows):
        found = {row.engine: row for row in rows if row.model == model and not row.failure}
        times = [f"{found[each].milliseconds:.4g}" if each in found else "-" for each in engines]
        own, other = found.get("kernelyard"), found.get("torch.compile")
        ratio = f"{other.milliseconds / own.milliseconds:.2f}" if own and other else "-"
        lines.append(f"| {model} | {' | '.join(times)} | {ratio} | {own.error if own else float('nan'):.0e} |")
    failures = [f"- {row.model}, {row.engine}: {row.failure}" for row in rows if row.failure]
    return "\n".join([*lines, "", *failures])


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small networks, few rounds")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    console = Console(stderr=True)
    models = QUICK if args.quick else MODELS
    bench = Bench(args.device, 2 if args.quick else args.rounds, 0.01 if args.quick else 0.2)
    rows: list[Row] = []
    for name in args.names or models:
        make, dtype = models[name]
        rows += bench.measure(name, make, dtype)
        for row in rows:
            if row.model == name:
                told = row.failure or f"{row.milliseconds:.4g} ms, error {row.error:.0e}"
                console.print(f"{name}, {row.engine}: {told}", highlight=False, soft_wrap=True)
    line = machine_line(bench.is_emulator)
    text = markdown(rows, line)
    if not bench.is_emulator:  # its times mean nothing
        args.results.mkdir(parents=True, exist_ok=True)
        facts = {"machine": line, "rows": [asdict(row) for row in rows]}
        (args.results / "gpu.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        (args.results / "gpu.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
