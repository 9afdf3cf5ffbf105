"""Hypothesis strategies: shapes, tensors, dims and whole random modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.ops.samples import numbers

Draw = Callable[[st.SearchStrategy[Any]], Any]


def shapes(min_rank: int = 0, max_rank: int = 4, max_size: int = 5) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw shapes without empty axes."""
    return st.lists(st.integers(1, max_size), min_size=min_rank, max_size=max_rank).map(tuple)


@st.composite
def broadcastable_shapes(draw: Draw, count: int = 2, max_rank: int = 4, max_size: int = 5) -> list[tuple[int, ...]]:
    """Some shapes that broadcast against each other."""
    whole = draw(shapes(max_rank=max_rank, max_size=max_size))
    found = []
    for _ in range(count):
        kept = whole[draw(st.integers(0, len(whole))) :]
        found.append(tuple(draw(st.sampled_from([1, size])) for size in kept))
    return found


def tensors(shape: Sequence[int], dtype: str = "float32") -> st.SearchStrategy[np.ndarray]:
    """Arrays of that shape with elements of moderate size."""
    return st.integers(0, 1 << 16).map(lambda seed: numbers(*shape, dtype=dtype, seed=seed))


def symbolic_dims(names: Sequence[str] = ("n", "m"), max_leaves: int = 6) -> st.SearchStrategy[Dim]:
    """Dims over some symbols: sums, products with small numbers, floor divisions, maxima and minima."""
    leaves = st.one_of(st.integers(-4, 9), st.sampled_from(names).map(dims.symbol))
    operations = (
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        dims.maximum,
        dims.minimum,
        lambda a, b: dims.floordiv(a, b) if isinstance(b, int) and b > 0 else a,
    )

    def combine(parts: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
        return st.builds(lambda f, a, b: f(a, b), st.sampled_from(operations), parts, parts)

    return st.recursive(leaves, combine, max_leaves=max_leaves)


@dataclass(frozen=True)
class RandomProgram:
    """A module and inputs that fit it."""

    module: IRModule
    inputs: list[np.ndarray]


# Defined for every float, and none grows faster than its operand: random chains of them stay finite.
UNARY = ("abs", "negative", "tanh", "sigmoid", "nn.relu", "nn.gelu", "nn.silu", "nn.hard_swish", "floor", "sin")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
REDUCTIONS = ("sum", "mean", "max", "min")


@st.composite
def modules(draw: Draw, max_ops: int = 8, symbolic: bool = False) -> RandomProgram:
    """Random straight-line modules of float32 operators with one or two outputs.

    symbolic: some axes of the parameters are symbols.
    """
    builder = FunctionBuilder()
    sizes = {"n": draw(st.integers(1, 4)), "m": draw(st.integers(1, 4))}
    inputs: list[np.ndarray] = []
    values: list[Var] = []
    for number in range(draw(st.integers(1, 3))):
        shape = [draw(_axis(symbolic)) for _ in range(draw(st.integers(1, 4)))]
        values.append(builder.input(f"x{number}", shape))
        inputs.append(draw(tensors([dims.evaluate(dim, sizes) for dim in shape])))
    for _ in range(draw(st.integers(1, max_ops))):
        step = draw(st.sampled_from(STEPS))
        values.append(step(draw, builder, draw(st.sampled_from(values[-4:]))))
    other = draw(st.sampled_from(values))
    results = [values[-1]] if other is values[-1] else [values[-1], other]
    module = IRModule({"main": builder.function(*results)})
    return RandomProgram(module, inputs)


def _axis(symbolic: bool) -> st.SearchStrategy[Dim]:
    known = st.integers(1, 4)
    return st.one_of(known, st.sampled_from(["n", "m"]).map(dims.symbol)) if symbolic else known


Step = Callable[[Draw, FunctionBuilder, Var], Var]


def _unary(draw: Draw, builder: FunctionBuilder, x: Var) -> Var:
    return builder.op(draw(st.sampled_from(UNARY)), x)


def _binary(draw: Draw, builder: FunctionBuilder, x: Var) -> Var:
    """With itself, a number, or a constant that broadcasts along the last axis."""
    last = x.tensor_type.shape[-1] if x.tensor_type.rank else 1
    size = last if isinstance(last, int) else 1
    other = draw(st.one_of(st.just(x), st.sampled_from([0.5, 2.0]), tensors((size,))))
    return builder.op(draw(st.sampled_from(BINARY)), x, other)


def _reduction(draw: Draw, builder: FunctionBuilder, x: Var) -> Var:
    rank = x.tensor_type.rank
    axes = tuple(sorted(draw(st.sets(st.sampled_from(range(rank)))))) if rank else ()
    return builder.op(draw(st.sampled_from(REDUCTIONS)), x, axes=axes, keepdims=draw(st.booleans()))


def _permutation(draw: Draw, builder: FunctionBuilder, x: Var) -> Var:
    return builder.op("permute_dims", x, axes=tuple(draw(st.permutations(range(x.tensor_type.rank)))))


def _flattening(draw: Draw, builder: FunctionBuilder, x: Var) -> Var:
    return builder.op("reshape", x, shape=(x.tensor_type.numel,))


def _softmax(draw: Draw, builder: FunctionBuilder, x: Var) -> Var:
    rank = x.tensor_type.rank
    return builder.op("nn.softmax", x, axis=draw(st.integers(0, rank - 1))) if rank else builder.op("tanh", x)


def _concatenation(draw: Draw, builder: FunctionBuilder, x: Var) -> Var:
    rank = x.tensor_type.rank
    return builder.op("concat", x, x, axis=draw(st.integers(0, rank - 1))) if rank else builder.op("abs", x)


def _matmul(draw: Draw, builder: FunctionBuilder, x: Var) -> Var:
    columns = x.tensor_type.shape[-1] if x.tensor_type.rank else None
    if not isinstance(columns, int):
        return builder.op("sigmoid", x)
    return builder.op("matmul", x, draw(tensors((columns, draw(st.integers(1, 4))))))


STEPS: tuple[Step, ...] = (
    _unary,
    _unary,
    _binary,
    _binary,
    _reduction,
    _permutation,
    _flattening,
    _softmax,
    _concatenation,
    _matmul,
)
