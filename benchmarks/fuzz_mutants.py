"""Score the fuzzer: plant faults in the compiler, one at a time, and count those that `kernelyard fuzz` finds.

    python benchmarks/fuzz_mutants.py map reached.json --graphs 3000
    python benchmarks/fuzz_mutants.py score reached.json --count 100 --seconds 60 --json score.json

A fault is one change of the source, as it is imported, in a process of its own: a comparison, a bound, a sign or a
constant is another one. Which, follows from --seed. Some change nothing that can be seen (a cost, a limit): they count,
too.

The graphs of a campaign follow from their seeds, so that most of them need not be made to know that they do not find a
fault: those that never reach the changed statement. `map` writes which graph reaches what; `score` tries those graphs
alone, in order. The graph that finds a fault is the one that a campaign from seed 0 comes to after as many graphs.
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
from pathlib import Path
from typing import Any

from mutation import MARK, Fault, Replaced, faults, marked

# By layer: modules whose every line has a meaning for results; costs and texts are elsewhere.
LAYERS = {
    "pass": (
        "kernelyard.transform.simplify.canonical_arithmetic",
        "kernelyard.transform.simplify.canonical_shape",
        "kernelyard.transform.algebraic.fold_scale_axis",
        "kernelyard.transform.algebraic.sink_reshape",
        "kernelyard.transform.simplify.eliminate_common_subexpr",
        "kernelyard.transform.simplify.simplify_inference",
        "kernelyard.transform.compose.compose_activations",
        "kernelyard.transform.quantization.quantized_movement",
    ),
    "pattern": (
        "kernelyard.patterns.match_result",
        "kernelyard.patterns.matcher",
        "kernelyard.patterns.legality",
        "kernelyard.patterns.regions",
        "kernelyard_dnnl.patterns",
    ),
    "check": ("kernelyard.patterns.checks", "kernelyard_dnnl.checks", "kernelyard_dnnl.integer_checks"),
    "kernel": (
        "kernelyard.legalize.shape",
        "kernelyard.legalize.reduction",
        "kernelyard.legalize.pooling",
        "kernelyard.legalize.normalization",
        "kernelyard_native_cpu.codegen.arithmetic",
        "kernelyard_native_cpu.codegen.reduction",
    ),
    "runtime": (
        "kernelyard.runtime.program.memory_plan",
        "kernelyard.driver.lower",
        "kernelyard_dnnl.lowering",
        "kernelyard.runtime.execute.step_binder",
    ),
}
BATCH = 20  # graphs of one worker process
BACKEND = "dnnl"  # whose patterns and checks have faults


# --- in a process of its own ------------------------------------------------------------------------------------------
def map_reached(first: int, last: int) -> None:
    """Print, as JSON, the statements that each graph reaches, for a range of seeds."""
    reached: set[tuple[str, int]] = set()
    modules = [module for each in LAYERS.values() for module in each]
    names = {module: {MARK: lambda line, module=module: reached.add((module, line))} for module in modules}
    sys.meta_path.insert(0, Replaced({module: marked(module) for module in modules}, names))
    from kernelyard_debug.isolated import Finished, isolated
    from kernelyard_fuzz.campaign import all_patterns, try_seed
    from kernelyard_fuzz.graphs import Recipe
    from kernelyard_fuzz.oracles import Fired

    recipe = Recipe(patterns=all_patterns())
    print(json.dumps({"start": sorted(reached)}), flush=True)

    def of(seeds: range) -> dict[int, list[tuple[str, int]]]:
        found: dict[int, list[tuple[str, int]]] = {}
        for seed in seeds:
            reached.clear()
            try_seed(seed, recipe, Fired())
            found[seed] = sorted(reached)
        return found

    for start in range(first, last, BATCH):
        batch = range(start, min(start + BATCH, last))
        verdict = isolated(lambda announce, batch=batch: of(batch), 600)
        print(json.dumps({"seeds": verdict.value if isinstance(verdict, Finished) else {}}), flush=True)


def attack(fault: Mapping[str, Any], seeds: Sequence[int], untaken: Sequence[str], seconds: float) -> None:
    """Print, as JSON, what graphs of these seeds find with a fault planted, or which pattern nothing takes any more."""
    start, graphs, spent = time.monotonic(), 0, 0.0

    def say(found: str, seed: int = -1) -> None:
        facts = {"found": found, "seed": seed, "graphs": graphs, "cpu_seconds": round(spent, 1)}
        print(json.dumps(facts | {"seconds": round(time.monotonic() - start, 1)}))

    try:
        sys.meta_path.insert(0, Replaced({fault["module"]: compile(fault["text"], fault["module"], "exec")}, {}))
        from kernelyard_fuzz.campaign import all_patterns, try_seeds
        from kernelyard_fuzz.graphs import Recipe
        from kernelyard_fuzz.taken import never_taken

        recipe = Recipe(patterns=all_patterns())
    except Exception as error:  # whatever an import of a changed module raises
        say(f"start {type(error).__name__}", 0)
        return
    for first in range(0, len(seeds), BATCH):
        tally = try_seeds(seeds[first : first + BATCH], recipe)
        graphs, spent = graphs + tally.graphs, spent + tally.seconds
        if tally.finds:
            find = tally.finds[0]
            say(f"{find.oracle} {find.kind} {find.place}".strip(), find.seed)
            return
        if spent >= seconds:
            break
    if fault["layer"] not in ("pattern", "check"):
        say("")
        return
    try:
        lost = set(never_taken(BACKEND, recipe)) - set(untaken)
    except Exception as error:  # the compiler raised it on a valid module
        say(f"compile {type(error).__name__}", 0)
        return
    say(f"never taken: {min(lost)}" if lost else "", 0 if lost else -1)


def print_untaken() -> None:
    """Print, as JSON, the patterns that none of their graphs brings about, with no fault planted."""
    from kernelyard_fuzz.campaign import all_patterns
    from kernelyard_fuzz.graphs import Recipe
    from kernelyard_fuzz.taken import never_taken

    print(json.dumps({"untaken": never_taken(BACKEND, Recipe(patterns=all_patterns()))}))


# --- the score --------------------------------------------------------------------------------------------------------
def _mapped(graphs: int, jobs: int) -> dict[str, list[int]]:
    """Return the seeds that reach each statement, in processes side by side."""
    share = -(-graphs // jobs)
    ranges = [(first, min(first + share, graphs)) for first in range(0, graphs, share)]
    found: dict[str, set[int]] = {"graphs": set(range(graphs))}
    with ThreadPoolExecutor(jobs) as pool:
        for lines in pool.map(lambda each: _child("reach", *map(str, each)), ranges):
            facts = [json.loads(line) for line in lines]
            for seed, places in [pair for each in facts for pair in each.get("seeds", {}).items()]:
                for module, at in places:
                    found.setdefault(f"{module}:{at}", set()).add(int(seed))
            for module, at in [place for each in facts for place in each.get("start", ())]:
                found[f"{module}:{at}"] = found["graphs"]  # what is done before the first graph concerns all
    return {place: sorted(seeds) for place, seeds in sorted(found.items())}


def _child(*words: str, given: str = "") -> Iterator[str]:
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=False)
    return iter([line for line in done.stdout.splitlines() if line.startswith("{")])


def _scored(
    fault: Fault, reached: Mapping[str, Sequence[int]], untaken: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Return a fault's facts and what found it."""
    every = reached["graphs"]
    seeds = reached.get(f"{fault.module}:{fault.statement}", ()) if fault.statement else every
    facts = {"found": "", "seed": -1, "graphs": 0, "cpu_seconds": 0.0}
    if seeds:
        request = json.dumps(
            {"fault": fault.to_json() | {"text": fault.text}, "seeds": list(seeds), "untaken": untaken}
        )
        lines = list(_child("attack", str(seconds), given=request))
        facts = json.loads(lines[-1]) if lines else facts | {"found": "the process ended"}
    return fault.to_json() | facts | {"reaching": len(seeds)}


def _say(row: Mapping[str, Any]) -> None:
    outcome = row["found"] or ("not found" if row["reaching"] else "never reached")
    where = f"seed {row['seed']}" if row["found"] else f"{row['graphs']} of {row['reaching']} graphs"
    print(f"{outcome:36} {where:22} {row['module']}:{row['line']}: {row['what']}", flush=True)


def score(given: argparse.Namespace) -> None:
    """Plant faults and print how many are found."""
    reached = json.loads(Path(given.map).read_text(encoding="utf-8"))
    chosen = faults(LAYERS, given.count, given.seed)[given.skip :]
    untaken = json.loads(next(_child("untaken")))["untaken"]
    print(f"with no fault, nothing takes {', '.join(untaken)}", flush=True)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in as_completed([pool.submit(_scored, fault, reached, untaken, given.seconds) for fault in chosen]):
            rows.append(row := done.result())
            _say(row)
            if given.json:
                Path(given.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    for layer in LAYERS:
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
        return attack(request["fault"], request["seeds"], request["untaken"], float(sys.argv[2]))
    if sys.argv[1:2] == ["untaken"]:
        return print_untaken()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("map", "score"))
    parser.add_argument("map", help="file with the statements that graphs reach")
    parser.add_argument("--graphs", type=int, default=3000)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0, help="so many of these")
    parser.add_argument("--seconds", type=float, default=600.0, help="of processor time for one fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", help="file for the score")
    given = parser.parse_args()
    if given.what == "map":
        Path(given.map).write_text(json.dumps(_mapped(given.graphs, given.jobs)), encoding="utf-8")
        return None
    return score(given)


if __name__ == "__main__":
    main()
