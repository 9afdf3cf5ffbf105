"""Hypothesis strategies: shapes, tensors, dims and whole random modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from hypothesis import strategies as st

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.ops.samples import draw_numbers

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]


def shapes(min_rank: int = 0, max_rank: int = 4, max_size: int = 5) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw shapes without empty axes."""
    return st.lists(st.integers(1, max_size), min_size=min_rank, max_size=max_rank).map(tuple)


@st.composite
def broadcastable_shapes(draw: Draw, count: int = 2, max_rank: int = 4, max_size: int = 5) -> list[tuple[int, ...]]:
    """Draw shapes that broadcast against each other."""
    whole = draw(shapes(max_rank=max_rank, max_size=max_size))
    found = []
    for _ in range(count):
        kept = whole[draw(st.integers(0, len(whole))) :]
        found.append(tuple(draw(st.sampled_from([1, size])) for size in kept))
    return found


def tensors(shape: Sequence[int], dtype: str = "float32") -> st.SearchStrategy[np.ndarray]:
    """Draw arrays of that shape with elements of moderate size."""
    return st.integers(0, 1 << 16).map(lambda seed: draw_numbers(*shape, dtype=dtype, seed=seed))


def symbolic_dims(names: Sequence[str] = ("n", "m"), max_leaves: int = 6) -> st.SearchStrategy[Dim]:
    """Draw dims over some symbols: sums, products with small numbers, floor divisions, maxima and minima."""
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
SIZES = (1, 2, 3, 4)


class Choose(Protocol):
    """Choose one of some things: hypothesis does, or `random.Random(seed).choice`."""

    def __call__(self, items: Sequence[T], /) -> T:
        """Return one of the items."""
        ...


@st.composite
def modules(draw: Draw, max_ops: int = 8, symbolic: bool = False) -> RandomProgram:
    """Random straight-line modules of float32 operators with one or two outputs.

    symbolic: some axes of the parameters are symbols.
    """
    return random_program(lambda items: draw(st.sampled_from(items)), max_ops, symbolic)


def random_program(choose: Choose, max_ops: int = 8, symbolic: bool = False) -> RandomProgram:
    """Return a module as `modules` draws them, with choices from elsewhere.

    Example:
        >>> import random
        >>> one, other = (random_program(random.Random(7).choice) for _ in range(2))
        >>> str(one.module) == str(other.module)
        True
    """
    builder = FunctionBuilder()
    sizes = {"n": choose(SIZES), "m": choose(SIZES)}
    inputs: list[np.ndarray] = []
    values: list[Var] = []
    for number in range(choose((1, 2, 3))):
        shape = [_axis(choose, symbolic) for _ in range(choose(SIZES))]
        values.append(builder.input(f"x{number}", shape))
        inputs.append(_numbers(choose, [dims.evaluate(dim, sizes) for dim in shape]))
    for _ in range(choose(range(1, max_ops + 1))):
        step = choose(STEPS)
        values.append(step(choose, builder, choose(values[-4:])))
    other = choose(values)
    results = [values[-1]] if other is values[-1] else [values[-1], other]
    return RandomProgram(IRModule({"main": builder.function(*results)}), inputs)


def _axis(choose: Choose, symbolic: bool) -> Dim:
    return dims.symbol(choose(("n", "m"))) if symbolic and choose((False, True)) else choose(SIZES)


def _numbers(choose: Choose, shape: Sequence[int]) -> np.ndarray:
    return draw_numbers(*shape, dtype="float32", seed=choose(range(1 << 16)))


Step = Callable[[Choose, FunctionBuilder, Var], Var]


def _unary(choose: Choose, builder: FunctionBuilder, x: Var) -> Var:
    return builder.op(choose(UNARY), x)


def _binary(choose: Choose, builder: FunctionBuilder, x: Var) -> Var:
    """With itself, a number, or a constant that broadcasts along the last axis."""
    last = x.tensor_type.shape[-1] if x.tensor_type.rank else 1
    size = last if isinstance(last, int) else 1
    kind = choose(("itself", "number", "constant"))
    if kind == "itself":
        return builder.op(choose(BINARY), x, x)
    return builder.op(choose(BINARY), x, choose((0.5, 2.0)) if kind == "number" else _numbers(choose, (size,)))


def _reduction(choose: Choose, builder: FunctionBuilder, x: Var) -> Var:
    axes = tuple(axis for axis in range(x.tensor_type.rank) if choose((False, True)))
    return builder.op(choose(REDUCTIONS), x, axes=axes, keepdims=choose((False, True)))


def _permutation(choose: Choose, builder: FunctionBuilder, x: Var) -> Var:
    left = list(range(x.tensor_type.rank))
    axes = tuple(left.pop(left.index(choose(left))) for _ in range(x.tensor_type.rank))
    return builder.op("permute_dims", x, axes=axes)


def _flattening(choose: Choose, builder: FunctionBuilder, x: Var) -> Var:
    return builder.op("reshape", x, shape=(x.tensor_type.numel,))


def _softmax(choose: Choose, builder: FunctionBuilder, x: Var) -> Var:
    rank = x.tensor_type.rank
    return builder.op("nn.softmax", x, axis=choose(range(rank))) if rank else builder.op("tanh", x)


def _concatenation(choose: Choose, builder: FunctionBuilder, x: Var) -> Var:
    rank = x.tensor_type.rank
    return builder.op("concat", x, x, axis=choose(range(rank))) if rank else builder.op("abs", x)


def _matmul(choose: Choose, builder: FunctionBuilder, x: Var) -> Var:
    columns = x.tensor_type.shape[-1] if x.tensor_type.rank else None
    if not isinstance(columns, int):
        return builder.op("sigmoid", x)
    return builder.op("matmul", x, _numbers(choose, (columns, choose(SIZES))))


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
