"""Convolutions by Winograd's algorithm beside direct ones, layer by layer: the turns of both interleaved in one run.

    python benchmarks/winograd.py [--only resnet] [--threads 1 2] [--seconds 0.3]

Each case is a convolution of 3 x 3 windows with padding 1 and a relu, its channels innermost as inside of a network,
compiled for oneDNN with the plugin's option `winograd` and without. Reported are the 10th percentile of the direct one
in milliseconds, its GFLOP/s, what the option chose, and the ratio of the direct one's time to that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Column, Table

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard_dnnl.runtime import DnnlRuntime


@dataclass(frozen=True)
class Layer:
    """Channels, filters, and the height and width of the image."""

    network: str
    channels: int
    filters: int
    size: int

    def module(self) -> IRModule:
        """The convolution, its channels innermost on both sides."""
        rng, b = np.random.default_rng(0), FunctionBuilder()
        weight = rng.standard_normal((self.filters, self.channels, 3, 3), dtype=np.float32)
        x = b.op("permute_dims", b.input("x", self.shape), axes=(0, 3, 1, 2))
        y = b.op("nn.relu", b.op("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))
        return IRModule({"main": b.function(b.op("permute_dims", y, axes=(0, 2, 3, 1)))})

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, self.size, self.size, self.channels)

    @property
    def flops(self) -> int:
        return 2 * 9 * self.size**2 * self.channels * self.filters

    def __str__(self) -> str:
        return f"{self.network}: {self.channels} -> {self.filters}, {self.size} x {self.size}"


LAYERS = (
    *(Layer("resnet", channels, channels, size) for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *(Layer("vgg19", *sizes) for sizes in ((3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112))),
    *(Layer("vgg19", *sizes) for sizes in ((256, 256, 56), (256, 512, 28), (512, 512, 28), (512, 512, 14))),
    *(Layer("squeezenet", *sizes) for sizes in ((16, 64, 55), (32, 128, 27), (48, 192, 13), (64, 256, 13))),
    *(Layer("densenet", 128, 32, size) for size in (56, 28, 14, 7)),
    *(Layer("inception", *sizes) for sizes in ((64, 192, 56), (96, 128, 28), (128, 192, 28), (16, 32, 28))),
    *(Layer("inception", *sizes) for sizes in ((96, 208, 14), (144, 288, 14), (160, 320, 7), (192, 384, 7))),
)


def chosen(exe: ky.Executable, threads: int) -> str:
    """Return the algorithm that runs the convolution: "4x4", "2x2" or "direct"."""
    (runtime,) = [module for module in exe.modules if isinstance(module, DnnlRuntime)]
    (symbol,) = runtime.symbols()
    names = [name for label, name in runtime.plan(symbol, {}, threads).implementations if label.startswith("conv")]
    return next((name.partition(":")[2] for name in names if name.startswith("winograd")), "direct")


def interleaved(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """The 10th percentile of each call, in seconds."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 10:
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return [float(np.percentile(taken, 10)) for taken in times]


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="part of a layer's name")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.3, help="of each layer")
    args = parser.parse_args()
    table = Table(Column("layer", no_wrap=True), "threads", "direct ms", "GFLOP/s", "chosen", "ratio")
    for layer in (layer for layer in LAYERS if args.only in str(layer)):
        x = np.random.default_rng(1).standard_normal(layer.shape, dtype=np.float32)
        for threads in args.threads:
            direct, ours = (
                ky.compile(layer.module(), backends=["dnnl"], options={"dnnl": {"winograd": wanted}})
                for wanted in (False, True)
            )
            direct.threads = ours.threads = threads
            slow, quick = interleaved([lambda: direct(x), lambda: ours(x)], args.seconds)  # noqa: B023
            speed = layer.flops / slow / 1e9
            row = (layer, threads, f"{slow * 1e3:.3g}", f"{speed:.0f}", chosen(ours, threads), f"{slow / quick:.2f}")
            table.add_row(*map(str, row))
    Console().print(table)


if __name__ == "__main__":
    main()
