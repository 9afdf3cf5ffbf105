"""How near each model comes to what the machine can do: the time that its arithmetic and its bytes take at least.

    python benchmarks/roofline.py [NAME ...] [--threads 1 2] [--models FOLDER] [--results FOLDER] [--update]

For each model, as it is after simplification: floating-point operations, and the bytes that have to move at least once
(weights, inputs, outputs). In the same run, in turns: the time of a call, multiply-adds in registers (the peak), and
reading as many bytes again and again from wherever they fit (caches, or memory). The bound is the longer of the two
times, the share is bound / time. Convolutions that take fewer multiplications than their definition has (Winograd's)
may be beyond it. Writes roofline.json into the folder of results; `performance_page.py` makes the tables of
docs/performance.md from it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from models import HERE, MODELS, machine
from peaks import measure_peaks, reader

import kernelyard as ky
from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.driver.session.import_model import import_model
from kernelyard.errors import ShapeError
from kernelyard.ir import Call, Constant, Function, GlobalVar, IRModule, Op
from kernelyard.ir.types import tensors_of
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.runtime.abi.solve_symbols import solve_symbols
from kernelyard.transform.pipelines import get_pipeline

LOOKUPS = ("take", "gather", "gather_nd")  # of these only what is looked up moves
TURN_SECONDS = 0.2
PEAK_ROUNDS = 3


@dataclass(frozen=True)
class Bound:
    """flops: of one call. nbytes: that have to move, weight_nbytes of them weights. Times in milliseconds: at the peak
    of arithmetic, at the rate at which as many bytes are read, and what a call took (10th percentile)."""

    model: str
    threads: int
    flops: int
    nbytes: int
    weight_nbytes: int
    arithmetic_ms: float
    reading_ms: float
    call_ms: float
    gflops: float
    gbytes: float

    @property
    def bound(self) -> str:
        """The binding limit of the roofline, "arithmetic" or "bytes"."""
        return "arithmetic" if self.arithmetic_ms >= self.reading_ms else "bytes"

    @property
    def bound_ms(self) -> float:
        """The lower bound of the time of a call, in milliseconds."""
        return max(self.arithmetic_ms, self.reading_ms)

    @property
    def share(self) -> float:
        """Bound over time."""
        return self.bound_ms / self.call_ms


# --- counting ---------------------------------------------------------------------------------------------------------
def flops_of(module: IRModule, function: Function, values: Mapping[str, int]) -> int:
    """Of a function; of two branches the one that has more."""
    total = 0
    for call in _calls(function):
        callees = [module[each.name] for each in call.args if isinstance(each, GlobalVar)]
        total += max(
            (flops_of(module, callee, values) for callee in callees if isinstance(callee, Function)), default=0
        )
        types = [
            tensor
            for argument in call.args
            if not isinstance(argument, GlobalVar)
            for tensor in tensors_of(argument.type)
        ]
        if isinstance(call.op, Op) and call.op.flops is not None:
            flops = call.op.flops
            total += _evaluated(lambda call=call, flops=flops, types=types: flops(types, call.type, call.attrs), values)
        elif isinstance(call.op, Op) and not callees:
            total += sum(_evaluated(lambda each=each: each.numel, values) for each in tensors_of(call.type))
    return total


def weight_nbytes_of(module: IRModule, values: Mapping[str, int]) -> int:
    """Bytes of the constants; of tables only what is looked up."""
    read: dict[str, int] = {}
    for function in module.functions.values():
        for call in _calls(function) if isinstance(function, Function) else ():
            for position, argument in enumerate(call.args):
                if not isinstance(argument, Constant):
                    continue
                nbytes = argument.data.nbytes
                if position == 0 and isinstance(call.op, Op) and call.op.name in LOOKUPS:
                    found = sum(_evaluated(lambda each=each: each.nbytes, values) for each in tensors_of(call.type))
                    nbytes = min(nbytes, found)
                read[argument.digest] = max(read.get(argument.digest, 0), nbytes)
    return sum(read.values())


def _calls(function: Function) -> Iterator[Call]:
    return (binding.value for binding in function.bindings if isinstance(binding.value, Call))


def _evaluated(work: Callable[[], Dim], values: Mapping[str, int]) -> int:
    try:
        return int(dims.evaluate(work(), values))
    except (ShapeError, KeyError):  # a size that only the run decides
        return 0


# --- measuring --------------------------------------------------------------------------------------------------------
def measure(path: Path, threads: int, rounds: int) -> Bound:
    """A model whose feeds lie beside it."""
    module = get_pipeline("simplify")(import_model(get_manager(), path, {}))
    main = module["main"]
    assert isinstance(main, Function)
    exe = ky.compile(path, target="cpu")
    exe.threads = threads
    feeds = dict(np.load(path.with_suffix(".npz")))
    results = exe.run(feeds)
    values: dict[str, int] = {}
    inputs = exe.main.inputs
    solve_symbols(inputs, [feeds[spec.name].shape for spec in inputs], values)
    weights = weight_nbytes_of(module, values)
    nbytes = (
        weights + sum(array.nbytes for array in feeds.values()) + sum(each.numpy().nbytes for each in results.values())
    )
    read, enter = reader(nbytes, threads), reader(0, threads)
    calls, reading, entering, gflops = list[float](), list[float](), list[float](), list[float]()
    for _ in range(rounds):
        gflops += [measure_peaks(threads).gflops for _ in range(PEAK_ROUNDS)]
        reading += _timed(read)
        entering += _timed(enter)
        calls += _timed(lambda: _seconds(lambda: exe.run(feeds)))
    flops = flops_of(module, main, values)
    least = max(min(reading) - min(entering), 1e-9)  # without what it takes to call a function from Python
    tenth = statistics.quantiles(calls, n=10)[0] if len(calls) > 1 else calls[0]
    peak = max(gflops)
    times = (flops / peak / 1e6, 1e3 * least, 1e3 * tenth)
    return Bound(path.stem, threads, flops, nbytes, weights, *times, peak, nbytes / least / 1e9)


def _timed(run: Callable[[], float]) -> list[float]:
    """Seconds of each run in a turn."""
    run()
    seconds, end = [run()], time.perf_counter() + TURN_SECONDS
    while time.perf_counter() < end:
        seconds.append(run())
    return seconds


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of benchmarks/models.py, which has written them")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--models", type=Path, default=HERE / "build" / "models")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--update", action="store_true", help="keep what the results have of other models")
    args = parser.parse_args()
    file = args.results / "roofline.json"
    found: dict[tuple[str, int], Bound] = {}
    if args.update and file.exists():
        known = (Bound(**each) for each in json.loads(file.read_text(encoding="utf-8"))["models"])
        found = {(each.model, each.threads): each for each in known}
    args.results.mkdir(parents=True, exist_ok=True)
    for name in args.names or [name for name in MODELS if (args.models / f"{name}.onnx").exists()]:
        for threads in args.threads:
            bound = found[name, threads] = measure(args.models / f"{name}.onnx", threads, args.rounds)
            print(
                f"{name:20} {threads} threads: {bound.flops / 1e9:8.3f} GFLOP {bound.nbytes / 1e6:8.2f} MB, "
                f"{bound.bound}: {bound.bound_ms:.4g} of {bound.call_ms:.4g} ms = {100 * bound.share:.0f} %",
                flush=True,
            )
            order = sorted(found.values(), key=lambda each: (_place(each.model), each.threads))
            facts = {"machine": machine(), "models": [asdict(each) for each in order]}
            file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _place(model: str) -> int:
    return MODELS.index(model) if model in MODELS else len(MODELS)


if __name__ == "__main__":
    main()
