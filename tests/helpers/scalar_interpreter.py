"""A second reference interpreter of loop-level IR, in plain Python: one element at a time, without NumPy.

It shares only the IR with `kernelyard.tir.interpreter`, so that tests can compare the two: numbers are Python's, rounded
to their dtype after every operation; loops run as `ComputeBlock` defines.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from scalar_rounding import Number, rounded_to

from kernelyard import dims
from kernelyard.errors import ExecutionError
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Binary, Cast, Const, DimValue, Expr, Load, Select, Unary
from kernelyard.tir.iterate import Iterate, State
from kernelyard.tir.primfunc import ComputeBlock, IterVar, PrimFunc, neutral_element
from kernelyard.tir.sorting import sorts

Memory: TypeAlias = dict[str, "list[Number | None]"]  # elements in row-major order; None: not written yet


def evaluate_scalar(
    function: PrimFunc, inputs: Sequence[Sequence[Number]], symbols: Mapping[str, int]
) -> list[list[Number]]:
    """Return the outputs of a PrimFunc, each as its elements in row-major order; so are the inputs.

    symbols: the value of every symbolic dim. Raises: ExecutionError for an access outside a buffer, or of an element
    that nobody wrote.

    Example:
        >>> from kernelyard.ir import TensorType
        >>> from kernelyard.tir.builder import PrimFuncBuilder
        >>> b = PrimFuncBuilder()
        >>> x = b.input("x", TensorType((2, 3), "float32"))
        >>> total = b.reduce("sum", (2,), (3,), lambda at, point: x[at[0], point[0]])
        >>> evaluate_scalar(b.finish((total,)), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], {})
        [[6.0, 15.0]]
    """
    memory: Memory = {}
    for buffer, elements in zip(function.inputs, inputs, strict=True):
        memory[buffer.name] = [rounded_to(element, buffer.dtype) for element in elements]
    for buffer in (*function.outputs, *function.locals):
        memory[buffer.name] = [None] * max(dims.evaluate(buffer.numel, symbols), 0)
    for step, blocks in itertools.groupby(function.blocks, lambda block: block.step_axis):
        runs = [_Block(block, memory, symbols) for block in blocks]
        for number in range(1 if step is None else dims.evaluate(step.extent, symbols)):
            for block in runs:
                block.run({} if step is None else {step.name: number})
    return [[_written(element, buffer) for element in memory[buffer.name]] for buffer in function.outputs]


def _written(element: Number | None, buffer: Buffer) -> Number:
    if element is None:
        raise ExecutionError(f"an uninitialized element of buffer {buffer.name!r} is read")
    return element


class _Block:
    """One compute block over memory."""

    def __init__(self, block: ComputeBlock, memory: Memory, symbols: Mapping[str, int]) -> None:
        self.block = block
        self.memory = memory
        self.symbols = symbols
        self.axes: dict[str, int] = {}
        self.states: dict[str, Number] = {}
        self.shapes: dict[Buffer, tuple[int, ...]] = {}

    def run(self, outside: Mapping[str, int]) -> None:
        """Run all points, inside of the loop over a step axis."""
        for spatial in self._points(self.block.spatial_axes):
            self.axes = {**outside, **spatial}
            if self.block.reducer is None:
                for point in self._points(self.block.reduce_axes):
                    self.axes |= point
                    self._store(self.value(self.block.body))
            elif self.block.arg is not None and sorts(self.block):
                self._store(self._place_of_sorted(self.block.arg))
            elif self.block.arg is not None:
                self._store(self._extreme(self.block.reducer, self.block.arg))
            else:
                self._store(self._reduced(self.block.reducer))

    def _points(self, axes: Sequence[IterVar]) -> list[dict[str, int]]:
        ranges = [range(dims.evaluate(axis.extent, self.symbols)) for axis in axes]
        return [dict(zip([a.name for a in axes], point, strict=True)) for point in itertools.product(*ranges)]

    def _reduced(self, reducer: str) -> Number:
        block, dtype = self.block, self.block.output.dtype
        outer = dict(self.axes)
        total = self.value(block.init if block.init is not None else neutral_element(reducer, dtype))
        for point in self._points(block.reduce_axes):
            self.axes = {**outer, **point}
            total = rounded_to(_REDUCERS[reducer](total, self.value(block.body)), dtype)
        self.axes = outer
        return total

    def _extreme(self, reducer: str, arg: Expr) -> Number:
        """Return `arg` at the first iteration whose body is extreme or NaN."""
        outer = dict(self.axes)
        best: Number | None = None
        found: Number | None = None
        for point in self._points(self.block.reduce_axes):
            self.axes = {**outer, **point}
            body = self.value(self.block.body)
            if best is None or _beats(body, best, reducer):
                best, found = body, self.value(arg)
        self.axes = outer
        if found is None:
            raise ExecutionError("the maximum or minimum of an empty range", where=f"block {self.block.name!r}")
        return found

    def _place_of_sorted(self, position: Expr) -> Number:
        """Return where on the reduce axis the body lies that sorting puts at a position."""
        outer, bodies = dict(self.axes), list[Number]()
        for point in self._points(self.block.reduce_axes):
            self.axes = {**outer, **point}
            bodies.append(self.value(self.block.body))
        self.axes = outer
        wanted = self.value(position)
        if not 0 <= wanted < len(bodies):
            raise ExecutionError("a position is outside the sorted row", where=f"block {self.block.name!r}")

        def key(place: int) -> tuple[bool, Number]:
            body = bodies[place]
            return (True, 0) if body != body else (False, body)

        # Reversed or not, equal keys keep their order.
        descending = self.block.reducer == "argsort_descending"
        return sorted(range(len(bodies)), key=key, reverse=descending)[int(wanted)]

    # --- expressions --------------------------------------------------------------------------------------------------
    def value(self, expr: Expr) -> Number:
        """Return an expression at the current point, in its dtype."""
        match expr:
            case Axis():
                return self.axes[expr.name]
            case State():
                return self.states[expr.name]
            case Const():
                return expr.value
            case DimValue():
                return dims.evaluate(expr.dim, self.symbols)
            case Load():
                return _written(self.memory[expr.buffer.name][self._place(expr.buffer, expr.indices)], expr.buffer)
            case Unary():
                return rounded_to(_UNARY[expr.op](self.value(expr.x)), expr.dtype)
            case Binary():
                return rounded_to(_BINARY[expr.op](self.value(expr.a), self.value(expr.b)), expr.dtype)
            case Cast():
                return rounded_to(self.value(expr.x), expr.dtype)
            case Select():
                return self.value(expr.a if self.value(expr.condition) else expr.b)
            case Iterate():
                return self._iterate(expr)
        raise ExecutionError("an expression of an unknown kind", found=type(expr).__name__)

    def _iterate(self, expr: Iterate) -> Number:
        state = self.value(expr.init)
        for _ in range(expr.count):
            self.states[expr.state.name] = state
            before, state = state, self.value(expr.body)
            if state == before:
                break
        return state

    def _place(self, buffer: Buffer, indices: Sequence[Expr]) -> int:
        if buffer not in self.shapes:
            self.shapes[buffer] = tuple(dims.evaluate(dim, self.symbols) for dim in buffer.shape)
        place = 0
        for axis, (index, size) in enumerate(zip(map(self.value, indices), self.shapes[buffer], strict=True)):
            if not 0 <= index < size:
                raise ExecutionError(
                    f"an access is outside buffer {buffer.name!r}",
                    where=f"block {self.block.name!r}",
                    found=f"index {index} on axis {axis}",
                    expected=f"0 to {size - 1}",
                )
            place = place * size + int(index)
        return place

    def _store(self, value: Number) -> None:
        self.memory[self.block.output.name][self._place(self.block.output, self.block.indices)] = value


def _beats(body: Number, best: Number, reducer: str) -> bool:
    if best != best or body != body:
        return best == best
    return body > best if reducer == "argmax" else body < best


# --- operations -------------------------------------------------------------------------------------------------------
def _or_nan(function: Callable[[float], float]) -> Callable[[Number], float]:
    """Return a function of `math`: no number where it has no value, infinite where it overflows."""

    def of(x: Number) -> float:
        try:
            return function(x)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.copysign(math.inf, x) if function is math.sinh else math.inf

    return of


def _log(x: Number) -> float:
    return -math.inf if x == 0 else _or_nan(math.log)(x)


def _log1p(x: Number) -> float:
    return -math.inf if x == -1 else _or_nan(math.log1p)(x)


def _atanh(x: Number) -> float:
    return math.copysign(math.inf, x) if abs(x) == 1 else _or_nan(math.atanh)(x)


def _sigmoid(x: Number) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 or x != x else 0.0


def _whole(function: Callable[[float], int]) -> Callable[[Number], float]:
    return lambda x: math.copysign(function(x), x) if math.isfinite(x) else float(x)


def _sign(x: Number) -> Number:
    return x if x != x else (x > 0) - (x < 0)


def _divide(a: Number, b: Number) -> Number:
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _floordiv(a: Number, b: Number) -> Number:
    return a // b if b else 0


def _truncdiv(a: Number, b: Number) -> Number:
    if not b:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _mod(a: Number, b: Number) -> Number:
    try:
        return a % b
    except ZeroDivisionError:
        return math.nan if isinstance(a, float) else 0


def _fmod(a: Number, b: Number) -> Number:
    if isinstance(a, float) or isinstance(b, float):
        try:
            return math.fmod(a, b)
        except ValueError:
            return math.nan
    return int(math.copysign(1, a)) * (abs(a) % abs(b)) if b else 0


def _power(a: Number, b: Number) -> Number:
    if not isinstance(a, float):
        return a**b if b >= 0 else 0 if abs(a) != 1 else a ** (b % 2)
    try:
        return math.pow(a, b)
    except OverflowError:
        return math.copysign(math.inf, a) if b % 2 == 1 else math.inf
    except ValueError:
        return math.nan if a else math.copysign(math.inf, a) if b % 2 == 1 else math.inf


def _least(a: Number, b: Number) -> Number:
    return a if a != a else b if b != b or b < a else a


def _most(a: Number, b: Number) -> Number:
    return a if a != a else b if b != b or b > a else a


_UNARY: dict[str, Callable[[Number], Number]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "sign": _sign,
    "erf": math.erf,
    "sigmoid": _sigmoid,
    "rsqrt": lambda x: _divide(1.0, _or_nan(math.sqrt)(x)),
    "log": _log,
    "log1p": _log1p,
    "atanh": _atanh,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _whole(round),
    "trunc": _whole(math.trunc),
    "isnan": math.isnan,
    "isinf": math.isinf,
    "not": lambda x: not x,
    "bitnot": lambda x: ~int(x),
    **{name: _or_nan(getattr(math, name)) for name in ("exp", "expm1", "sqrt", "sin", "cos", "tan", "sinh", "cosh")},
    **{name: _or_nan(getattr(math, name)) for name in ("tanh", "asin", "acos", "atan", "asinh", "acosh")},
}
_BINARY: dict[str, Callable[[Number, Number], Number]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "floordiv": _floordiv,
    "truncdiv": _truncdiv,
    "mod": _mod,
    "fmod": _fmod,
    "pow": _power,
    "min": _least,
    "max": _most,
    "and": lambda a, b: int(a) & int(b),
    "or": lambda a, b: int(a) | int(b),
    "xor": lambda a, b: int(a) ^ int(b),
    "shl": lambda a, b: int(a) << int(b) if b < 64 else 0,
    "shr": lambda a, b: int(a) >> int(min(b, 64)),
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_REDUCERS: dict[str, Callable[[Number, Number], Number]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": _most,
    "min": _least,
    "any": lambda a, b: bool(a) or bool(b),
    "all": lambda a, b: bool(a) and bool(b),
}
