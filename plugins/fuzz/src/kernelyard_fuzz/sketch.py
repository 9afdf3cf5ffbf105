"""Sketch: a graph that grows, and what each of its values is for the chosen inputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.errors import KernelyardError
from kernelyard.ir import Call, Constant, Expr, Function, FunctionBuilder, IRModule, Op, Tuple, TupleGetItem, Var
from kernelyard.ir.types import TensorType, TupleType, tensors_of
from kernelyard.patterns import FusionPattern
from kernelyard.patterns.language.pattern import Pattern
from kernelyard.plugins.support.roofline import flops_of
from kernelyard.records import NamedTuple
from kernelyard_fuzz.bins import LARGEST

HUGE = 1e3  # floats in graphs stay below: nothing overflows, in half precision either
MOST_FLOPS = 1 << 26  # of one operator
COMPUTE_ERRORS = (ArithmeticError, IndexError, TypeError, ValueError, MemoryError)


class Spliced(NamedTuple):
    """Operators built from a pattern. root: the last value. parts: what each part of the pattern stands for."""

    pattern: FusionPattern
    root: Var
    parts: Mapping[Pattern, Expr]


class Sketch:
    """A function under construction. As operators are added they are computed, so that values are known, not guessed.

    arrays: what each variable is. feeds: arrays for the parameters, in order. refused: how many operators were tried
    and not added. spliced: what was built from patterns.
    """

    def __init__(self) -> None:
        self.builder = FunctionBuilder()
        self.arrays: dict[Var, np.ndarray] = {}
        self.feeds: list[np.ndarray] = []
        self.functions: dict[str, Function] = {}
        self.outputs: list[Var] = []
        self.refused = 0
        self.spliced: list[Spliced] = []

    # --- operands -----------------------------------------------------------------------------------------------------
    def input(self, array: np.ndarray) -> Var:
        """Add a parameter that is fed this array."""
        var = self.builder.input(f"x{len(self.feeds)}", array.shape, dtypes.from_numpy(array.dtype))
        self.feeds.append(array)
        self.arrays[var] = array
        return var

    def value(self, expr: Expr) -> np.ndarray:
        """Return what an operand is."""
        return expr.data if isinstance(expr, Constant) else self.arrays[expr]  # pyright: ignore[reportArgumentType]

    @property
    def values(self) -> list[Var]:
        """All tensors, in the order in which they were made."""
        return list(self.arrays)

    @property
    def operators(self) -> int:
        """The number of operators."""
        return sum(isinstance(binding.value, Call) for binding in self.builder.bindings)

    def operands_of(self, result: Var) -> Sequence[Expr]:
        """Return the operands of the call that made a value."""
        made = {binding.var: binding.value for binding in self.builder.bindings}
        value = made[result]
        if isinstance(value, TupleGetItem):
            value = made[value.tuple_value]  # pyright: ignore[reportArgumentType]
        return operands_of_value(value)

    # --- operators ----------------------------------------------------------------------------------------------------
    def apply(
        self,
        op: Op,
        args: Sequence[Expr],
        attrs: Mapping[str, Any],
        fed: Sequence[int] = (),
        largest: float = HUGE,
    ) -> list[Var]:
        """Add an operator and return its results; none where it refuses these operands or computes nothing of use.

        fed: positions of constant operands that become parameters. largest: what floats may be at most.
        """
        try:
            call = Call(op, args, attrs)
            assert op.reference is not None
            if any(dims.evaluate(type_.numel, {}) > LARGEST for type_ in tensors_of(call.type)):
                raise ValueError("a tensor would be too large")
            if flops_of(call) > MOST_FLOPS:
                raise ValueError("the references would compute for too long")
            if op.name == "astype" and not _holds(attrs["dtype"], self.value(args[0])):
                raise ValueError("where an integer does not hold a float, the result is not defined")
            if op.name == "topk" and not attrs.get("sorted", True):
                raise ValueError("in which order these come is not defined")
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of means of nothing
                result = op.reference(*map(self.value, args), **call.attrs)
        except (KernelyardError, *COMPUTE_ERRORS):
            self.refused += 1
            return []
        arrays = list(result) if isinstance(result, tuple) else [result]
        if not all(map(partial(is_tame, largest=largest), arrays)) or not _fits(call, arrays):
            self.refused += 1
            return []
        if fed:
            given = [self.input(self.value(arg)) if at in fed else arg for at, arg in enumerate(args)]
            call = Call(op, given, attrs)
        return self.bind(call, arrays)

    def bind(self, call: Call, arrays: Sequence[np.ndarray]) -> list[Var]:
        """Add a call whose results are known."""
        var = self.builder.bind(call)
        made = [var]
        if isinstance(var.type, TupleType):
            made = [self.builder.bind(TupleGetItem(var, index)) for index in range(len(arrays))]
        self.arrays.update(zip(made, arrays, strict=True))
        return made

    def mark(self) -> tuple[int, int, int]:
        """Return the state that `undo` goes back to."""
        return len(self.builder.bindings), len(self.builder.params), len(self.arrays)

    def undo(self, mark: tuple[int, int, int]) -> None:
        """Take back what was added since."""
        bindings, params, arrays = mark
        del self.builder.bindings[bindings:], self.builder.params[params:], self.feeds[params:]
        for var in list(self.arrays)[arrays:]:
            del self.arrays[var]

    def op(self, name: str, *args: Expr, **attrs: Any) -> Var | None:
        """Add an operator of one result, if it takes these operands."""
        from kernelyard.ir import get_op

        made = self.apply(get_op(name), args, attrs)
        return made[0] if made else None

    # --- the end ------------------------------------------------------------------------------------------------------
    def module(self) -> IRModule:
        """Return the graph: its results are `outputs`, and all that nothing reads."""
        read = {operand for binding in self.builder.bindings for operand in operands_of_value(binding.value)}
        loose = [var for var in self.arrays if var not in read and var not in self.builder.params]
        results = list(dict.fromkeys([*self.outputs, *loose])) or self.builder.params[-1:]
        return IRModule({"main": self.builder.function(*results), **self.functions})


def operands_of_value(value: Expr) -> Sequence[Expr]:
    """Return what a value reads."""
    if isinstance(value, Call):
        return value.args
    if isinstance(value, TupleGetItem):
        return (value.tuple_value,)
    return value.fields if isinstance(value, Tuple) else ()


def _holds(dtype: str, array: np.ndarray) -> bool:
    """Return True where a dtype has room for the integer parts of all elements."""
    if not dtypes.is_integer(dtype) or not array.size or array.dtype.kind in "iub":
        return True
    limits, wide = np.iinfo(dtypes.to_numpy(dtype)), np.trunc(array.astype(np.float64))
    return bool(limits.min <= wide.min() and wide.max() <= limits.max)


def is_tame(array: np.ndarray, largest: float = HUGE) -> bool:
    """Return True for an array of moderate size with numbers that any order of computing can hold."""
    if array.size > LARGEST:
        return False
    if array.dtype.kind in "iub" or array.size == 0:
        return True
    magnitude = np.abs(array.astype(np.float32))
    return bool(magnitude.max() <= largest)  # False for NaN


def _fits(call: Call, arrays: Sequence[np.ndarray]) -> bool:
    """Return True where results are what the type rule says; where not, the rule or the reference is wrong."""
    types = call.type.fields if isinstance(call.type, TupleType) else (call.type,)
    for type_, array in zip(types, arrays, strict=True):
        if not isinstance(type_, TensorType):
            return False
        if type_.shape != array.shape or dtypes.to_numpy(type_.dtype) != array.dtype:
            raise AssertionError(
                f"{call.op_name}: the reference gives {array.shape} {array.dtype.name}, the type rule says {type_!r}; "
                f"operands {[arg.type for arg in call.args]}, attributes {dict(call.attrs)}"
            )
    return True
