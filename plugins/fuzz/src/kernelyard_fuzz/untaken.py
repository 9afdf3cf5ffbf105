"""Oracle of backends: each pattern that a backend offers is taken somewhere.

A check that refuses too much makes programs slower, never wrong, so that no result shows it. Here each pattern has
small graphs of its own: what is built from it, its operators between quantized values, and between two convolutions.
"""

from __future__ import annotations

from collections.abc import Collection

from kernelyard_fuzz.chooser import SeededChooser
from kernelyard_fuzz.configuration import Configuration
from kernelyard_fuzz.focused import write_small
from kernelyard_fuzz.graphs import Recipe
from kernelyard_fuzz.oracles import place_module
from kernelyard_fuzz.sketch import Sketch

TRIES = 40  # graphs of one pattern


def find_untaken_patterns(backend: str, recipe: Recipe, seed: int = 0, known: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of a backend's patterns that it takes in none of their graphs.

    known: those that nobody need ask about again: what this processor has no instructions for, say.
    """
    mine = [each for each in recipe.patterns if each.name.startswith(f"{backend}.") and each.name not in known]
    arguments = Configuration(backends=(backend,)).arguments()
    taken: set[str] = set()
    for pattern in mine:
        for number in range(seed, seed + TRIES):
            if pattern.name in taken:
                break
            sketch = Sketch()
            write_small(SeededChooser(number), sketch, pattern, recipe.ops)
            if sketch.operators:
                taken |= {
                    region.pattern for region in place_module(sketch.module(), **arguments, instruments=[]).regions
                }
    return tuple(pattern.name for pattern in mine if pattern.name not in taken)
