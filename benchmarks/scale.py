"""Simulate a thousand models on a thousand machines of several kinds: caches of compiled code, artifacts, rollouts.

    python benchmarks/scale.py [--picture docs/images/scale.png] [--machines 1000] [--models 1000] [--sample 8]

What is real: networks of several sizes are compiled for each kind of CPU, which gives seconds, entries and bytes of
the cache, and sizes of artifacts; artifacts choose their variant by the code that loads them; caches are `DiskCache` on
disk, with its bound and its order of dropping. What is simulated: which model a machine is asked for (Zipf), the kinds
of CPU, and bytes of entries, which are a `SCALE`th of the measured ones, as the bounds are.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.api import DiskCache
from kernelyard_native_cpu import machine

# Kinds of CPU of the fleet, as levels of x86-64, with their shares.
FLEET = {"x86-64-v2": 0.05, "x86-64-v3": 0.60, "x86-64-v4": 0.35}
SCALE = 200  # simulated bytes are a 200th of the measured ones, so that a fleet's caches fit on a disk
CAPACITIES = (0.01, 0.1, 0.3, 1.0)  # of a machine's cache, as shares of all models
REQUESTS = 1000  # loads of models by a sampled machine; the first half fills its cache, the second is counted


@dataclass(frozen=True)
class Model:
    """What compiling one network for a CPU took: processor seconds, bytes in the cache and in the artifact."""

    seconds: float
    cached_bytes: int
    artifact_bytes: int


def main() -> None:
    """Measure the parts, simulate the fleet, print tables, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=8, help="machines whose own caches are simulated")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        parts, fat = measured(Path(folder))
        mean = {level: sum(m.seconds for m in models) / len(models) for level, models in parts.items()}
        code = statistics.mean(m.cached_bytes for models in parts.values() for m in models)
        report_parts(parts, fat)
        print(f"\nloads that find their code, after {REQUESTS // 2} loads; a cache holds a share of the models")
        rates = {share: hit_rates(options, share, round(code / SCALE), Path(folder)) for share in CAPACITIES}
        for share, (own, shared) in rates.items():
            print(f"  {share:5.0%}  own cache {own:6.1%}   shared by a kind {shared:6.1%}")
        report_rollout(options.machines, options.models, mean)
    if options.picture:
        draw(options.picture, rates, options.machines, options.models, mean)


# --- what is measured -------------------------------------------------------------------------------------------------
def network(width: int, layers: int) -> IRModule:
    """A perceptron with a softmax, whose kernels depend on its width."""
    b = FunctionBuilder()
    values = np.random.default_rng(width)
    x = b.input("x", (8, width))
    for _ in range(layers):
        x = b.op("nn.gelu", b.op("matmul", x, values.standard_normal((width, width), np.float32) / width))
    return IRModule({"main": b.function(b.op("nn.softmax", x, axis=1))})


@contextmanager
def cache_in(folder: Path, megabytes: float = 512) -> Iterator[None]:
    """Keep all caches in a folder; a bound below 1 MB is that of `DiskCache` in megabytes, too."""
    bound = "kernelyard.runtime.installed.disk_cache.max_bytes"
    with patch.dict(os.environ, KERNELYARD_CACHE_DIR=str(folder)), patch(bound, lambda: int(megabytes * 1e6)):
        yield


def measured(folder: Path) -> tuple[dict[str, list[Model]], dict[str, float]]:
    """Compile networks for each kind of CPU, with a cache of its own each; fat: sizes, and seconds to choose."""
    parts: dict[str, list[Model]] = {level: [] for level in FLEET}
    sizes: list[tuple[int, int]] = []
    chosen: list[float] = []
    ky.compile(network(64, 1), backends=[])  # imports are not counted
    for width in (96, 224):
        executables: list[ky.Executable] = []
        for level in FLEET:
            own = folder / f"measured-{level}-{width}"
            with cache_in(own):
                start = time.process_time()
                executables.append(ky.compile(network(width, 3), ky.Target("cpu", mcpu=level), backends=[]))
                seconds = time.process_time() - start
                executables[-1].save(own / "thin.kyar")
                cached = DiskCache("native-cpu").use().nbytes
            parts[level].append(Model(seconds, cached, (own / "thin.kyar").stat().st_size))
        fat = folder / f"fat-{width}.kyar"
        executables[0].save(fat, executables[1:])
        sizes.append((fat.stat().st_size, sum(models[-1].artifact_bytes for models in parts.values())))
        chosen += [seconds_to_choose(fat, level) for level in FLEET]
    fat_bytes, thin_bytes = (sum(column) for column in zip(*sizes, strict=True))
    return parts, {"share": fat_bytes / thin_bytes, "load": statistics.median(chosen)}


def seconds_to_choose(path: Path, level: str) -> float:
    """Load on a simulated CPU; RuntimeError if another variant was taken than its own."""
    features = frozenset(machine.features_of_level(level))
    with patch.object(machine, "host_features", lambda: features):
        start = time.perf_counter()
        target = ky.load(path).target
        seconds = time.perf_counter() - start
    if target != f"cpu mcpu={level}":
        raise RuntimeError(f"{level} took {target}")
    return seconds


# --- what is simulated ------------------------------------------------------------------------------------------------
def popular(models: int, seed: int) -> Iterator[int]:
    """Models by popularity: the n-th is asked for in proportion to 1/n, as in Zipf's law."""
    weights = [1 / (rank + 1) for rank in range(models)]
    return iter(random.Random(seed).choices(range(models), weights, k=REQUESTS))


def hit_rates(options: argparse.Namespace, share: float, nbytes: int, folder: Path) -> tuple[float, float]:
    """The share of loads whose code was there: with a cache per machine, and with one per kind of CPU."""
    bound = share * options.models * (nbytes + 40) / 1e6  # 40: what an entry has beside its bytes
    payload = bytes(nbytes)
    own = [
        replay([seed], options.models, bound, payload, folder / f"own-{share}-{seed}") for seed in range(options.sample)
    ]
    kinds = random.Random(0).choices(list(FLEET), list(FLEET.values()), k=options.sample)
    shared = [
        replay(
            [s for s, k in enumerate(kinds) if k == kind], options.models, bound, payload, folder / f"{share}-{kind}"
        )
        for kind in set(kinds)
    ]
    return rate(own), rate(shared)


def replay(seeds: list[int], models: int, bound: float, payload: bytes, folder: Path) -> tuple[int, int]:
    """Ask a real cache, for machines that share it, in turns; return hits and requests."""
    hits = asked = 0
    with cache_in(folder, bound):
        cache = DiskCache("native-cpu")
        for number, turn in enumerate(zip(*(popular(models, seed) for seed in seeds), strict=True)):
            for model in turn:
                found = cache.get(f"model {model}") is not None
                if not found:
                    cache.put(f"model {model}", payload)
                if number >= REQUESTS // 2:
                    hits, asked = hits + found, asked + 1
    return hits, asked


def rate(counts: list[tuple[int, int]]) -> float:
    return sum(hits for hits, _ in counts) / sum(asked for _, asked in counts)


# --- what is shown ----------------------------------------------------------------------------------------------------
def report_parts(parts: dict[str, list[Model]], fat: dict[str, float]) -> None:
    print("one model, mean of two networks: processor seconds to compile, kB in the cache, kB of the artifact")
    for level, models in parts.items():
        seconds, cached, artifact = (statistics.mean(getattr(m, f) for m in models) for f in Model.__annotations__)
        print(f"  {level}  {seconds:.2f} s  {cached / 1e3:.0f} kB  {artifact / 1e3:.0f} kB")
    print(f"one file for the three kinds: {fat['share']:.0%} of three files; chosen in {fat['load'] * 1e3:.1f} ms")


def rollout_hours(machines: int, models: int, mean: dict[str, float]) -> dict[str, float]:
    """Processor hours that a new compiler costs, which changes every key, by who compiles."""
    per_fleet = sum(share * mean[level] for level, share in FLEET.items())
    return {
        "each machine, all models": machines * models * per_fleet / 3600,
        "each kind once, shared cache": models * sum(mean.values()) / 3600,
        "x86-64-v2 alone, for all": models * mean["x86-64-v2"] / 3600,
        "artifacts, compiled before": 0.0,
    }


def report_rollout(machines: int, models: int, mean: dict[str, float]) -> None:
    print(f"\na new compiler on {machines} machines with {models} models: processor hours in the fleet")
    for name, hours in rollout_hours(machines, models, mean).items():
        print(f"  {name:32} {hours:10.2f} h")


def draw(
    path: Path, rates: dict[float, tuple[float, float]], machines: int, models: int, mean: dict[str, float]
) -> None:
    """Hit rates by the size of the cache, and what a rollout costs by who compiles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    shares = [share * 100 for share in rates]
    left.plot(shares, [own * 100 for own, _ in rates.values()], "o-", color="#d64026", label="a cache per machine")
    left.plot(
        shares, [shared * 100 for _, shared in rates.values()], "s-", color="#146e3c", label="one per kind of CPU"
    )
    left.set(xscale="log", xlabel="models that a cache holds, %", ylabel="loads that find their code, %", ylim=(0, 100))
    left.legend(frameon=False)
    hours = {name: value for name, value in rollout_hours(machines, models, mean).items() if value}
    bars = right.barh(list(hours), list(hours.values()), color="#4062a8")
    right.bar_label(bars, [f"{value:,.2f}" for value in hours.values()], padding=4)
    right.set(
        xscale="log", xlabel="processor hours to compile after a new compiler", xlim=(None, max(hours.values()) * 8)
    )
    right.invert_yaxis()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=140)
    plt.close(figure)


if __name__ == "__main__":
    main()
