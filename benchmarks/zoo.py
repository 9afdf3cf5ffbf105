"""A zoo of networks that nothing here was tuned on, beside onnxruntime and OpenVINO in float32.

    python benchmarks/zoo.py [--networks NAME_OR_KIND ...] [--engines NAME ...] [--threads 1 2] [--again] [--list]

Networks are made with random weights (recipes/zoo; PyTorch, timm, torchvision and transformers must be installed), then
compiled, compared with onnxruntime's numbers and timed in turns, each engine in a process of its own with a limit of
time and memory. Each result is a file in the folder of results: a run that was interrupted goes on where it stopped,
and --again measures anew. At the end results/zoo.json, the page docs/zoo.md and its chart are written from all of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from models import HERE, machine
from peers.compare import Comparison, How, compare
from peers.start import OURS
from peers.zoo_page import ratio_of, write_page
from recipes.zoo.catalogue import KINDS, NAMES, split
from rich.console import Console
from rich.progress import Progress

PEERS = ("onnxruntime", "openvino")
MAKERS = {"onnx": "onnx_models"}  # what writes a kind; others are written in PyTorch


def chosen(words: Sequence[str]) -> list[str]:
    """Return the networks that are named, or of a kind that is. Raises: SystemExit with those that there are."""
    if unknown := set(words) - {*NAMES, *KINDS}:
        raise SystemExit(f"there is no {', '.join(sorted(unknown))}; kinds: {', '.join(KINDS)}; --list has the names")
    return [name for name in NAMES if not words or name in words or split(name)[0] in words]


def make_networks(names: Sequence[str], folder: Path) -> None:
    """Write the models that are not there yet, one process for each maker; what fails has a file with the reason."""
    missing = [name for name in names if not (folder / f"{name}.npz").exists()]
    for maker in dict.fromkeys(MAKERS.get(split(name)[0], "torch_models") for name in missing):
        given = [name for name in missing if MAKERS.get(split(name)[0], "torch_models") == maker]
        subprocess.run(
            [sys.executable, "-m", f"recipes.zoo.{maker}", str(folder.absolute()), *given], cwd=HERE, check=False
        )


class Results:
    """A comparison for each network and number of threads, each in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str, threads: int) -> Path:
        """Where a comparison is."""
        return self.folder / f"{name}.{threads}.json"

    def add(self, found: Comparison) -> None:
        """Keep a comparison; rows of engines that it lacks stay as they are."""
        path = self.path(found.model, found.threads)
        if path.exists():
            found = Comparison.from_json(json.loads(path.read_text(encoding="utf-8"))).updated(found)
        path.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")

    def all(self) -> Iterator[Comparison]:
        """All comparisons of networks that the zoo still has."""
        for path in sorted(self.folder.glob("*.json")):
            found = Comparison.from_json(json.loads(path.read_text(encoding="utf-8")))
            if found.model in NAMES:
                yield found


def measure(args: argparse.Namespace, console: Console) -> None:
    """Measure what has no result yet."""
    results, how = Results(args.results), How(args.rounds, args.burst, 0, args.patience)
    names = chosen(args.networks)
    make_networks(names, args.models)
    pythons = dict.fromkeys(args.engines, sys.executable)
    resource.setrlimit(resource.RLIMIT_DATA, (args.memory << 30, args.memory << 30))  # engines inherit it
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("networks", total=len(names) * len(args.threads))
        for name, threads in ((name, threads) for name in names for threads in args.threads):
            model = args.models / f"{name}.onnx"
            if model.with_suffix(".npz").exists() and (args.again or not results.path(name, threads).exists()):
                found = compare(model.absolute(), pythons, threads, how)
                results.add(found)
                told = [f"{row.engine} {row.failure[:300] or f'{row.processor_ms:.4g} ms'}" for row in found.rows]
                ours = found.row(OURS)
                text = f"{name}, {threads}: {ratio_of(found, PEERS) or float('nan'):.2f} ({', '.join(told)})"
                text += f" error {ours.error:.1e}" if ours else ""
                console.print(text, highlight=False, soft_wrap=True, markup=False)
            progress.advance(task)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=[], help=f"names, or kinds: {', '.join(KINDS)}")
    parser.add_argument("--engines", nargs="+", default=[OURS, *PEERS])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--burst", type=float, default=0.1, help="seconds of each turn")
    parser.add_argument("--patience", type=float, default=180, help="seconds that an engine's answer may take")
    parser.add_argument("--memory", type=int, default=12, help="GiB of data that a process may have")
    parser.add_argument("--models", type=Path, default=HERE / "build" / "zoo")
    parser.add_argument("--results", type=Path, default=HERE / "build" / "zoo-results")
    parser.add_argument("--again", action="store_true", help="measure also what has a result")
    parser.add_argument("--no-page", action="store_true", help="leave docs/zoo.md and its chart as they are")
    parser.add_argument("--list", action="store_true", help="print the names, and end")
    args = parser.parse_args()
    if args.list:
        print("\n".join(NAMES))
        return
    measure(args, Console(stderr=True))
    if args.no_page:
        return
    found = list(Results(args.results).all())
    facts = {"machine": machine(), "networks": [each.to_json() for each in found]}
    (HERE / "results" / "zoo.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    write_page(found, PEERS, machine(), HERE.parent / "docs", NAMES)
    print(f"{len(found)} results; docs/zoo.md is written")


if __name__ == "__main__":
    main()
