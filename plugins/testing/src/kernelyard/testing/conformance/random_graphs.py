"""L5: random graphs with at least one claimed operator in them; the same graphs in every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING

from kernelyard.ir import Call, IRModule
from kernelyard.testing.conformance.bench import Bench, NothingToRun
from kernelyard.testing.conformance.claims import Claims
from kernelyard.transform.pipelines import get_pipeline

if TYPE_CHECKING:
    from kernelyard.testing.strategies import RandomProgram

COUNT = 40  # graphs of each kind
TRIES = 1000  # graphs, until so many have a claimed operator
DTYPE = "float32"  # what random graphs are made of


def random_cases(claims: Claims) -> Iterator[tuple[str, Callable[[Bench], None]]]:
    """Yield names and checks of the graphs, of known sizes and, where they are claimed, of unknown ones."""
    ops = frozenset(op for op, claimed in claims.ops.items() if DTYPE in claimed)
    for symbolic in (False, True) if claims.symbolic else (False,):
        for number in range(COUNT if ops else 0):
            name = f"L5 random graph {number}{' of unknown sizes' if symbolic else ''}"
            yield name, partial(_check, ops, symbolic, number)


def _check(ops: frozenset[str], symbolic: bool, number: int, bench: Bench) -> None:
    programs = _programs(ops, symbolic)
    if number >= len(programs):
        raise NothingToRun("there is no further graph with a claimed operator")
    program = programs[number]
    exe = bench.compile_offloaded_or_refused(program.module, ops)
    bench.right(exe, program.module, program.inputs)
    bench.right(exe, program.module, program.inputs, "strided")


@cache
def _programs(ops: frozenset[str], symbolic: bool) -> list[RandomProgram]:
    from kernelyard.testing.strategies import random_program

    drawn = (random_program(random.Random(seed).choice, symbolic=symbolic) for seed in range(TRIES))
    return list(islice((program for program in drawn if _calls(program.module) & ops), COUNT))


def _calls(module: IRModule) -> set[str]:
    """Return the operators that are left of a module once it is simplified."""
    main = get_pipeline("simplify")(module).graph_functions()["main"]
    return {binding.value.op_name for binding in main.bindings if isinstance(binding.value, Call)}
