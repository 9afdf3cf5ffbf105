"""Patterns and values written as Python functions over `op`: the same notation for what to find and what to put there.

Example:
    >>> from kernelyard.patterns import match, op, trace
    >>> def linear(x, weight, bias):
    ...     y = op.matmul(x, weight)
    ...     y = y.optional(lambda y: op.add(y, bias))
    ...     return y.optional(lambda y: op.nn.relu(y)).capture("result")
    >>> sorted(trace(linear).root_ops)
    ['add', 'matmul', 'nn.relu']
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dtypes
from kernelyard.errors import PatternError
from kernelyard.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem
from kernelyard.ir.op import all_ops, get_op
from kernelyard.ir.types import TensorType
from kernelyard.patterns.language.constructors import is_const, is_expr, is_op, is_tuple, wildcard
from kernelyard.patterns.language.pattern import Pattern

Traced: TypeAlias = "Pattern | tuple[Pattern, ...]"
Value = TypeVar("Value", Pattern, Expr)


class OpNamespace:
    """The operators as functions: `op.add(x, y)`, `op.nn.softmax(x, axis=1)`.

    Of patterns they make a pattern (attributes left out are free, a callable is a predicate, a number is a constant
    of that value); of expressions a call (numbers take the dtype of the first tensor). Calls may be operands of calls
    wherever a rewriter takes the result.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what Python asks every object for
            raise AttributeError(name)
        full = self._prefix + name
        if any(op.name.startswith(f"{full}.") for op in all_ops()):
            return OpNamespace(f"{full}.")
        get_op(full)
        return lambda *args, **attrs: _apply(full, args, attrs)


op = OpNamespace()


def item(value: Value, index: int) -> Value:
    """Trace field `index` of a tuple value."""
    return value[index] if isinstance(value, Pattern) else TupleGetItem(value, index)  # pyright: ignore


def tuple_of(*fields: Value) -> Value:
    """Trace a tuple of several values."""
    return is_tuple(*map(_as_pattern, fields)) if _any_pattern(fields) else Tuple(fields)  # pyright: ignore


def trace(function: Callable[..., Any]) -> Traced:
    """Return the pattern that `function` writes: its parameters are captures of their names.

    A parameter stands for any value, or for one of its own such as its default says: with `CONSTANT = is_const()`,
    `def f(x, weight=CONSTANT, bias=CONSTANT)`. A function that returns several patterns stands for several values.
    Raises: PatternError for a result that is no pattern.
    """
    defaults = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    parts = {name: part.dup() if isinstance(part, Pattern) else wildcard() for name, part in defaults.items()}
    result = function(**{name: part.capture(name) for name, part in parts.items()})
    fields = result if isinstance(result, tuple) else (result,)
    if not fields or not all(isinstance(field, Pattern) for field in fields):
        raise PatternError(
            f"the pattern function {function.__name__!r} must return a pattern, or several",
            found=repr(result),
            hint="apply operators to its parameters, for example op.add(x, y)",
        )
    return result


def _any_pattern(values: tuple[Any, ...]) -> bool:
    return any(isinstance(value, Pattern) for value in values)


def _apply(name: str, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    if not _any_pattern(args):
        tensors = [arg.type.dtype for arg in args if isinstance(arg, Expr) and isinstance(arg.type, TensorType)]
        dtype = tensors[0] if tensors else "float32"
        return Call(get_op(name), [_as_expr(arg, dtype) for arg in args], attrs)
    pattern = is_op(name)(*map(_as_pattern, args))
    return pattern.has_attr(**attrs) if attrs else pattern


def _as_pattern(value: Any) -> Pattern:
    if isinstance(value, Pattern):
        return value
    if isinstance(value, (Expr, np.ndarray)):
        return is_expr(value if isinstance(value, Expr) else Constant(value))
    return is_const(value)


def _as_expr(value: Any, dtype: str) -> Expr:
    if isinstance(value, Expr):
        return value
    return Constant(value if isinstance(value, np.ndarray) else np.asarray(value, dtypes.to_numpy(dtype)))
