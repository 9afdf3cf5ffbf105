"""Score the fuzzer: plant faults in the compiler, one at a time, and count those that `kernelyard fuzz` finds.

    python benchmarks/fuzz_mutants.py --count 30 --seconds 60

A fault is one change of the source, as it is imported, in a process of its own: a comparison, a bound, a sign or a
constant is another one. Which, follows from --seed. Some change nothing that can be seen (a cost, a limit): they count,
too.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

# By layer: modules whose every line has a meaning for results; costs and texts are elsewhere.
LAYERS = {
    "pass": (
        "kernelyard.transform.canonical_arithmetic",
        "kernelyard.transform.canonical_shape",
        "kernelyard.transform.fold_scale_axis",
        "kernelyard.transform.sink_reshape",
        "kernelyard.transform.eliminate_common_subexpr",
        "kernelyard.transform.simplify_inference",
        "kernelyard.transform.compose_activations",
        "kernelyard.transform.quantized_movement",
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
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}
UNSEEN = (ast.Raise, ast.AnnAssign, ast.arg, ast.JoinedStr)  # messages and types, which no result depends on

# Imports a module from changed source, then runs the campaign batch by batch until something is found.
CHILD = """
import ast, importlib.abc, importlib.util, json, sys, time, warnings
module, text, seconds, seed = sys.argv[1], sys.stdin.read(), float(sys.argv[2]), int(sys.argv[3])
class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name != module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        self.origin = spec.origin
        return importlib.util.spec_from_file_location(name, spec.origin, loader=self)
    def create_module(self, spec):
        return None
    def exec_module(self, made):
        exec(compile(text, self.origin, "exec"), made.__dict__)
sys.meta_path.insert(0, Changed())
warnings.simplefilter("ignore")
start = time.monotonic()
def say(found, graphs=0):
    print(json.dumps({"found": found, "graphs": graphs, "seconds": round(time.monotonic() - start, 1)}))
    sys.exit()
try:
    from kernelyard_fuzz.campaign import all_patterns, try_seeds
    from kernelyard_fuzz.graphs import Recipe
    recipe, graphs, spent = Recipe(patterns=all_patterns()), 0, 0.0
    while spent < seconds:
        tally = try_seeds(range(seed, seed + 20), recipe)
        seed, graphs, spent = seed + 20, graphs + tally.graphs, spent + tally.seconds
        if tally.finds:
            find = tally.finds[0]
            say(f"{find.oracle} {find.kind} {find.place}".strip(), graphs)
except Exception as error:
    say(f"start {type(error).__name__}")
say("", graphs)
"""


@dataclass(frozen=True)
class Fault:
    """A change of one node of a module's syntax."""

    layer: str
    module: str
    line: int
    what: str
    text: str


class _Changer(ast.NodeTransformer):
    """Changes the node of a number; without one, counts the nodes that can be changed."""

    def __init__(self, number: int = -1) -> None:
        self.number, self.count = number, 0
        self.done: tuple[int, str] | None = None

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, UNSEEN):
            return node
        changed = _changed(node)
        if changed is not None:
            if self.count == self.number:
                self.done = getattr(node, "lineno", 0), f"{ast.unparse(node)} -> {ast.unparse(changed)}"
                node = ast.copy_location(changed, node)
                self.count += 1
                return node
            self.count += 1
        return self.generic_visit(node)


def _changed(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS and len(node.ops) == 1:
        return ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not isinstance(node.left, ast.Constant):
        return ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + 1)
    return None


def faults(count: int, seed: int) -> list[Fault]:
    """Return faults, the layers in turn."""
    chooser = random.Random(seed)
    found: list[Fault] = []
    while len(found) < count:
        layer = tuple(LAYERS)[len(found) % len(LAYERS)]
        module = chooser.choice(LAYERS[layer])
        source = Path(str(_spec(module).origin)).read_text(encoding="utf-8")
        counter = _Changer()
        counter.visit(ast.parse(source))
        if not counter.count:
            continue
        changer = _Changer(chooser.randrange(counter.count))
        changed = ast.fix_missing_locations(changer.visit(ast.parse(source)))
        assert changer.done is not None
        found.append(Fault(layer, module, *changer.done, ast.unparse(changed)))
    return found


def _spec(module: str) -> ModuleSpec:
    spec = find_spec(module)
    if spec is None:
        raise SystemExit(f"{module} is not installed")
    return spec


def main() -> None:
    """Plant faults and print how many are found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=600.0, help="of processor time for one fault")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = 0
    chosen = faults(given.count, given.seed)
    for fault in chosen:
        command = [sys.executable, "-c", CHILD, fault.module, str(given.seconds), "0"]
        done = subprocess.run(command, input=fault.text, capture_output=True, text=True, check=False)
        last = done.stdout.strip().splitlines()[-1:] or [json.dumps({"found": f"exit {done.returncode}"})]
        facts = json.loads(last[0])
        found += bool(facts["found"])
        place = f"{fault.module}:{fault.line}"
        print(
            f"{facts['found'] or 'NOT FOUND':30} {facts.get('graphs', 0):5} graphs  {place}: {fault.what}", flush=True
        )
    print(f"{found} of {len(chosen)} found, within {given.seconds:g} s of processor time each")


if __name__ == "__main__":
    main()
