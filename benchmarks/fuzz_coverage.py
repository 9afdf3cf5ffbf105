"""List what random graphs never reach: rewrites of passes, reasons to decline, legalizations and kernel templates.

    python benchmarks/fuzz_coverage.py [--graphs 2000] [--seed 0] [--json coverage.json]

Statements of the modules below are counted as graphs run through them. A function is never taken where none of its
statements is reached; a reason, where the statement that states it is not. Batches follow each other as in a campaign,
steered to what took part least.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mutation import MARK, Replaced, marked, source_of

BATCH = 50
# By kind, the packages whose modules are looked at, and the names of calls that are listed; none: functions.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rewrite": (
        tuple(f"kernelyard.transform.{each}" for each in ("simplify", "compose", "algebraic", "quantization")),
        (),
    ),
    "legalization": (("kernelyard.legalize",), ()),
    "template": (("kernelyard_native_cpu.schedule.rules",), ()),
    "primitive": (("kernelyard_dnnl.primitives",), ()),
    "reason": (("kernelyard_dnnl", "kernelyard.patterns"), ("Refusal", "Decline")),
}


class Place(NamedTuple):
    """A function, or a statement that states a reason. lines: of its statements; one that is reached suffices."""

    kind: str
    module: str
    name: str
    lines: frozenset[int]


def modules_of(package: str) -> Iterator[str]:
    """Yield the modules of a package and of those inside, but for `__init__`."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).rglob("*.py")):
            if path.stem != "__init__":
                yield ".".join((package, *path.relative_to(folder).with_suffix("").parts))


def places() -> list[Place]:
    """Return all places that are looked at."""
    found: list[Place] = []
    for kind, (packages, calls) in KINDS.items():
        for module in (module for package in packages for module in modules_of(package)):
            tree = ast.parse(source_of(module))
            found += _reasons(kind, module, tree, calls) if calls else _functions(kind, module, tree)
    return found


def _functions(kind: str, module: str, tree: ast.Module) -> Iterator[Place]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            lines = [each.lineno for each in ast.walk(node) if isinstance(each, ast.stmt) and each is not node]
            yield Place(kind, module, node.name, frozenset(lines))


def _reasons(kind: str, module: str, tree: ast.Module, calls: tuple[str, ...]) -> Iterator[Place]:
    """Yield the statements with a call of one of these names, by the code and the beginning of the message."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Return, ast.Assign)):
            continue
        stated = node.value
        if isinstance(stated, ast.Call) and isinstance(stated.func, ast.Name) and stated.func.id in calls:
            text = ", ".join(map(ast.unparse, stated.args))
            yield Place(kind, module, text[:90], frozenset((node.lineno,)))


# --- in worker processes ----------------------------------------------------------------------------------------------
def reached_by(first: int, last: int, modules: frozenset[str]) -> set[tuple[str, int]]:
    """Return the statements, by module and line, that the graphs of a range of seeds reach."""
    reached: set[tuple[str, int]] = set()
    names = {module: {MARK: lambda line, module=module: reached.add((module, line))} for module in modules}
    sys.meta_path.insert(0, Replaced({module: marked(module) for module in modules}, names))
    from kernelyard_debug.isolation import Finished, run_isolated
    from kernelyard_fuzz.campaign import all_patterns, try_seed
    from kernelyard_fuzz.coverage import choose_favoured
    from kernelyard_fuzz.graphs import Recipe
    from kernelyard_fuzz.oracles import Taken

    recipe, total = Recipe(patterns=all_patterns()), Taken()

    def of(seeds: range, recipe: Recipe) -> tuple[set[tuple[str, int]], Taken]:
        taken = Taken()
        for seed in seeds:
            try_seed(seed, recipe, taken)
        return reached, taken

    for start in range(first, last, BATCH):
        batch = range(start, min(start + BATCH, last))
        verdict = run_isolated(lambda announce, batch=batch, recipe=recipe: of(batch, recipe), 1e6)
        if isinstance(verdict, Finished):
            more, taken = verdict.value
            reached |= more
            total.counts.update(taken.counts)
            recipe = replace(recipe, favoured=choose_favoured(total.counts, recipe))
    return reached


def main() -> None:
    """See the module's text."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for what was never taken")
    given = parser.parse_args()
    every = places()
    reached = reached_by(given.seed, given.seed + given.graphs, frozenset(place.module for place in every))
    never = [place for place in every if not any((place.module, line) in reached for line in place.lines)]
    for kind in KINDS:
        mine = [place for place in never if place.kind == kind]
        count = sum(place.kind == kind for place in every)
        print(f"{kind}: {count - len(mine)} of {count} taken by {given.graphs} graphs; never:")
        for place in mine:
            print(f"  {place.module}: {place.name}")
    if given.json:
        facts = [{"kind": each.kind, "module": each.module, "name": each.name} for each in never]
        given.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
