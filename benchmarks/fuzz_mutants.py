"""Score the fuzzer: plant faults in the compiler, one at a time, and count those that `kernelyard fuzz` finds.

    python benchmarks/fuzz_mutants.py map reached.json --graphs 3000
    python benchmarks/fuzz_mutants.py score reached.json --seconds 60 --json score.json [NAME ...]

The faults are a list, `benchmarks/faults/`: 20 each in passes, patterns, checks, kernels and the runtime. A fault is
one change of the source as it is imported, in a process of its own. Of these 29 (6 or so at the head of each file)
were drawn by chance from all places where a comparison, a bound, a sign or a constant can be another one; some change
nothing that can be seen (a cost, a message): they count, too. The others are mistakes that people make.

The graphs of a campaign follow from their seeds, so that most of them need not be made to know that they do not find a
fault: those that never reach the changed statement. `map` writes which graph of a campaign, steered as it is, reaches
what; `score` tries those graphs alone, in order.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from mutation import MARK, Fault, Replaced, marked, read_faults

FAULTS = read_faults(Path(__file__).parent / "faults")
BATCH = 20  # graphs of one worker process
BACKEND = "dnnl"  # whose patterns and checks have faults


# --- in a process of its own ------------------------------------------------------------------------------------------
def map_reached(first: int, last: int) -> None:
    """Print, as JSON, the statements that each graph reaches, for a range of seeds."""
    reached: set[tuple[str, int]] = set()
    modules = {fault.module for fault in FAULTS}
    names = {module: {MARK: lambda line, module=module: reached.add((module, line))} for module in modules}
    sys.meta_path.insert(0, Replaced({module: marked(module) for module in modules}, names))
    from kernelyard_debug.isolation import Finished, run_isolated
    from kernelyard_fuzz.campaign import all_patterns, try_seed
    from kernelyard_fuzz.coverage import choose_favoured
    from kernelyard_fuzz.graphs import Recipe
    from kernelyard_fuzz.oracles import Taken

    recipe, total = Recipe(patterns=all_patterns()), Taken()
    print(json.dumps({"start": sorted(reached)}), flush=True)

    def of(seeds: range, recipe: Recipe) -> tuple[dict[int, list[tuple[str, int]]], dict[int, Any], Taken]:
        found: dict[int, list[tuple[str, int]]] = {}
        costs: dict[int, Any] = {}
        taken = Taken()
        for seed in seeds:
            reached.clear()
            _, find = try_seed(seed, recipe, taken)
            if find is None:  # else it says nothing of a fault
                found[seed], costs[seed] = sorted(reached), taken.costs
            else:
                print(find, file=sys.stderr)
        return found, costs, taken

    for start in range(first, last, BATCH):
        batch = range(start, min(start + BATCH, last))
        verdict = run_isolated(lambda announce, batch=batch, recipe=recipe: of(batch, recipe), 600)
        if isinstance(verdict, Finished):
            seeds, costs, taken = verdict.value
            print(json.dumps({"seeds": seeds, "costs": costs, "favoured": sorted(recipe.favoured)}), flush=True)
            total.counts.update(taken.counts)
            recipe = replace(recipe, favoured=choose_favoured(total.counts, recipe))


def attack(
    fault: Mapping[str, Any],
    seeds: Sequence[int],
    favoured: Mapping[str, Sequence[str]],
    costs: Mapping[str, Mapping[str, Sequence[int]]],
    untaken: Sequence[str],
    seconds: float,
) -> None:
    """Print, as JSON, what graphs of these seeds find with a fault planted, or which pattern nothing takes any more.

    favoured: of the recipes of the seeds, by the first seed of their batch. costs: of the graphs with no fault.
    """
    began, graphs, spent = time.monotonic(), 0, 0.0

    def say(found: str, seed: int = -1) -> None:
        facts = {"found": found, "seed": seed, "graphs": graphs, "cpu_seconds": round(spent, 1)}
        print(json.dumps(facts | {"seconds": round(time.monotonic() - began, 1)}))

    try:
        sys.meta_path.insert(0, Replaced({fault["module"]: compile(fault["text"], fault["module"], "exec")}, {}))
        from kernelyard_fuzz.campaign import all_patterns, try_seeds
        from kernelyard_fuzz.costs import Cost
        from kernelyard_fuzz.graphs import Recipe
        from kernelyard_fuzz.untaken import find_untaken_patterns

        recipe = Recipe(patterns=all_patterns())
    except Exception as error:  # whatever an import of a changed module raises
        say(f"start {type(error).__name__}", 0)
        return
    known = {int(seed): {stage: Cost(*each) for stage, each in of.items()} for seed, of in costs.items()}
    for start, batch in groupby(seeds, key=lambda seed: str(seed - seed % BATCH)):
        tally = try_seeds(list(batch), replace(recipe, favoured=frozenset(favoured.get(start, ()))), known)
        graphs, spent = graphs + tally.graphs, spent + tally.seconds
        if tally.finds:
            find = tally.finds[0]
            say(f"{find.oracle} {find.kind} {find.place}".strip(), find.seed)
            return
        if spent >= seconds:
            break
    if fault["layer"] not in ("patterns", "checks"):
        say("")
        return
    try:
        lost = find_untaken_patterns(BACKEND, recipe, known=untaken)
    except Exception as error:  # the compiler raised it on a valid module
        say(f"compile {type(error).__name__}", 0)
        return
    say(f"never taken: {min(lost)}" if lost else "", 0 if lost else -1)


def print_untaken() -> None:
    """Print, as JSON, the patterns that none of their graphs brings about, with no fault planted."""
    from kernelyard_fuzz.campaign import all_patterns
    from kernelyard_fuzz.graphs import Recipe
    from kernelyard_fuzz.untaken import find_untaken_patterns

    recipe, known = Recipe(patterns=all_patterns()), list[str]()
    while more := find_untaken_patterns(BACKEND, recipe, known=known):  # some are taken in graphs of these alone
        known += more
    print(json.dumps({"untaken": known}))


# --- the score --------------------------------------------------------------------------------------------------------
def _mapped(graphs: int, jobs: int) -> dict[str, Any]:
    """Return the seeds that reach each statement, in processes side by side; and what was favoured, by batch."""
    share = BATCH * -(-graphs // (jobs * BATCH))
    ranges = [(first, min(first + share, graphs)) for first in range(0, graphs, share)]
    found: dict[str, set[int]] = {"graphs": set()}
    favoured: dict[str, list[str]] = {}
    costs: dict[str, Any] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for lines in pool.map(lambda each: _child("reach", *map(str, each)), ranges):
            facts = [json.loads(line) for line in lines]
            favoured |= {_batch_of(each["seeds"]): each["favoured"] for each in facts if each.get("seeds")}
            costs |= {seed: of for each in facts for seed, of in each.get("costs", {}).items()}
            for seed, places in [pair for each in facts for pair in each.get("seeds", {}).items()]:
                found["graphs"].add(int(seed))
                for module, at in places:
                    found.setdefault(f"{module}:{at}", set()).add(int(seed))
            for module, at in [place for each in facts for place in each.get("start", ())]:
                found[f"{module}:{at}"] = found["graphs"]  # what is done before the first graph concerns all
    every = {place: sorted(seeds) for place, seeds in sorted(found.items())}
    return every | {"favoured": favoured, "costs": costs}


def _batch_of(seeds: Mapping[str, Any]) -> str:
    """Return the first seed of a batch that has these."""
    seed = int(min(seeds, key=int))
    return str(seed - seed % BATCH)


def _child(*words: str, given: str = "") -> Iterator[str]:
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=False)
    return iter([line for line in done.stdout.splitlines() if line.startswith("{")])


def _scored(fault: Fault, reached: Mapping[str, Any], untaken: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return a fault's facts and what found it."""
    every = reached["graphs"]
    seeds = reached.get(f"{fault.module}:{fault.statement}", ()) if fault.statement else every
    facts = {"found": "", "seed": -1, "graphs": 0, "cpu_seconds": 0.0}
    if seeds:
        planted = _facts(fault) | {"text": fault.text}
        costs = {str(seed): reached["costs"][str(seed)] for seed in seeds if str(seed) in reached["costs"]}
        given = {"fault": planted, "seeds": list(seeds), "favoured": reached["favoured"]}
        given |= {"costs": costs, "untaken": untaken}
        request = json.dumps(given)
        lines = list(_child("attack", str(seconds), given=request))
        facts = json.loads(lines[-1]) if lines else facts | {"found": "the process ended"}
    return _facts(fault) | facts | {"reaching": len(seeds)}


def _facts(fault: Fault) -> dict[str, Any]:
    """Return a fault as JSON data."""
    return {"name": fault.name, "layer": fault.layer, "module": fault.module, "line": fault.line}


def _say(row: Mapping[str, Any]) -> None:
    outcome = row["found"] or ("not found" if row["reaching"] else "never reached")
    where = f"seed {row['seed']}" if row["found"] else f"{row['graphs']} of {row['reaching']} graphs"
    print(f"{outcome:36} {where:22} {row['name']} ({row['module']}:{row['line']})", flush=True)


def score(given: argparse.Namespace) -> None:
    """Plant faults and print how many are found."""
    reached = json.loads(Path(given.map).read_text(encoding="utf-8"))
    chosen = [fault for fault in FAULTS if not given.names or fault.name in given.names]
    for fault in chosen:
        assert fault.text  # one whose statement is another now ends this before anything is scored
    untaken = json.loads(next(_child("untaken")))["untaken"]
    print(f"with no fault, nothing takes {', '.join(untaken)}", flush=True)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in as_completed([pool.submit(_scored, fault, reached, untaken, given.seconds) for fault in chosen]):
            rows.append(row := done.result())
            _say(row)
            if given.json:
                Path(given.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    for layer in sorted({fault.layer for fault in chosen}):
        mine = [row for row in rows if row["layer"] == layer]
        print(f"{layer}: {sum(bool(row['found']) for row in mine)} of {len(mine)}")
    found = sum(bool(row["found"]) for row in rows)
    print(f"{found} of {len(rows)} found, among {len(reached['graphs'])} graphs, {given.seconds:g} s each at most")


def main() -> None:
    """Read the command line."""
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["reach"]:
        return map_reached(int(sys.argv[2]), int(sys.argv[3]))
    if sys.argv[1:2] == ["attack"]:
        request = json.loads(sys.stdin.read())
        return attack(**request, seconds=float(sys.argv[2]))
    if sys.argv[1:2] == ["untaken"]:
        return print_untaken()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("map", "score"))
    parser.add_argument("map", help="file with the statements that graphs reach")
    parser.add_argument("--graphs", type=int, default=3000)
    parser.add_argument("names", nargs="*", help="of faults; all, where none is named")
    parser.add_argument("--seconds", type=float, default=600.0, help="of processor time for one fault")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", help="file for the score")
    given = parser.parse_intermixed_args()
    if given.what == "map":
        Path(given.map).write_text(json.dumps(_mapped(given.graphs, given.jobs)), encoding="utf-8")
        return None
    return score(given)


if __name__ == "__main__":
    main()
