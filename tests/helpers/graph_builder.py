"""A graph that grows call by call, with what each value is: how random graphs know what they give, and how exactly.

Each value is worked out by the operators' references while the graph grows, once for each choice of the unknown sizes.
That tells what the graph gives, and which operator fits where: one that jumps (a floor, a comparison) is put only on
values that every implementation gets exactly, so that no rounding decides about a result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.errors import KernelyardError
from kernelyard.ir import FunctionBuilder, IRModule, Var, get_op, to_text
from kernelyard.ops.samples import draw_numbers, floats

Draw = Callable[[st.SearchStrategy[Any]], Any]
MOST_ELEMENTS = 20_000  # of one value
MOST = 1e3  # of what a float may become: nothing overflows in any dtype
# What one rounding is, relative to the largest number around.
EPSILON = {"float32": 2e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 2e-2}


@dataclass(eq=False)
class Value:
    """A variable and what it holds. error: how far an implementation may be off, 0.0 for exactly right."""

    var: Var
    arrays: list[np.ndarray]
    error: float

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.var.tensor_type.shape

    @property
    def dtype(self) -> str:
        return self.var.tensor_type.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return dtypes.is_float(self.dtype)

    @property
    def largest(self) -> float:
        """The largest number that it holds, without its sign; 0.0 when it holds none."""
        return max(map(largest, self.arrays))


@dataclass(frozen=True)
class Case:
    """Inputs, the outputs that they give, and how far each output may be off."""

    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    errors: list[float]


@dataclass(frozen=True)
class FusedGraph:
    """A module with a case for each choice of its unknown sizes; printed as the module's text."""

    module: IRModule
    cases: list[Case]

    def __repr__(self) -> str:
        shapes = [[array.shape for array in case.inputs] for case in self.cases]
        return f"inputs of shapes {shapes} to\n{to_text(self.module)}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def check(self, number: int, found: Sequence[np.ndarray]) -> None:
        """Outputs are what the references give. Raises: AssertionError."""
        case = self.cases[number]
        assert len(found) == len(case.outputs)
        for actual, wanted, error in zip(found, case.outputs, case.errors, strict=True):
            assert actual.shape == wanted.shape, f"{actual.shape}, expected {wanted.shape}"
            assert actual.dtype == wanted.dtype, f"{actual.dtype}, expected {wanted.dtype}"
            if error == 0.0:
                np.testing.assert_array_equal(actual, wanted)
            else:
                actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
                np.testing.assert_allclose(actual, wanted, rtol=0, atol=error, equal_nan=True)


class GraphBuilder:
    """A graph that grows by calls on values; sizes: for each case, what the symbols are."""

    def __init__(self, draw: Draw, sizes: Sequence[Mapping[str, int]]) -> None:
        self.draw = draw
        self.sizes = sizes
        self.builder = FunctionBuilder()
        self.inputs: list[Value] = []
        self.values: list[Value] = []

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def input(self, shape: Sequence[Dim], dtype: str) -> Value:
        seed = self.number(0, 99)
        arrays = [
            draw_numbers(*(dims.evaluate(dim, sizes) for dim in shape), dtype=dtype, seed=seed) for sizes in self.sizes
        ]
        value = Value(self.builder.input(f"x{len(self.inputs)}", list(shape), dtype), arrays, 0.0)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def constant(self, shape: Sequence[int], dtype: str, scale: float = 1.0) -> np.ndarray:
        if dtypes.is_float(dtype):
            return floats(*shape, dtype=dtype, low=-scale, high=scale, seed=self.number(0, 9))
        return draw_numbers(*shape, dtype=dtype, seed=self.number(0, 9))

    def call(self, name: str, *args: Value | np.ndarray, exact: bool = False, gain: float = 1.0, **attrs: Any) -> None:
        """Append a call. exact: no implementation rounds. gain: how much an operand's error may grow.

        A call that the operator refuses, or whose result is too large or infinite, is left out.
        """
        op = get_op(name)
        operands = [arg.var if isinstance(arg, Value) else arg for arg in args]
        if not all(arg.error == 0.0 for arg in args if isinstance(arg, Value)) and gain == 0.0:
            return
        try:
            checked = op.check_attributes(attrs)
            arrays = [self._reference(op, args, checked, number) for number in range(len(self.sizes))]
            if not all(array.size <= MOST_ELEMENTS and _is_tame(array) for array in arrays):
                return
            var = self.builder.op(name, *operands, **attrs)
        except (KernelyardError, ValueError):
            return
        self.values.append(Value(var, arrays, self._error(args, arrays, var.tensor_type.dtype, exact, gain)))

    def split(self, x: Value, axis: int, sections: Sequence[int]) -> None:
        """Append a split, and its parts as values."""
        both = self.builder.op("split", x.var, axis=axis, sections=tuple(sections))
        ends = np.cumsum(sections)[:-1]
        pieces = [np.split(array, ends, axis) for array in x.arrays]
        for number in range(len(sections)):
            var = self.builder.get(both, number)
            self.values.append(Value(var, [parts[number] for parts in pieces], x.error))

    def _reference(self, op: Any, args: Sequence[Value | np.ndarray], attrs: Mapping[str, Any], number: int) -> Any:
        operands = [arg.arrays[number] if isinstance(arg, Value) else arg for arg in args]
        known = {
            name: _evaluated(value, self.sizes[number]) if op.attributes[name].kind in ("dim", "dims") else value
            for name, value in attrs.items()
        }
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mean of nothing
            return np.asarray(op.reference(*operands, **known))

    def _error(
        self, args: Sequence[Value | np.ndarray], arrays: Sequence[np.ndarray], dtype: str, exact: bool, gain: float
    ) -> float:
        carried = gain * sum(arg.error for arg in args if isinstance(arg, Value))
        if (exact and carried == 0.0) or dtype not in EPSILON:
            return carried
        around = [1.0, *map(largest, arrays), *(arg.largest for arg in args if isinstance(arg, Value) and arg.is_float)]
        return carried + (0.0 if exact else EPSILON[dtype] * max(around))

    def finish(self, results: Sequence[Value]) -> FusedGraph:
        module = IRModule({"main": self.builder.function(*(value.var for value in results))})
        cases = [
            Case([v.arrays[n] for v in self.inputs], [v.arrays[n] for v in results], [v.error for v in results])
            for n in range(len(self.sizes))
        ]
        return FusedGraph(module, cases)


def _is_float(array: np.ndarray) -> bool:
    return dtypes.is_float(dtypes.from_numpy(array.dtype))


def largest(array: np.ndarray) -> float:
    """The largest number of an array, without its sign; 0.0 when there is none."""
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))


def _is_tame(array: np.ndarray) -> bool:
    return not _is_float(array) or largest(array) < MOST


def _evaluated(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(dims.evaluate(dim, sizes) for dim in value)
    return None if value is None else dims.evaluate(value, sizes)
