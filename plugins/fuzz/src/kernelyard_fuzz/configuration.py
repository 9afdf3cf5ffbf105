"""Configuration: how a graph is compiled and run. Bugs hide in combinations, so that all of it is drawn at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.target import Target
from kernelyard.transform.compile_pipeline import CompilePipeline, default_pipeline
from kernelyard_fuzz.chooser import Chooser

# Passes that carry out what others rely on: without them a compile cannot end.
NEEDED = ("legalize.legalize_ops", "legalize.decompose_random", "legalize.separate_results", "legalize.copy_dequantize")
MOVABLE = ("simplify.", "legalize.fuse", "legalize.share", "legalize.fold", "quantized.")

# Of 100 graphs, how many are treated so. What takes long is for few: a graph takes 30 ms without generating code, and
# four times as long with it. What is about programs applies to those that are compiled.
SHARES = {
    "compiled": 20,
    "each_pass": 2,
    "symbolic": 25,
    "deterministic": 20,
    "saved": 10,
    "again": 5,
    "explained": 5,
    "twin": 50,
    "text": 25,
    "drawn": 50,
}
OTHERS = 8  # of 100 graphs, how many are offered to other backends than the first


@dataclass(frozen=True)
class Configuration:
    """Say how to compile and run a graph.

    backends: as `compile` takes them. without: points of the pipeline that are left out. symbolic: sizes of inputs are
    symbols. compiled: code is generated and run; else the graph is only brought to where backends take their parts.
    saved: the executable is written and read again. deterministic: the same bits for any number of threads. again: it
    is compiled a second time, to the same bytes. explained: `explain` says what `compile` does. twin: its twin is
    compiled in its place. text: its text is read again. drawn: patterns are drawn from it, and
    matched, and regions and memory plans are drawn. each_pass: the
    module is interpreted after each pass, not after each stage alone.
    """

    backends: tuple[str, ...] | str = "auto"
    without: tuple[str, ...] = ()
    threads: int = 1
    symbolic: bool = False
    saved: bool = False
    deterministic: bool = False
    again: bool = False
    explained: bool = False
    compiled: bool = True
    twin: bool = False
    text: bool = True
    drawn: bool = True
    each_pass: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `compile`."""
        backends = self.backends if isinstance(self.backends, str) else list(self.backends)
        target = Target("cpu", deterministic=self.deterministic)
        given: dict[str, Any] = {"target": target, "backends": backends}
        return given | ({"pipeline": self.pipeline()} if self.without else {})

    def pipeline(self) -> CompilePipeline:
        """Return the pipeline of a compile, without what is left out."""
        pipeline = default_pipeline()
        for point in self.without:
            pipeline = pipeline.without(point)
        return pipeline

    def __str__(self) -> str:
        backends = self.backends if isinstance(self.backends, str) else ", ".join(self.backends) or "none"
        flags = [name for name in SHARES if getattr(self, name)]
        words = [
            f"backends {backends}",
            f"threads {self.threads}",
            *flags,
            *(f"without {point}" for point in self.without),
        ]
        return " · ".join(words)


@cache
def cpu_backends() -> tuple[str, ...]:
    """Return the names of the usable backends for the CPU."""
    return tuple(backend.name for backend in get_manager().active("backend", "cpu"))


@cache
def optional_points() -> tuple[str, ...]:
    """Return points of the pipeline that a compile can do without."""
    points = default_pipeline().points
    return tuple(point for point in points if point.startswith(MOVABLE) and point not in NEEDED)


def random_configuration(chooser: Chooser, is_small: bool = False) -> Configuration:
    """Return a configuration; the first of every alternative is what users have.

    is_small: of a small graph, which is always compiled, mostly for the first of the backends.
    """
    usual = cpu_backends()[:1] if is_small and chooser.chance(60) else chooser.pick(_usual())
    backends = usual if chooser.chance(100 - OTHERS) else chooser.pick(_others())
    shares = SHARES | ({"compiled": 100} if is_small else {})
    without = tuple(chooser.pick(optional_points()) for _ in range(chooser.between(1, 3))) if chooser.chance(25) else ()
    if is_small and chooser.chance(20):  # backends see operators as they are written
        without = tuple(point for point in optional_points() if point.startswith("simplify."))
    return Configuration(
        backends=backends,
        without=tuple(dict.fromkeys(without)),
        threads=chooser.pick((1, 2, 3)),
        **{name: chooser.chance(percent) for name, percent in shares.items()},
    )


@cache
def _usual() -> Sequence[tuple[str, ...]]:
    """Return the code generator with the first of the backends, and alone."""
    return (cpu_backends()[:1], ())


@cache
def _others() -> Sequence[tuple[str, ...] | str]:
    """Return all backends, in both orders, and each alone: some compile for long."""
    names = cpu_backends()
    return ("auto", names, tuple(reversed(names)), *((name,) for name in names[1:]))
