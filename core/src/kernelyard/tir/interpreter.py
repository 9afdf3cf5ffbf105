"""The reference interpreter of loop-level code: NumPy over whole iteration spaces, every access checked.

It is the oracle of the code generators' tests: slow, and strict about bounds and about order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.errors import ExecutionError, ShapeError
from kernelyard.ir import IRModule
from kernelyard.ops.interpreter import Symbols, Value, call_function
from kernelyard.tir.analysis import axes_of
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, Axis, Binary, Cast, Const, DimValue, Expr, Load, Select, Unary, const
from kernelyard.tir.iterate import Iterate, State
from kernelyard.tir.primfunc import ComputeBlock, IterVar, PrimFunc, neutral_element
from kernelyard.tir.sorting import sorts
from kernelyard.tir.visitor import ExprRewriter, rewrite_block

Arrays = dict[str, np.ndarray]
MOST_POINTS = 1 << 20  # of a reduction that are evaluated at once: an operator of 10^8 would take gigabytes


def evaluate(
    function: PrimFunc, inputs: Sequence[np.ndarray], symbols: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """Return the outputs of a PrimFunc.

    Symbols that stand alone as a dim of an input are read from it; `symbols` gives the others.
    Raises: ShapeError for inputs of another shape or dtype, ExecutionError for an access outside a buffer.
    """
    values = _solve_symbols(function, inputs, dict(symbols or {}))
    arrays: Arrays = {}
    for buffer, array in zip(function.inputs, inputs, strict=True):
        _check_input(buffer, array, values)
        arrays[buffer.name] = np.asarray(array)
    for buffer in (*function.outputs, *function.locals):
        shape = tuple(dims.evaluate(dim, values) for dim in buffer.shape)
        arrays[buffer.name] = _allocate_poisoned(shape, buffer.dtype)
    with np.errstate(all="ignore"):
        for step, blocks in itertools.groupby(function.blocks, lambda block: block.step_axis):
            _run_steps(step, tuple(blocks), arrays, values)
    return [arrays[buffer.name] for buffer in function.outputs]


@call_function.register(PrimFunc)
def _(function: PrimFunc, args: Sequence[Value], module: IRModule, symbols: Symbols) -> Value:
    results = evaluate(function, [np.asarray(arg) for arg in args], symbols)
    return results[0] if len(results) == 1 else tuple(results)


def _solve_symbols(function: PrimFunc, inputs: Sequence[np.ndarray], values: dict[str, int]) -> dict[str, int]:
    if len(inputs) != len(function.inputs):
        raise ShapeError("wrong number of inputs", found=len(inputs), expected=len(function.inputs))
    for buffer, array in zip(function.inputs, inputs, strict=True):
        for dim, size in zip(buffer.shape, np.shape(array), strict=False):
            name = dims.as_symbol(dim)
            if name is not None:
                values.setdefault(name, size)
    return values


def _check_input(buffer: Buffer, array: np.ndarray, values: Mapping[str, int]) -> None:
    shape = tuple(dims.evaluate(dim, values) for dim in buffer.shape)
    if np.shape(array) != shape or array.dtype != dtypes.to_numpy(buffer.dtype):
        raise ShapeError(
            f"input {buffer.name!r} does not fit",
            found=f"{np.shape(array)} {array.dtype}",
            expected=f"{shape} {buffer.dtype}",
        )


def _allocate_poisoned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Allocate memory filled with bytes that make a read before the first write visible."""
    array = np.empty(shape, dtypes.to_numpy(dtype))
    array.reshape(-1).view(np.uint8)[...] = 1 if dtype == "bool" else 0xC3
    return array


def _points(axes: Sequence[IterVar], values: Mapping[str, int]) -> tuple[Arrays, int]:
    """Return every point of an iteration space, in order: a flat array per axis, and how many points there are."""
    extents = [max(dims.evaluate(axis.extent, values), 0) for axis in axes]
    count = int(np.prod(extents, dtype=np.int64))
    grids = (
        np.unravel_index(np.arange(count), extents) if extents and count else [np.zeros(count, np.int64)] * len(axes)
    )
    return {axis.name: np.asarray(grid, np.int64) for axis, grid in zip(axes, grids, strict=True)}, count


def _run_steps(step: IterVar | None, blocks: Sequence[ComputeBlock], arrays: Arrays, values: Mapping[str, int]) -> None:
    """Run blocks that share a step axis, or have none."""
    for number in range(1 if step is None else dims.evaluate(step.extent, values)):
        for block in blocks:
            if step is None:
                _run_block(block, arrays, values)
            else:
                at_step = rewrite_block(
                    block, ExprRewriter(lambda e, n=number: const(n, INDEX) if e == step.axis else e)
                )
                _run_block(at_step, arrays, values)


def _run_block(block: ComputeBlock, arrays: Arrays, values: Mapping[str, int]) -> None:
    spatial, count = _points(block.spatial_axes, values)
    reduced, steps = _points(block.reduce_axes, values)
    if block.reducer is None:
        for step in range(steps):
            here = {name: np.full(count, grid[step]) for name, grid in reduced.items()}
            point = _Points(block, arrays, values, {**spatial, **here}, count)
            point.store(point.value(block.body))
        return
    if sorts(block):
        _sort_rows(block, arrays, values)
        return
    at_once = max(MOST_POINTS // max(steps, 1), 1)
    results = [
        _reduce(
            block,
            arrays,
            values,
            {name: grid[first : first + at_once] for name, grid in spatial.items()},
            min(at_once, count - first),
            reduced,
            steps,
        )
        for first in range(0, max(count, 1), at_once)
    ]
    _Points(block, arrays, values, spatial, count).store(np.concatenate(results))


def _reduce(
    block: ComputeBlock,
    arrays: Arrays,
    values: Mapping[str, int],
    spatial: Arrays,
    count: int,
    reduced: Arrays,
    steps: int,
) -> np.ndarray:
    """Return what a block reduces to at some points of its spatial axes."""
    assert block.reducer is not None
    repeated = {name: np.repeat(grid, steps) for name, grid in spatial.items()}
    tiled = {name: np.tile(grid, count) for name, grid in reduced.items()}
    points = _Points(block, arrays, values, {**repeated, **tiled}, count * steps)
    body = points.value(block.body).reshape(count, steps)
    if block.reducer in ("argmax", "argmin"):
        assert block.arg is not None
        args = points.value(block.arg).reshape(count, steps)
        chosen = body.argmax(axis=1) if block.reducer == "argmax" else body.argmin(axis=1)
        return args[np.arange(count), chosen]
    outer = _Points(block, arrays, values, spatial, count)
    init = outer.value(block.init or neutral_element(block.reducer, block.output.dtype))
    combine = _REDUCERS[block.reducer]
    return combine(init, combine.reduce(body, axis=1, dtype=body.dtype)) if steps else init


def _sort_rows(block: ComputeBlock, arrays: Arrays, values: Mapping[str, int]) -> None:
    """Sort a row for each point of the axes that the body uses, and store the places at the positions asked for."""
    assert block.arg is not None
    rows = tuple(axis for axis in block.spatial_axes if axis.name in axes_of(block.body))
    extents = [max(dims.evaluate(axis.extent, values), 0) for axis in (*rows, *block.reduce_axes)]
    points = _Points(block, arrays, values, *_points((*rows, *block.reduce_axes), values))
    spatial, count = _points(block.spatial_axes, values)
    outer = _Points(block, arrays, values, spatial, count)
    if not count:
        return
    position = outer.value(block.arg)
    outside = (position < 0) | (position >= extents[-1])
    if outside.any():
        raise ExecutionError(
            "a position is outside the sorted row",
            where=f"block {block.name!r}",
            found=position[outside][0],
            expected=f"0 to {extents[-1] - 1}",
        )
    bodies = points.value(block.body).reshape(-1, extents[-1])
    order = _stable_order(bodies, descending=block.reducer == "argsort_descending")
    row = np.ravel_multi_index([spatial[axis.name] for axis in rows], extents[:-1]) if rows else 0
    outer.store(order[row, position])


def _stable_order(bodies: np.ndarray, *, descending: bool) -> np.ndarray:
    """Return the places of each row's bodies in order, by their ranks: these can be negated, whatever the dtype."""
    if bodies.dtype.isbuiltin != 1:  # NumPy does not sort the NaN of a float that it does not know
        bodies = bodies.astype(np.float32)
    ranks = np.unique(bodies, return_inverse=True)[1].reshape(bodies.shape)
    return np.argsort(-ranks if descending else ranks, axis=1, kind="stable")


class _Points:
    """Expressions at some points of a block's iteration space, each as a flat array."""

    def __init__(
        self, block: ComputeBlock, arrays: Arrays, values: Mapping[str, int], axes: Arrays, count: int
    ) -> None:
        self.block = block
        self.arrays = arrays
        self.values = values
        self.axes = axes
        self.count = count
        self.known: dict[Expr, np.ndarray] = {}

    def value(self, expr: Expr) -> np.ndarray:
        if expr not in self.known:
            self.known[expr] = np.broadcast_to(self._compute(expr), (self.count,))
        return self.known[expr]

    def _compute(self, expr: Expr) -> np.ndarray:
        match expr:
            case Axis() | State():
                return self.axes[expr.name]
            case Const():
                return np.asarray(expr.value).astype(dtypes.to_numpy(expr.dtype))
            case DimValue():
                return np.asarray(dims.evaluate(expr.dim, self.values), np.int64)
            case Load():
                return self.arrays[expr.buffer.name][self._element(expr.buffer, expr.indices)]
            case Unary():
                return UNARY[expr.op](self.value(expr.x))
            case Binary():
                return BINARY[expr.op](self.value(expr.a), self.value(expr.b))
            case Cast():
                return dtypes.convert(self.value(expr.x), expr.dtype)
            case Select():
                return self._select(expr)
            case Iterate():
                return self._iterate(expr)
        raise ExecutionError("an expression of an unknown kind", found=type(expr).__name__)

    def _select(self, expr: Select) -> np.ndarray:
        condition = self.value(expr.condition)
        result = np.empty(self.count, dtypes.to_numpy(expr.dtype))
        for branch, chosen in ((expr.a, np.flatnonzero(condition)), (expr.b, np.flatnonzero(~condition))):
            axes = {name: grid[chosen] for name, grid in self.axes.items()}
            result[chosen] = _Points(self.block, self.arrays, self.values, axes, len(chosen)).value(branch)
        return result

    def _iterate(self, expr: Iterate) -> np.ndarray:
        value = self.value(expr.init)
        for _ in range(expr.count):
            axes = {**self.axes, expr.state.name: value}
            before, value = value, _Points(self.block, self.arrays, self.values, axes, self.count).value(expr.body)
            if np.array_equal(before, value):
                break
        return value

    def _element(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[np.ndarray, ...]:
        found = tuple(self.value(index) for index in indices)
        for axis, (grid, size) in enumerate(zip(found, self.arrays[buffer.name].shape, strict=True)):
            outside = (grid < 0) | (grid >= size)
            if outside.any():
                raise ExecutionError(
                    f"an access is outside buffer {buffer.name!r}",
                    where=f"block {self.block.name!r}",
                    found=f"index {grid[outside][0]} on axis {axis}",
                    expected=f"0 to {size - 1}",
                )
        return found

    def store(self, body: np.ndarray) -> None:
        where = self._element(self.block.output, self.block.indices)
        self.arrays[self.block.output.name][where] = body if where else body[0]


def _evaluate_in_double(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Compute in float64 and round once, for every float type."""
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.fromiter((math.erf(value) for value in x), np.float64, len(x))


def _divide_toward_zero(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = np.floor_divide(a, b)
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype)


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "erf": _evaluate_in_double(_erf),
    "sigmoid": _evaluate_in_double(lambda x: 1 / (1 + np.exp(-x))),
    "rsqrt": _evaluate_in_double(lambda x: 1 / np.sqrt(x)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "not": np.logical_not,
    "bitnot": np.invert,
    **{
        name: _evaluate_in_double(getattr(np, name))
        for name in ("exp", "log", "log1p", "expm1", "sqrt", "sin", "cos", "tan")
    },
    **{name: _evaluate_in_double(getattr(np, name)) for name in ("sinh", "cosh", "tanh")},
    **{
        name: _evaluate_in_double(getattr(np, f"arc{name[1:]}"))
        for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")
    },
}
BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "truncdiv": _divide_toward_zero,
    "mod": np.mod,
    "fmod": np.fmod,
    "pow": np.power,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_REDUCERS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}
