"""Oracle of backends: each pattern that a backend offers is taken somewhere.

A check that refuses too much makes programs slower, never wrong, so that no result shows it. Here each pattern has
small graphs of its own: what is built from it, its operators between quantized values, and between two convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.errors import KernelyardError
from kernelyard.ir import Op, get_op
from kernelyard.patterns import FusionPattern
from kernelyard.patterns.pattern import CallPattern, Pattern
from kernelyard.patterns.pattern_parts import walk
from kernelyard_fuzz import bins
from kernelyard_fuzz.bins import Interval
from kernelyard_fuzz.chooser import Chooser, SeededChooser
from kernelyard_fuzz.configuration import Configuration
from kernelyard_fuzz.graphs import Recipe
from kernelyard_fuzz.idioms import RefusedError, Writer
from kernelyard_fuzz.operators import grow
from kernelyard_fuzz.oracles import placed
from kernelyard_fuzz.quantized import quantized_layers
from kernelyard_fuzz.sketch import Sketch
from kernelyard_fuzz.splices import splice

TRIES = 40  # graphs of one pattern
READINGS = frozenset({"dequantize", "pad", "permute_dims"})  # of operands, which primitives do themselves
IMAGES = ((1, 8, 9, 9), (2, 16, 8, 8), (1, 4, 6, 7))


def never_taken(backend: str, recipe: Recipe, seed: int = 0) -> tuple[str, ...]:
    """Return the names of a backend's patterns that it takes in none of their graphs."""
    mine = [pattern for pattern in recipe.patterns if pattern.name.startswith(f"{backend}.")]
    arguments = Configuration(backends=(backend,)).arguments()
    taken: set[str] = set()
    for pattern in mine:
        for number in range(seed, seed + TRIES):
            if pattern.name in taken:
                break
            sketch = Sketch()
            _write(SeededChooser(number), sketch, pattern, number, recipe)
            if sketch.operators:
                taken |= {region.pattern for region in placed(sketch.module(), **arguments, instruments=[]).regions}
    return tuple(pattern.name for pattern in mine if pattern.name not in taken)


def _write(chooser: Chooser, sketch: Sketch, pattern: FusionPattern, number: int, recipe: Recipe) -> None:
    ops = _ops_of(pattern)
    kind = number % 4
    if kind == 0:
        splice(chooser, sketch, pattern)
    elif kind == 1:
        quantized_layers(chooser, sketch, ops, recipe.ops, None)
    elif kind == 2:
        _between_convolutions(chooser, sketch, ops)
    else:
        _padded(chooser, sketch, ops)


def _ops_of(pattern: FusionPattern) -> Sequence[Op]:
    """Return the operators that a pattern is about: those of its innermost calls, but for readings of operands."""
    calls = [part for part in walk(pattern.pattern) if isinstance(part, CallPattern) and part.ops]
    inner = [call for call in calls if not any(map(_computes, call.args)) and not set(call.ops or ()) <= READINGS]
    return [get_op(name) for name in dict.fromkeys(name for call in inner or calls for name in call.ops or ())]


def _computes(operand: Pattern) -> bool:
    return any(isinstance(part, CallPattern) and not set(part.ops or ()) <= READINGS for part in walk(operand))


def _between_convolutions(chooser: Chooser, sketch: Sketch, ops: Sequence[Op]) -> None:
    writer = Writer(chooser, sketch)
    x = sketch.input(bins.array_in(chooser, chooser.pick(IMAGES), "float32", Interval(-1.0, 1.0)))
    try:
        channels = int(x.tensor_type.shape[1])  # pyright: ignore[reportArgumentType]
        y = writer.op("nn.conv2d", x, writer.weights(8, channels, 3, 3), padding=(1, 1, 1, 1))
        made = grow(chooser, sketch, chooser.pick(ops), y)
        if made and made[0].tensor_type.rank == 4:
            channels = int(made[0].tensor_type.shape[1])  # pyright: ignore[reportArgumentType]
            writer.op("nn.conv2d", made[0], writer.weights(8, channels, 1, 1))
    except (RefusedError, KernelyardError):
        return  # the operator has no place there


def _padded(chooser: Chooser, sketch: Sketch, ops: Sequence[Op]) -> None:
    """An operator of an image, or a row of it, or a room, with zeros around it."""
    rank = chooser.between(3, 5)
    x = sketch.input(bins.array_in(chooser, (1, 4, 6, 7, 5)[:rank], "float32", Interval(-1.0, 1.0)))
    padded = sketch.op("pad", x, pads=(0, 0, *[1] * (rank - 2)) * 2)
    if padded is not None:
        grow(chooser, sketch, chooser.pick(ops), padded)
