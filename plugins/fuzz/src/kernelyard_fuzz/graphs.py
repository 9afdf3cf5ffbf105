"""Graphs: random programs of 5 to 20 operators, with patterns of backends and control flow in them, and disturbed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from kernelyard.cached_property import cached_property
from kernelyard.ir import Constant, Function, FunctionBuilder, IRModule, Op, Var, get_op
from kernelyard.ir.module import PRIVATE
from kernelyard.ir.types import TensorType
from kernelyard.patterns import FusionPattern
from kernelyard_fuzz import bins
from kernelyard_fuzz.bins import Interval
from kernelyard_fuzz.chooser import Chooser, DrawingChooser, SeededChooser
from kernelyard_fuzz.focused import write_small
from kernelyard_fuzz.idioms import idiom
from kernelyard_fuzz.operators import grow, vocabulary
from kernelyard_fuzz.quantized import LAYERS, add_quantized_layers
from kernelyard_fuzz.sketch import Sketch, Spliced, is_tame
from kernelyard_fuzz.splices import splice
from kernelyard_fuzz.written import grow_or_write

CHEAP = ("add", "multiply", "nn.relu", "permute_dims", "reshape", "sum", "concat", "matmul", "nn.softmax", "subtract")
Drawn = TypeVar("Drawn", Op, FusionPattern)
SMALL = 40  # of 100 graphs
SHAPES = ((1, 4, 6, 6), (2, 3, 5, 7), (3, 8), (2, 5, 16), (1, 2, 9), (17,))  # of what idioms begin with
RECENT = 5  # values that the next operator reads most often


@dataclass(frozen=True)
class Graph:
    """A module with one function main, and feeds that fit it, in order. refused: operators tried in vain.

    spliced: the groups of operators in it that were built from patterns. is_small: it is about one pattern alone.
    """

    module: IRModule
    feeds: tuple[np.ndarray, ...]
    operators: int = 0
    refused: int = 0
    spliced: tuple[Spliced, ...] = ()
    is_small: bool = False


@dataclass(frozen=True)
class Recipe:
    """Configure what graphs are made of. patterns: to be spliced in; favoured: names of what is drawn more often.

    largest: operators at most.
    """

    # An assertion that fails prints its values, which took minutes for all patterns and operators.
    patterns: tuple[FusionPattern, ...] = field(default=(), repr=False)
    favoured: frozenset[str] = frozenset()
    smallest: int = 5
    largest: int = 20
    ops: tuple[Op, ...] = field(default_factory=vocabulary, repr=False)

    @cached_property
    def cheap(self) -> tuple[Op, ...]:
        """The operators that graphs have most of."""
        return tuple(op for op in self.ops if op.name in CHEAP)

    @cached_property
    def layers(self) -> tuple[Op, ...]:
        """The operators that quantized layers are made of."""
        return tuple(op for op in self.ops if op.name in LAYERS)

    @cached_property
    def favoured_ops(self) -> tuple[Op, ...]:
        """The operators that are drawn more often."""
        return tuple(op for op in self.ops if op.name in self.favoured)

    @cached_property
    def favoured_patterns(self) -> tuple[FusionPattern, ...]:
        """The patterns that are drawn more often."""
        return tuple(pattern for pattern in self.patterns if pattern.name in self.favoured)


def random_graph(chooser: Chooser, recipe: Recipe) -> Graph:
    """Return a random graph: of many operators, or a small one around a pattern."""
    sketch = Sketch()
    if recipe.patterns and chooser.chance(SMALL):
        write_small(chooser, sketch, _draw(chooser, recipe.patterns, recipe.favoured_patterns), recipe.ops)
        if sketch.operators:
            return _finish(sketch, is_small=True)
    wanted = chooser.between(recipe.smallest, recipe.largest)
    for _ in range(3 * wanted):
        if sketch.operators >= wanted:
            break
        _step(chooser, sketch, recipe)
    _disturb(chooser, sketch)
    return _finish(sketch)


def _finish(sketch: Sketch, is_small: bool = False) -> Graph:
    spliced = tuple(sketch.spliced)
    return Graph(sketch.module(), tuple(sketch.feeds), sketch.operators, sketch.refused, spliced, is_small)


def graph_of_seed(seed: int, recipe: Recipe) -> Graph:
    """Return the graph that follows from a seed and a recipe."""
    return random_graph(SeededChooser(seed), recipe)


@st.composite
def graphs(draw: Callable[[st.SearchStrategy[object]], object], recipe: Recipe | None = None) -> Graph:
    """Random graphs for hypothesis, which makes those small that fail."""
    return random_graph(DrawingChooser(draw), recipe or Recipe())


# --- growth -----------------------------------------------------------------------------------------------------------
def _step(chooser: Chooser, sketch: Sketch, recipe: Recipe) -> None:
    """Add an operator, an idiom, a pattern, quantized layers, or a branch or loop."""
    kind = chooser.below(25)
    if 15 <= kind < 20 and recipe.patterns:
        splice(chooser, sketch, _draw(chooser, recipe.patterns, recipe.favoured_patterns))
    elif kind == 14 and sketch.values:
        chooser.pick((_branch, _loop))(chooser, sketch, _recent(chooser, sketch))
    elif kind >= 20:
        idiom(chooser, sketch, _draw_floats(chooser, sketch))
    elif kind == 13:
        read = _recent(chooser, sketch) if sketch.values else None
        add_quantized_layers(chooser, sketch, recipe.layers, recipe.ops, read)
    else:
        is_cheap = chooser.chance(25)
        read = _recent(chooser, sketch) if sketch.values else None
        op = chooser.pick(recipe.cheap) if is_cheap else _draw(chooser, recipe.ops, recipe.favoured_ops)
        grow_or_write(chooser, sketch, op, read)


def _draw(chooser: Chooser, items: Sequence[Drawn], favoured: Sequence[Drawn]) -> Drawn:
    return chooser.pick(favoured if favoured and chooser.chance(40) else items)


def _recent(chooser: Chooser, sketch: Sketch) -> Var:
    values = sketch.values
    return chooser.pick(values if chooser.chance(25) else values[-RECENT:])


def _draw_floats(chooser: Chooser, sketch: Sketch) -> Var:
    """Return a recent tensor of floats, which idioms read; a parameter of its own where there is none."""
    values = [var for var in sketch.values if var.tensor_type.dtype == "float32" and var.tensor_type.rank]
    if values and chooser.chance(85):
        return chooser.pick(values if chooser.chance(25) else values[-RECENT:])
    return sketch.input(bins.array_in(chooser, chooser.pick(SHAPES), "float32", Interval(-2.0, 2.0)))


def _disturb(chooser: Chooser, sketch: Sketch) -> None:
    """Make values in the middle outputs, or give them another reader: what fusion must keep."""
    inner = [binding.var for binding in sketch.builder.bindings if binding.var in sketch.arrays]
    for _ in range(chooser.below(3) if inner else 0):
        var = chooser.pick(inner)
        if chooser.chance(50):
            sketch.outputs.append(var)
        else:
            grow(chooser, sketch, get_op(chooser.pick(("negative", "add", "multiply", "sum"))), var)


# --- control flow -----------------------------------------------------------------------------------------------------
def _private(build: Callable[[FunctionBuilder, Var], Var], type_: TensorType) -> Function:
    builder = FunctionBuilder()
    return builder.function(build(builder, builder.parameter(type_, "x")), attrs={PRIVATE: True})


UNARY: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    name: get_op(name).reference  # pyright: ignore[reportAssignmentType]
    for name in ("nn.relu", "tanh", "negative", "sigmoid", "abs")
}


def _branch(chooser: Chooser, sketch: Sketch, x: Var) -> None:
    """One of two functions of a value, by a flag that is a parameter or follows from the value."""
    if x.tensor_type.dtype != "float32":
        return
    names = chooser.pick(tuple(UNARY)), chooser.pick(tuple(UNARY))
    functions = [f"branch{len(sketch.functions) + number}" for number in range(2)]
    flag = sketch.input(np.array(chooser.chance(50)))
    result = UNARY[names[0 if sketch.arrays[flag] else 1]](sketch.arrays[x])
    for function, name in zip(functions, names, strict=True):
        sketch.functions[function] = _private(lambda b, y, name=name: b.op(name, y), x.tensor_type)
    var = sketch.builder.if_(flag, functions[0], functions[1], [x], x.type)
    sketch.arrays[var] = result


def _loop(chooser: Chooser, sketch: Sketch, x: Var) -> None:
    """A value halved, and something added, some times."""
    if x.tensor_type.dtype != "float32":
        return
    turns = chooser.below(4)
    count = TensorType((), "int64")
    condition, body = FunctionBuilder(), FunctionBuilder()
    i = condition.parameter(count, "i")
    condition.parameter(x.type, "x")
    test = condition.op("less", i, Constant(np.array(turns)))
    i, y = body.parameter(count, "i"), body.parameter(x.type, "x")
    following = body.op("add", body.op("multiply", y, 0.5), 0.25)
    step = body.op("add", i, Constant(np.array(1)))
    number = len(sketch.functions)
    names = f"condition{number}", f"body{number}"
    private = {PRIVATE: True}
    sketch.functions[names[0]] = condition.function(test, attrs=private)
    sketch.functions[names[1]] = body.function(step, following, attrs=private)
    start = sketch.input(np.array(0))
    result = sketch.arrays[x]
    for _ in range(turns):
        result = (result * np.float32(0.5) + np.float32(0.25)).astype(np.float32)
    type_ = sketch.functions[names[1]].result_type
    pair = sketch.builder.while_(*names, [start, x], type_)
    if is_tame(result):
        sketch.arrays[sketch.builder.get(pair, 1)] = result
