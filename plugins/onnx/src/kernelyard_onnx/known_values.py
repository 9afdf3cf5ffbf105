"""KnownValues: what is known of small tensors while a model is imported.

Models compute shapes with ordinary operators (Shape, Gather, Mul, Floor, Concat, ...). Each call that the importer
emits passes here: where all arguments are constants, or numbers computed from sizes, the result is computed at once.
A concrete result is a NumPy array; one that depends on symbolic sizes is an array (dtype object) of `Rational`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from kernelyard.dims import Dim, SymbolicDim
from kernelyard.dtypes import is_float, to_numpy
from kernelyard.plugins.api import Call, Constant, Expr, Op, TensorType, tensors_of
from kernelyard_onnx.rational import Rational, UndecidedError

MAX_ELEMENTS = 1024
Array: TypeAlias = np.ndarray
Evaluator: TypeAlias = "Callable[[Sequence[Array], Mapping[str, Any], str], Array | list[Array]]"


class KnownValues:
    """Values by expression."""

    def __init__(self) -> None:
        self._values: dict[Expr, Array] = {}

    def set(self, expr: Expr, value: Array) -> None:
        """Remember a value."""
        self._values[expr] = value

    def get(self, expr: Expr) -> Array | None:
        """Return the value of an expression.

        Numbers, or Rationals in an array of objects; None when it is not known.
        """
        return expr.data if isinstance(expr, Constant) else self._values.get(expr)

    def constant(self, expr: Expr) -> Array | None:
        """Return the value as plain numbers, or None."""
        value = self.get(expr)
        return None if value is None or value.dtype == object else value

    def dims(self, expr: Expr) -> tuple[Dim, ...] | None:
        """Return the value, flattened, as whole numbers that may depend on sizes, or None."""
        value = self.get(expr)
        if value is None:
            return None
        try:
            return tuple(Rational.of(item).dim() for item in value.reshape(-1).tolist())
        except UndecidedError:
            return None

    def evaluate(self, call: Call) -> list[Array] | None:
        """Return the results of a call where they are known and small, else None."""
        if not isinstance(call.op, Op) or call.op.reference is None or not call.op.pure:
            return None
        types = tensors_of(call.type)
        known = self._small_values(call.args)
        if known is None or not all(map(_is_small, types)):
            return None
        if any(value.dtype == object for value in known) or _has_symbols(call.attrs):
            return _evaluate_symbolic(call, known, types)
        with np.errstate(all="ignore"):
            result = call.op.reference(*known, **call.attrs)
        results = result if isinstance(result, (tuple, list)) else [result]
        return [np.asarray(r, to_numpy(type_.dtype)) for r, type_ in zip(results, types, strict=True)]

    def _small_values(self, exprs: Sequence[Expr]) -> list[Array] | None:
        """Return the values of expressions; None where one of them is not known or large."""
        values = map(self.get, exprs)
        known = [value for value in values if value is not None and value.size <= MAX_ELEMENTS]
        return known if len(known) == len(exprs) else None


def _is_small(type_: TensorType) -> bool:
    count = type_.numel
    return type_.is_static and isinstance(count, int) and count <= MAX_ELEMENTS


def _has_symbols(attrs: Mapping[str, Any]) -> bool:
    return any(
        isinstance(item, SymbolicDim)
        for value in attrs.values()
        for item in (value if isinstance(value, tuple) else (value,))
    )


def _evaluate_symbolic(call: Call, values: Sequence[Array], types: Sequence[TensorType]) -> list[Array] | None:
    evaluator = _EVALUATORS.get(call.op.name)
    if evaluator is None:
        return None
    try:
        result = evaluator([_rationals(value) for value in values], call.attrs, types[0].dtype)
    except UndecidedError:
        return None
    return [_settle(r, t.dtype) for r, t in zip(result if isinstance(result, list) else [result], types, strict=True)]


def _rationals(value: Array) -> Array:
    if value.dtype == object:
        return value
    return _objects([Rational.of(item) for item in value.reshape(-1)], value.shape)


def _objects(items: Sequence[Rational], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def _settle(value: Array | Rational, dtype: str) -> Array:
    """Return a plain array where no symbol is left, else the Rationals."""
    array = value if isinstance(value, np.ndarray) else _objects([value], ())
    if array.dtype != object:
        return array.astype(to_numpy(dtype))
    items = array.reshape(-1).tolist()
    if any(isinstance(item.numerator, SymbolicDim) or isinstance(item.denominator, SymbolicDim) for item in items):
        return array
    numbers = [item.numerator / item.denominator if is_float(dtype) else item.numerator for item in items]
    return np.asarray(numbers, to_numpy(dtype)).reshape(array.shape)


def _each(function: Callable[..., Any]) -> Evaluator:
    apply = np.frompyfunc(function, function.__code__.co_argcount, 1)
    return lambda values, attrs, dtype: apply(*values)


def _compare(holds: Callable[[int], bool]) -> Evaluator:
    apply = np.frompyfunc(lambda a, b: Rational(int(holds((a - b).sign()))), 2, 1)
    return lambda values, attrs, dtype: apply(*values)


def _divide(values: Sequence[Array], attrs: Mapping[str, Any], dtype: str) -> Array:
    return np.frompyfunc(lambda a, b: a / b if is_float(dtype) else (a / b).trunc(), 2, 1)(*values)


def _astype(values: Sequence[Array], attrs: Mapping[str, Any], dtype: str) -> Array:
    if is_float(dtype):
        return values[0]
    if dtype == "bool":
        convert: Any = np.frompyfunc(lambda a: Rational(abs(a.sign())), 1, 1)
    else:
        convert = np.frompyfunc(lambda a: a if a.denominator == 1 else a.trunc(), 1, 1)
    return convert(values[0])


def _where(values: Sequence[Array], attrs: Mapping[str, Any], dtype: str) -> Array:
    chosen: Any = np.frompyfunc(lambda c, x, y: x if c.sign() else y, 3, 1)
    return chosen(*values)


def _whole_dims(items: Sequence[Dim]) -> tuple[int, ...]:
    whole = tuple(item for item in items if isinstance(item, int))
    if len(whole) != len(items):
        raise UndecidedError
    return whole


def _strided_slice(values: Sequence[Array], attrs: Mapping[str, Any], dtype: str) -> Array:
    index: list[slice] = [slice(None)] * values[0].ndim
    begins, ends = _whole_dims(attrs["begin"]), _whole_dims(attrs["end"])
    for axis, begin, end, stride in zip(attrs["axes"], begins, ends, attrs["strides"], strict=True):
        index[axis] = slice(begin, None if end < 0 else end, stride)
    return values[0][tuple(index)]


def _take(values: Sequence[Array], attrs: Mapping[str, Any], dtype: str) -> Array:
    indices = np.frompyfunc(lambda a: _whole_dims([a.dim()])[0], 1, 1)(values[1])
    return np.take(values[0], np.asarray(indices, np.int64), axis=attrs["axis"])


def _split(values: Sequence[Array], attrs: Mapping[str, Any], dtype: str) -> list[Array]:
    return np.split(values[0], np.cumsum(_whole_dims(attrs["sections"]))[:-1], axis=attrs["axis"])


def _reduce(function: np.ufunc) -> Evaluator:
    def evaluate(values: Sequence[Array], attrs: Mapping[str, Any], dtype: str) -> Array:
        array, axes = values[0], attrs["axes"] or tuple(range(values[0].ndim))
        for axis in sorted(axes, reverse=True):
            if array.shape[axis] == 0:
                raise UndecidedError
            array = function.reduce(array, axis=axis, keepdims=attrs["keepdims"])
        return array

    return evaluate


_MAXIMUM = np.frompyfunc(lambda a, b: a.maximum(b), 2, 1)
_MINIMUM = np.frompyfunc(lambda a, b: a.minimum(b), 2, 1)

_EVALUATORS: dict[str, Evaluator] = {
    "shape_tensor": lambda v, a, d: _objects([Rational(dim) for dim in a["dims"]], (len(a["dims"]),)),
    "add": _each(lambda a, b: a + b),
    "subtract": _each(lambda a, b: a - b),
    "multiply": _each(lambda a, b: a * b),
    "divide": _divide,
    "mod": _each(lambda a, b: a - (a / b).floor() * b),
    "maximum": lambda v, a, d: _MAXIMUM(*v),
    "minimum": lambda v, a, d: _MINIMUM(*v),
    "negative": _each(lambda a: -a),
    "abs": _each(lambda a: a if a.sign() >= 0 else -a),
    "sign": _each(lambda a: Rational(a.sign())),
    "floor": _each(lambda a: a.floor()),
    "ceil": _each(lambda a: a.ceil()),
    "trunc": _each(lambda a: a.trunc()),
    "square": _each(lambda a: a * a),
    "reciprocal": _each(lambda a: Rational(1) / a),
    "astype": _astype,
    "equal": _compare(lambda sign: sign == 0),
    "not_equal": _compare(lambda sign: sign != 0),
    "less": _compare(lambda sign: sign < 0),
    "less_equal": _compare(lambda sign: sign <= 0),
    "greater": _compare(lambda sign: sign > 0),
    "greater_equal": _compare(lambda sign: sign >= 0),
    "where": _where,
    "reshape": lambda v, a, d: v[0].reshape(_whole_dims(a["shape"])),
    "permute_dims": lambda v, a, d: v[0].transpose(a["axes"]),
    "broadcast_to": lambda v, a, d: np.broadcast_to(v[0], _whole_dims(a["shape"])),
    "concat": lambda v, a, d: np.concatenate(v, axis=a["axis"]),
    "split": _split,
    "strided_slice": _strided_slice,
    "take": _take,
    "flip": lambda v, a, d: np.flip(v[0], a["axes"]),
    "tile": lambda v, a, d: np.tile(v[0], a["repeats"]),
    "sum": _reduce(np.frompyfunc(lambda a, b: a + b, 2, 1)),
    "prod": _reduce(np.frompyfunc(lambda a, b: a * b, 2, 1)),
    "max": _reduce(_MAXIMUM),
    "min": _reduce(_MINIMUM),
}
