"""Compose decomposed normalisations: layer norm and RMS norm, and the scale and shift that follow them.

Statistics (a mean, a variance) are read as polynomials of m = mean(x), q = mean(x^2) and v = mean((x - mean(x))^2), so
their form does not matter: mean or sum / n, `v`, or `q - m * m` with or without a limit at zero, with the
reduced axes kept, dropped, or brought back by a reshape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kernelyard import dtypes
from kernelyard.dims import Shape
from kernelyard.ir import Call, Constant, Expr, FunctionMutator, Var
from kernelyard.ir.types import TensorType
from kernelyard.transform.compose.polynomial import (
    MAX_NODES,
    ONE,
    Polynomial,
    PolynomialReader,
    arithmetic_leaves,
    is_close,
    multiply,
    scalar,
)
from kernelyard.transform.pass_infra.rewrite_rule import defining_call, is_uniform, make

RESHAPES = ("reshape", "broadcast_to")
_SQUARES: Polynomial = {("q",): 1.0}
_VARIANCES: tuple[Polynomial, ...] = ({("v",): 1.0}, {("q",): 1.0, ("m", "m"): -1.0})


class Statistics:
    """Reads expressions as polynomials of the statistics of `x` over `axes`."""

    def __init__(self, mutator: FunctionMutator, x: Expr, axes: tuple[int, ...]) -> None:
        shape = x.tensor_type.shape
        self._mutator = mutator
        self.x = x
        self.axes = axes
        self._shapes = keepdims_shapes(shape, axes)
        sizes = [dim for i, dim in enumerate(shape) if i in axes and isinstance(dim, int)]
        self._count = math.prod(sizes)
        self.is_countable = 0 < len(sizes) == len(axes)
        self._reader = PolynomialReader(mutator, {}, self._leaf)

    def read(self, expr: Expr) -> Polynomial | None:
        """Return the polynomial of m, q and v that `expr` computes for every slice of x; None where it is another
        thing.
        """
        return self._reader.read(expr) if expr.tensor_type.shape in self._shapes else None

    def is_aligned(self, expr: Expr) -> bool:
        """Return True when broadcasting pairs each slice of x with its own statistic."""
        return is_aligned(expr.tensor_type.shape, self.x.tensor_type.shape, self.axes)

    def _leaf(self, reader: PolynomialReader, expr: Expr) -> Polynomial | None:
        value = self._mutator.value_of(expr)
        if not isinstance(value, Call) or value.tensor_type.shape not in self._shapes:
            return None
        operand = value.args[0]
        if value.op_name in RESHAPES:
            return self.read(operand)
        if value.op_name in ("nn.relu", "clip"):
            return self._skip_clamp_at_zero(value)
        if value.op_name not in ("mean", "sum") or value.attrs["axes"] != self.axes:
            return None
        if value.op_name == "sum" and not self.is_countable:
            return None
        name = self._kind_of_mean(operand)
        factor = 1.0 if value.op_name == "mean" else float(self._count)
        return None if name is None else multiply({(name,): 1.0}, scalar(factor))

    def _skip_clamp_at_zero(self, call: Call) -> Polynomial | None:
        """Look through a limit at zero: a variance is not negative but for rounding."""
        is_at_zero = call.op_name == "nn.relu" or (call.attrs["min"] == 0.0 and call.attrs["max"] is None)
        inner = self.read(call.args[0])
        dtype = call.tensor_type.dtype
        return inner if is_at_zero and any(is_close(inner, variance, dtype) for variance in _VARIANCES) else None

    def _kind_of_mean(self, operand: Expr) -> str | None:
        """Classify the statistic that the mean of `operand` is."""
        if operand is self.x:
            return "m"
        root = _square_root_of(self._mutator, operand)
        if root is None:
            return None
        return "q" if root is self.x else "v" if self.is_centred(root) else None

    def is_centred(self, expr: Expr) -> bool:
        """Return True when `expr` is x - mean(x)."""
        difference = defining_call(self._mutator, expr, "subtract")
        if difference is None or difference.args[0] is not self.x or difference.type != self.x.type:
            return False
        return self.is_mean(difference.args[1])

    def is_mean(self, expr: Expr) -> bool:
        """Return True when `expr` is mean(x), in a shape that broadcasts against x."""
        return self.is_aligned(expr) and is_close(self.read(expr), {("m",): 1.0}, self.x.tensor_type.dtype)


def _square_root_of(mutator: FunctionMutator, expr: Expr) -> Expr | None:
    """Return y of `y * y`."""
    value = mutator.value_of(expr)
    if not isinstance(value, Call):
        return None
    if value.op_name == "square":
        return value.args[0]
    return value.args[0] if value.op_name == "multiply" and value.args[0] is value.args[1] else None


def keepdims_shapes(shape: Shape, axes: tuple[int, ...]) -> tuple[Shape, Shape]:
    """Return the shapes that a statistic may have: axes kept with size 1, or dropped."""
    kept = tuple(1 if i in axes else dim for i, dim in enumerate(shape))
    return kept, tuple(dim for i, dim in enumerate(shape) if i not in axes)


def is_aligned(shape: Shape, of: Shape, axes: tuple[int, ...]) -> bool:
    """Return True when a statistic of this shape broadcasts against the tensor that it was taken of, slice by slice."""
    kept, dropped = keepdims_shapes(of, axes)
    # Broadcasting aligns the last axes, so dropped axes must have been the first ones.
    return shape == kept or (shape == dropped and axes == tuple(range(len(axes))))


def skip_reshapes(mutator: FunctionMutator, expr: Expr, shapes: tuple[Shape, ...]) -> Expr:
    """Return the statistic before reshapes between its two shapes."""
    for _ in range(MAX_NODES):
        call = defining_call(mutator, expr, *RESHAPES)
        if call is None or any(e.tensor_type.shape not in shapes for e in (call, call.args[0])):
            return expr
        expr = call.args[0]
    return expr


# --- normalisation ----------------------------------------------------------------------------------------------------
@dataclass
class _Quotient:
    """Factors of a product: `deviation` to the power -1, constants, and the rest."""

    squared_deviation: Expr | None = None
    scale: np.ndarray | None = None
    numerator: Expr | None = None


def normalization(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose (x - mean) / sqrt(variance + epsilon) into layer_norm, x / sqrt(q + epsilon) into rms_norm.

    Constants become gamma.
    """
    if not dtypes.is_float(call.tensor_type.dtype):
        return None
    quotient = _as_quotient(mutator, call)
    if quotient is None or quotient.numerator is None or quotient.squared_deviation is None:
        return None
    for x, axes, is_centred in _bases(mutator, quotient):
        statistics = Statistics(mutator, x, axes)
        if x.type != call.type or (is_centred and not statistics.is_centred(quotient.numerator)):
            continue
        norm = _match_normalization(statistics, quotient, is_centred)
        if norm is not None:
            return norm
    return None


def scale_and_offset(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose x * s + (b - mean * s) into layer_norm, too, where s = gamma / sqrt(variance + epsilon)."""
    if not dtypes.is_float(call.tensor_type.dtype):
        return None
    for scaled, offset in (call.args, call.args[::-1]):
        product = defining_call(mutator, scaled, "multiply")
        difference = defining_call(mutator, offset, "subtract")
        shift = defining_call(mutator, difference.args[1], "multiply") if difference else None
        if product is None or difference is None or shift is None or not isinstance(difference.args[0], Constant):
            continue
        for scale in (factor for factor in product.args if factor in shift.args):
            x, average = _other(product.args, scale), _other(shift.args, scale)
            norm = _match_normalization_by(mutator, x, average, scale, difference.args[0].data)
            if norm is not None:
                return norm
    return None


def _other(pair: tuple[Expr, ...], one: Expr) -> Expr:
    return pair[1] if pair[0] is one else pair[0]


def _match_normalization_by(
    mutator: FunctionMutator, x: Expr, average: Expr, scale: Expr, beta: np.ndarray
) -> Expr | None:
    quotient = _as_quotient(mutator, scale)
    if quotient is None or quotient.numerator is not None or quotient.squared_deviation is None:
        return None
    for axes in _axes_of_means(mutator, average):
        statistics = Statistics(mutator, x, axes)
        if statistics.is_mean(average):
            return _match_normalization(statistics, quotient, is_centred=True, beta=beta)
    return None


def _match_normalization(
    statistics: Statistics, quotient: _Quotient, is_centred: bool, beta: np.ndarray | None = None
) -> Expr | None:
    """Return the normalisation of x by its statistics; None where the quotient's deviation or a parameter is another
    thing.
    """
    x, axes = statistics.x, statistics.axes
    epsilon = _epsilon(statistics, quotient, is_centred) if statistics.is_countable else None
    gamma = broadcast_over_axes(quotient.scale, x.tensor_type, axes)
    shift = broadcast_over_axes(np.zeros(()) if beta is None else beta, x.tensor_type, axes)
    if epsilon is None or gamma is None or shift is None:
        return None
    scale, offset = (Constant(vector.astype(dtypes.to_numpy(x.tensor_type.dtype))) for vector in (gamma, shift))
    if not is_centred:
        return make("nn.rms_norm", x, scale, axes=axes, epsilon=epsilon)
    return make("nn.layer_norm", x, scale, offset, axes=axes, epsilon=epsilon)


def _epsilon(statistics: Statistics, quotient: _Quotient, is_centred: bool) -> float | None:
    """Return the epsilon added to the variance (or mean square) of the statistics; None without a match."""
    deviation = quotient.squared_deviation
    found = statistics.read(deviation) if deviation is not None and statistics.is_aligned(deviation) else None
    if found is None or found.get(ONE, 0.0) < 0:
        return None
    variance = {monomial: coefficient for monomial, coefficient in found.items() if monomial != ONE}
    expected = _VARIANCES if is_centred else (_SQUARES,)
    is_known = any(is_close(variance, form, statistics.x.tensor_type.dtype) for form in expected)
    return found.get(ONE, 0.0) if is_known else None


def _as_quotient(mutator: FunctionMutator, call: Expr) -> _Quotient | None:
    """Return a product of constants, one inverse deviation and at most one numerator; None for every other product."""
    result = _Quotient()
    waiting: list[tuple[Expr, bool]] = [(call, False)]
    for _ in range(MAX_NODES):
        if not waiting:
            return result
        expr, inverse = waiting.pop()
        factors = _factors(mutator, expr, is_root=expr is call)
        deviation = _match_standard_deviation(mutator, expr, inverse)
        if isinstance(expr, Constant):
            factor = expr.data.astype(np.float64)
            if inverse and not np.all(factor):
                return None
            factor = 1 / factor if inverse else factor
            result.scale = factor if result.scale is None else result.scale * factor
        elif factors:
            waiting += [(factor, inverse != is_inverse) for factor, is_inverse in factors]
        elif deviation is not None and result.squared_deviation is None:
            result.squared_deviation = deviation
        elif inverse or result.numerator is not None:
            return None
        else:
            result.numerator = expr
    return None


def _factors(mutator: FunctionMutator, expr: Expr, is_root: bool) -> list[tuple[Expr, bool]]:
    """Return the factors of a product, and whether each divides; none for products that are themselves normalised."""
    value = mutator.value_of(expr)
    if not isinstance(value, Call) or value.op_name not in ("multiply", "divide"):
        return []
    left, right = value.args
    factors = [(left, False), (right, value.op_name == "divide")]
    is_part = any(
        isinstance(f, Constant) or _match_standard_deviation(mutator, f, inv) is not None for f, inv in factors
    )
    return factors if is_root or is_part else []


def _match_standard_deviation(mutator: FunctionMutator, expr: Expr, inverse: bool) -> Expr | None:
    """Return v where `expr` (or, with `inverse`, one over it) is one over the square root of v."""
    value = mutator.value_of(expr)
    if not isinstance(value, Call):
        return None
    if value.op_name == "power":
        return value.args[0] if is_uniform(value.args[1], 0.5 if inverse else -0.5) else None
    return value.args[0] if value.op_name == ("sqrt" if inverse else "rsqrt") else None


def _bases(mutator: FunctionMutator, quotient: _Quotient) -> list[tuple[Expr, tuple[int, ...], bool]]:
    """List the candidates for the normalized value, each with its axes and true if the numerator is centred."""
    numerator = quotient.numerator
    assert numerator is not None
    assert quotient.squared_deviation is not None
    difference = defining_call(mutator, numerator, "subtract")
    found: list[tuple[Expr, tuple[int, ...], bool]] = []
    if difference is not None:
        x = difference.args[0]
        found += [(x, axes, True) for axes in _axes_of_means(mutator, difference.args[1])]
    found += [(numerator, axes, False) for axes in _axes_of_means(mutator, quotient.squared_deviation)]
    return found


def _axes_of_means(mutator: FunctionMutator, expr: Expr) -> list[tuple[int, ...]]:
    """Return the axes of the reductions that a statistic is computed from, nearest first."""
    found: list[tuple[int, ...]] = []
    waiting, seen = [expr], 0
    while waiting and seen < MAX_NODES:
        seen += 1
        _, leaves = arithmetic_leaves(mutator, (waiting.pop(0),))
        for leaf in leaves:
            value = mutator.value_of(leaf)
            if not isinstance(value, Call):
                continue
            if value.op_name in ("mean", "sum") and value.attrs["axes"] not in found:
                found.append(value.attrs["axes"])
            if value.op_name in (*RESHAPES, "nn.relu", "clip"):
                waiting.append(value.args[0])
    return found


# --- scale and shift after a normalisation ----------------------------------------------------------------------------
def broadcast_over_axes(array: np.ndarray | None, x: TensorType, axes: tuple[int, ...]) -> np.ndarray | None:
    """Return a constant factor as one number per normalised element (shape: the sizes of the axes); None where it is
    not, or where a size is not known.
    """
    sizes = tuple(dim for i, dim in enumerate(x.shape) if i in axes and isinstance(dim, int))
    if len(sizes) != len(axes):
        return None
    if array is None:
        return np.ones(sizes)
    if array.ndim > x.rank:
        return None
    shape = (1,) * (x.rank - array.ndim) + array.shape
    if any(size != 1 for i, size in enumerate(shape) if i not in axes):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape([shape[axis] for axis in axes]), sizes)


def absorb_affine(mutator: FunctionMutator, call: Call, read_once: set[Var]) -> Expr | None:
    """Absorb a constant scale or shift of a normalisation that is read once into its gamma or beta."""
    for normal, other in (call.args, call.args[::-1]):
        inner = defining_call(mutator, normal, "nn.layer_norm", "nn.rms_norm")
        if inner is None or normal not in read_once or not isinstance(other, Constant) or inner.type != call.type:
            continue
        vector = broadcast_over_axes(other.data, inner.tensor_type, inner.attrs["axes"])
        if vector is not None:
            return _with_affine(inner, call.op_name, vector)
    return None


def _with_affine(norm: Call, op: str, vector: np.ndarray) -> Expr | None:
    parameters = [arg.data.astype(np.float64) for arg in norm.args[1:] if isinstance(arg, Constant)]
    if len(parameters) != len(norm.args) - 1:
        return None
    if op == "multiply":
        parameters = [parameter * vector for parameter in parameters]
    elif len(parameters) == 2:
        parameters[1] = parameters[1] + vector
    else:
        return None
    dtype = dtypes.to_numpy(norm.tensor_type.dtype)
    return make(norm.op_name, norm.args[0], *(Constant(p.astype(dtype)) for p in parameters), **norm.attrs)
