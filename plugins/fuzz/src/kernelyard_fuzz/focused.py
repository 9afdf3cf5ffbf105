"""Small graphs around one pattern: what is built from it, and its operators where networks have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard.errors import KernelyardError
from kernelyard.ir import Op, Var, get_op
from kernelyard.patterns import FusionPattern
from kernelyard.patterns.language.pattern import CallPattern, Pattern
from kernelyard.patterns.language.pattern_parts import cache_by_pattern, walk
from kernelyard_fuzz import bins
from kernelyard_fuzz.bins import Interval
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.movement_idioms import write_movements
from kernelyard_fuzz.quantized import add_quantized_layers
from kernelyard_fuzz.sketch import Sketch
from kernelyard_fuzz.splices import splice
from kernelyard_fuzz.writer import RefusedError, Writer
from kernelyard_fuzz.written import grow_or_write

READINGS = frozenset({"dequantize", "pad", "permute_dims"})  # of operands, which primitives do themselves
QUANTIZATION = frozenset({"dequantize", "quantize"})
KINDS = 5  # of small graphs
MOST_CHAINS = 2  # of quantized layers
FEW = 8  # operators, behind which another chain is short enough
MOST_ALONE = 5
IMAGES = ((1, 8, 9, 9), (2, 16, 8, 8), (1, 4, 6, 7))


def write_small(chooser: Chooser, sketch: Sketch, pattern: FusionPattern, others: Sequence[Op]) -> None:
    """Write a few operators that a pattern is about, in one of five ways. others: may stand beside them."""
    ops = _ops_of(pattern)
    kind = 1 if _is_quantized(pattern) and chooser.chance(60) else chooser.below(KINDS)
    if kind == 0:
        splice(chooser, sketch, pattern)
    elif kind == 1:
        for _ in range(chooser.between(1, MOST_CHAINS)):
            if sketch.operators <= FEW:
                add_quantized_layers(chooser, sketch, ops, others, None)
    elif kind == 2:
        _between_convolutions(chooser, sketch, lambda x: grow_or_write(chooser, sketch, chooser.pick(ops), x))
    elif kind == 3:
        _write_padded(chooser, sketch, ops)
    else:
        _alone(chooser, sketch, ops)


def _is_quantized(pattern: FusionPattern) -> bool:
    parts = (part for part in walk(pattern.pattern) if isinstance(part, CallPattern))
    return any(part.ops and set(part.ops) <= QUANTIZATION for part in parts)


def _ops_of(pattern: FusionPattern) -> Sequence[Op]:
    """Return the operators that a pattern is about: those of its innermost calls, but for readings of operands."""
    calls = [part for part in walk(pattern.pattern) if isinstance(part, CallPattern) and part.ops]
    inner = [call for call in calls if not any(map(_computes, call.args)) and not set(call.ops or ()) <= READINGS]
    return [get_op(name) for name in dict.fromkeys(name for call in inner or calls for name in call.ops or ())]


@cache_by_pattern
def _computes(operand: Pattern) -> bool:
    return any(isinstance(part, CallPattern) and not set(part.ops or ()) <= READINGS for part in walk(operand))


def _between_convolutions(chooser: Chooser, sketch: Sketch, between: Callable[[Var], Sequence[Var]]) -> None:
    """Write what stands between two convolutions, which choose the layout of what they hand each other."""
    writer = Writer(chooser, sketch)
    x = sketch.input(bins.array_in(chooser, chooser.pick(IMAGES), "float32", Interval(-1.0, 1.0)))
    try:
        y = writer.op("nn.conv2d", x, writer.weights(8, _channels(x), 3, 3), padding=(1, 1, 1, 1))
        made = [write_movements(writer, y)] if chooser.chance(30) else between(y)
        if made and made[0].tensor_type.rank == 4:
            writer.op("nn.conv2d", made[0], writer.weights(8, _channels(made[0]), 1, 1))
    except (RefusedError, KernelyardError):
        return  # the operator has no place there


def _channels(x: Var) -> int:
    return int(x.tensor_type.shape[1])  # pyright: ignore[reportArgumentType]


def _write_padded(chooser: Chooser, sketch: Sketch, ops: Sequence[Op]) -> None:
    """Write an operator of an image, or a row of it, or a room, with a border around it: zeros, mostly.

    Where no element is negative, zeros change no maximum.
    """
    x = _image(chooser, sketch)
    if chooser.chance(40):
        x = sketch.op(chooser.pick(("nn.relu", "sigmoid", "abs")), x) or x
    border = (0, 0, *(chooser.pick((1, 1, 0, 2)) for _ in range(x.tensor_type.rank - 2)))
    padded = sketch.op("pad", x, pads=border * 2, value=chooser.pick((0.0, 0.0, 0.0, 0.5)))
    if padded is not None:
        grow_or_write(chooser, sketch, chooser.pick(ops), padded)


def _alone(chooser: Chooser, sketch: Sketch, ops: Sequence[Op]) -> None:
    """Operators that read one image and not each other: what one compile says of many attributes."""
    x = _image(chooser, sketch)
    for _ in range(chooser.between(2, MOST_ALONE)):
        grow_or_write(chooser, sketch, chooser.pick(ops), x)


def _image(chooser: Chooser, sketch: Sketch) -> Var:
    """Return a parameter that is an image, or a row of it, or a room."""
    shape = (1, 4, 6, 7, 5)[: chooser.pick((3, 4, 4, 5))]
    return sketch.input(bins.array_in(chooser, shape, "float32", Interval(-1.0, 1.0)))
