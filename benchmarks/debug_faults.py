"""Seeded faults in real networks, found by `kernelyard diff`, `reduce` and `bisect`.

    python benchmarks/debug_faults.py [NETWORK ...] [--kinds KIND ...] [--models FOLDER] [--results FILE] [--again]

In each network one fault of each kind is planted (recipes/faults): a kernel or a library's region that computes
something else, a pass that rewrites wrongly, a crash, NaN, a wrong shape; half of them for one type of operands alone.
Counted: is the faulty layer what `diff` names, is the model reduced to three ops with its signature, by how many checks
and seconds, does `bisect` name the pass, pattern or kernel. Each result is kept as it comes: a run that was interrupted
goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from models import HERE, model_file
from recipes.faults import Fault, Target, layers_spoiled, planted
from rich.console import Console

import kernelyard as ky
from kernelyard.errors import KernelyardError
from kernelyard.ir import Call, Function, IRModule, TensorType
from kernelyard.legalize import has_rule
from kernelyard.transform.pass_infra.pass_base import PassContext
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_debug.bisect import bisect
from kernelyard_debug.case import Case
from kernelyard_debug.diff import diff
from kernelyard_debug.locate import Snapshots
from kernelyard_debug.open_case import Given, open_case
from kernelyard_debug.oracle import Oracle
from kernelyard_debug.outcome import ERROR
from kernelyard_debug.reduce import reduce
from kernelyard_debug.runners import CompiledRunner, ReferenceRunner, ReplayRunner

NETWORKS = (
    *("magika", "minilm_s128", "shufflenet", "squeezenet11", "mobilenetv2", "basic_pitch", "ppocr_rec"),
    *("gpt2_step_kv256", "efficientnet_lite0", "resnet18"),
)
OF_A_LIBRARY = ("squeezenet11", "mobilenetv2", "efficientnet_lite0", "resnet18", "shufflenet")
KINDS = ("wrong", "pass", "crash", "nan", "shape")
MOST_OPS, TRIES, TIMEOUT = 3, 12, 120.0
CONVOLUTIONS = ("nn.conv2d",)


@dataclass(frozen=True)
class Found:
    """Record what became of a fault. ops: those that are left; named: the layer that `diff` names first."""

    network: str
    kind: str
    fault: str
    failure: str
    layer_named: bool
    named: str
    diff_seconds: float
    ops: tuple[str, ...]
    keeps_signature: bool
    reduce_checks: int
    reduce_seconds: float
    culprit_named: bool
    culprit: str
    bisect_checks: int
    bisect_seconds: float

    @property
    def is_reduced(self) -> bool:
        """Return True where few ops are left that fail as the network does."""
        return len(self.ops) <= MOST_OPS and self.keeps_signature


def examined(network: str, kind: str, case: Case) -> Found:
    """Plant a fault that shows, and have the tools find it. Raises: LookupError where none shows."""
    wanted = ("region" if network in OF_A_LIBRARY else "kernel") if kind == "wrong" else kind
    placed = _placed(case, wanted)
    known = ReplayRunner.of(case, ReferenceRunner(), TIMEOUT)
    for target in _targets(placed, wanted, f"{network} {kind}"):
        with planted(wanted, target) as fault:
            oracle = Oracle(CompiledRunner(arguments=fault.arguments), known, timeout=TIMEOUT)
            if (outcome := oracle(case)).fails:
                layers = layers_spoiled(case, placed, fault, first=outcome.kind != ERROR)
                return _found(network, kind, fault, case, layers)
    raise LookupError(f"{network}: no fault of the kind {kind} shows")


def _placed(case: Case, kind: str) -> IRModule:
    """Return the module as a fault of a kind meets it."""
    if kind not in ("kernel", "nan"):
        return get_pipeline("simplify").run(case.module, PassContext())
    snapshots = Snapshots()
    ky.compile(case.module, backends=[], instruments=[snapshots])
    return snapshots.before_codegen[-1].module if snapshots.before_codegen else case.module


def _targets(placed: IRModule, kind: str, seed: str) -> Iterator[Target]:
    """Yield what may be spoiled, in an order that depends on the seed alone."""
    function = placed.functions["main"]
    assert isinstance(function, Function)
    calls = [b.value for b in function.bindings if isinstance(b.value, Call) and _can_be_spoiled(b.value, kind)]
    choice = random.Random(seed)
    choice.shuffle(calls)
    for number, call in enumerate(calls[:TRIES]):
        is_special = (number + choice.randrange(2)) % 2 == 0
        yield Target.of(call, is_special or kind == "shape")  # what is doubled must not be doubled again


def _can_be_spoiled(call: Call, kind: str) -> bool:
    if kind == "region":
        return call.op_name in CONVOLUTIONS
    is_float = isinstance(call.type, TensorType) and call.type.dtype == "float32" and call.type.rank > 0
    return is_float and call.op_name != "reshape" and has_rule(call.op_name)


def _found(network: str, kind: str, fault: Fault, case: Case, layers: set[str]) -> Found:
    def timed(tool: Callable[..., Any]) -> tuple[Any, float]:
        start = time.perf_counter()
        return tool(case.module, feeds=case.feeds, timeout=TIMEOUT, **fault.arguments), time.perf_counter() - start

    report, diff_seconds = timed(diff)
    named = report.first[-1].label if report.first else ""
    reduction, reduce_seconds = timed(reduce)
    bisected, bisect_seconds = timed(bisect)
    culprit = bisected.culprit
    wanted_kind, wanted_name = fault.culprit
    return Found(
        network,
        kind,
        f"{fault.kind}: {fault.target}",
        str(report.outcome.kind),
        named in layers,
        named,
        round(diff_seconds, 1),
        reduction.ops,
        reduction.keeps_signature,
        reduction.checks,
        round(reduce_seconds, 1),
        culprit is not None and culprit.kind == wanted_kind and culprit.name.startswith(wanted_name),
        "" if culprit is None else f"{culprit.kind} {culprit.name} for {culprit.place}",
        bisected.checks,
        round(bisect_seconds, 1),
    )


class Results:
    """Keep what became of the faults in a file."""

    def __init__(self, path: Path, again: bool) -> None:
        self.path = path
        rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() and not again else []
        self.found = [_read(row) for row in rows]

    def has(self, network: str, kind: str) -> bool:
        """Return True where a fault was examined."""
        return any((each.network, each.kind) == (network, kind) for each in self.found)

    def add(self, found: Found) -> None:
        """Keep a result."""
        self.found.append(found)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps([asdict(each) for each in self.found], indent=1) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        count = len(self.found)
        reduced = sum(each.is_reduced for each in self.found)
        layers, culprits = (sum(getattr(each, f"{what}_named") for each in self.found) for what in ("layer", "culprit"))
        checks, seconds = (
            statistics.median(getattr(each, f"reduce_{what}") for each in self.found) for what in ("checks", "seconds")
        )
        return (
            f"{count} faults: {reduced} reduced to {MOST_OPS} ops or fewer with the signature, "
            f"median {checks:g} checks, {seconds:g} s; diff names {layers} layers, bisect {culprits} culprits"
        )


def _read(row: Mapping[str, Any]) -> Found:
    values = {field.name: row[field.name] for field in fields(Found)}
    return Found(**{**values, "ops": tuple(values["ops"])})


def measure(networks: Sequence[str], kinds: Sequence[str], folder: Path, results: Results) -> None:
    """Examine the faults that have no result yet."""
    console = Console(stderr=True)
    for network in networks:
        path = model_file(network, folder, sys.executable)
        case = open_case(Given(path, path.with_suffix(".npz")))
        for kind in kinds:
            if results.has(network, kind):
                continue
            try:
                found = examined(network, kind, case)
            except (KernelyardError, LookupError) as error:
                console.print(f"{network} {kind}: {error}", markup=False)
                continue
            results.add(found)
            marks = [
                f"layer {'named' if found.layer_named else f'NOT named: {found.named}'} in {found.diff_seconds} s",
                f"{'reduced' if found.is_reduced else 'NOT reduced'} to {', '.join(found.ops)}: {found.reduce_checks} "
                f"checks, {found.reduce_seconds} s",
                f"{'' if found.culprit_named else 'NOT '}{found.culprit}, {found.bisect_checks} checks, "
                f"{found.bisect_seconds} s",
            ]
            line = f"{network}, {found.fault}, {found.failure}: {'; '.join(marks)}"
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS, help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--models", type=Path, default=HERE / "build" / "models")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "debug_faults.json")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    args = parser.parse_args()
    results = Results(args.results, args.again)
    with warnings.catch_warnings(action="ignore"):
        measure(args.networks, args.kinds, args.models, results)
    print(results)


if __name__ == "__main__":
    main()
