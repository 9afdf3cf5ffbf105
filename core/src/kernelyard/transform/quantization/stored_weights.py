"""Integers, scales and zero points of quantized weights, whatever operators dequantize them.

A dequantization reads constants alone. It is evaluated: for the stored integers, which gives the weights, and for
integers that are all 0 and all 1, which gives the zero point and the scale of each. So one home serves all forms of
dequantization, those of importers included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.ir import Call, Constant, Expr, Op
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Expr as ScalarExpr
from kernelyard.tir.expr import cast

Values = Callable[[Expr], Expr]

LEAST_GROUP, MOST_GROUP = 8, 1024
_LARGEST_ZERO = 127
_FLOATS = ("float32", "bfloat16", "float16")
# All ones, in bytes that hold one, two or four numbers.
_ONES = {1: 0x01, 2: 0x11, 4: 0x55}
_AT_A_TIME = 1 << 16  # weights: what is computed of them stays in cache
_TOLERANCE = 2.0**-21  # of a weight that is computed in another order


@dataclass(frozen=True, eq=False)
class StoredWeights:
    """A matrix (K, N) as `(codes - zeros) * scales + minima`.

    bits: 4 or 8. codes: int8 (K, N), from -8 to 7 or from -128 to 127. group: elements of a column that share a scale
    and a zero point; K where a column has one. scales: float32, or narrower floats that hold them; zeros: int8, minima:
    float64, None where all are 0; all three are (groups, N), and there are no zeros where there are minima.
    """

    bits: int
    codes: np.ndarray
    group: int
    scales: np.ndarray
    zeros: np.ndarray | None = None
    minima: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class WeightConstants(ABC):
    """Constants that a function which multiplies by stored weights reads: packed integers, and numbers of their groups.

    words: the integers, packed as the pass says. scales (groups, N). zeros, what is subtracted from the integers, and
    minima, what is added to their products with the scales, likewise; or None.
    """

    words: Constant
    scales: Constant
    zeros: Constant | None
    minima: Constant | None

    @property
    def inputs(self) -> dict[str, Constant]:
        """Return the constants that there are, by the names of a function's inputs."""
        named = {"w": self.words, "s": self.scales, "z": self.zeros, "m": self.minima}
        return {name: constant for name, constant in named.items() if constant is not None}

    @property
    def columns(self) -> int:
        """Return N, as the constants are padded."""
        return self.scales.data.shape[1]

    @abstractmethod
    def number(self, buffers: Mapping[str, Buffer], row: ScalarExpr, column: ScalarExpr) -> ScalarExpr:
        """Return a weight in float32; buffers: the constants as a function reads them, by the names of `inputs`."""

    def dequantize(
        self, buffers: Mapping[str, Buffer], integer: ScalarExpr, group: ScalarExpr, column: ScalarExpr
    ) -> ScalarExpr:
        """Return what an integer of a group, in float32, stands for."""
        parameters = {name: cast(buffers[name][group, column], "float32") for name in "szm" if name in buffers}
        shifted = integer - parameters["z"] if "z" in parameters else integer
        scaled = shifted * parameters["s"]
        return scaled + parameters["m"] if "m" in parameters else scaled


def identify_weights(matrix: Expr, value_of: Values) -> Hashable:
    """Return what tells weights from others: matrices for which it is equal dequantize the same numbers alike."""
    value = value_of(matrix)
    if not isinstance(value, Call):
        return value
    return (value.op_name, *value.attrs.items(), *(identify_weights(arg, value_of) for arg in value.args))


def read_stored_weights(matrix: Expr, value_of: Values) -> StoredWeights | None:
    """Return the quantized weights that a float32 matrix (K, N) dequantizes; None where it is not of this form.

    matrix: see `kernelyard.patterns.dequantized.is_dequantized`. value_of: what a variable is bound to.
    """
    named = _match_dequantize(value_of(matrix)) or _match_blocks(value_of(matrix), value_of)
    if named is not None:
        return named
    of_bytes = [constant for constant in _constants(matrix, value_of) if constant.data.dtype in (np.int8, np.uint8)]
    encoded = max(of_bytes, key=lambda constant: constant.data.size, default=None)
    shape = matrix.tensor_type.shape
    if encoded is None or not encoded.data.size or len(shape) != 2:
        return None
    weights, zero = (_evaluate_with(matrix, encoded, x, value_of) for x in (encoded.data, np.zeros_like(encoded.data)))
    for per_byte, ones in _ONES.items():
        if per_byte * encoded.data.size < weights.size:
            continue
        stored = np.full(encoded.data.shape, ones, np.uint8).view(encoded.data.dtype)
        one = _evaluate_with(matrix, encoded, stored, value_of)
        found = _affine(weights, zero, one) or _with_minima(weights, zero, one)
        if found is not None:
            return found
    return None


def _match_dequantize(value: Expr) -> StoredWeights | None:
    """Match `dequantize` of int8 with a scale for each column, which needs no evaluation."""
    if not isinstance(value, Call) or value.op_name != "dequantize" or value.attrs["axis"] != 1:
        return None
    if not all(isinstance(arg, Constant) for arg in value.args):
        return None
    codes, scales, zeros = (arg.data for arg in value.args if isinstance(arg, Constant))
    if codes.dtype != np.int8 or zeros.any() or scales.ndim != 1 or scales.dtype != np.float32:
        return None
    return StoredWeights(8, codes, len(codes), scales[None])


def _match_blocks(value: Expr, value_of: Values) -> StoredWeights | None:
    """Match `codes * scales + minima` in blocks (groups, group, N), as (K, N), which needs no evaluation."""
    if not _is_call(value, "reshape"):
        return None
    sum_ = value_of(value.args[0])
    product, minima = sum_, None
    if _is_call(sum_, "add"):
        product, minima = value_of(sum_.args[0]), _widen(sum_.args[1], value_of)
        if minima is None:
            return None
    if not _is_call(product, "multiply"):
        return None
    codes, scales = _blocks(product.args[0], value_of), _widen(product.args[1], value_of)
    if codes is None or scales is None:
        return None
    groups, group, n = codes.shape
    parameters = [scales] if minima is None else [scales, minima]
    is_whole = value.tensor_type.shape == (groups * group, n)
    if not is_whole or any(each.shape != (groups, 1, n) for each in parameters):
        return None
    if minima is None:
        return _packable(codes.reshape(-1, n), group, scales[:, 0], np.zeros((groups, n), np.float32))
    return _shift_to_fewest_bits(codes, scales[:, 0], minima[:, 0], groups * group)


def _blocks(expr: Expr, value_of: Values) -> np.ndarray | None:
    """Return constants of int8 in blocks (groups, group, N), which are widened to floats."""
    cast = value_of(expr)
    codes = value_of(cast.args[0]) if _is_call(cast, "astype") else None
    if not isinstance(codes, Constant) or codes.data.dtype != np.int8 or codes.data.ndim != 3:
        return None
    return codes.data if codes.data.size else None


def _is_call(value: Expr, name: str) -> TypeGuard[Call]:
    return isinstance(value, Call) and value.op_name == name


def _widen(expr: Expr, value_of: Values) -> np.ndarray | None:
    """Return floats that may be widened to float32 before they are used, as float32."""
    value = value_of(expr)
    stored = value_of(value.args[0]) if _is_call(value, "astype") else value
    if not isinstance(stored, Constant) or stored.tensor_type.dtype not in _FLOATS:
        return None
    return stored.data.astype(np.float32)


def _constants(expr: Expr, value_of: Values) -> Iterator[Constant]:
    value = value_of(expr)
    if isinstance(value, Constant):
        yield value
    elif isinstance(value, Call):
        for arg in value.args:
            yield from _constants(arg, value_of)


def _evaluate_with(expr: Expr, encoded: Constant, stored: np.ndarray, value_of: Values) -> np.ndarray:
    """Return the value of an expression with other numbers in the place of a constant."""
    value = value_of(expr)
    if isinstance(value, Constant):
        return stored if value is encoded else value.data
    assert isinstance(value, Call)
    assert isinstance(value.op, Op)
    assert value.op.reference is not None
    return value.op.reference(*(_evaluate_with(arg, encoded, stored, value_of) for arg in value.args), **value.attrs)


def _affine(weights: np.ndarray, zero: np.ndarray, one: np.ndarray) -> StoredWeights | None:
    """Recover scales and zero points of `(stored - z) * scale` from its values at stored = 0 and 1."""
    scales, zeros, whole = (np.empty(weights.shape, np.float32) for _ in range(3))
    rows = max(1, _AT_A_TIME // weights.shape[1])
    for start in range(0, len(weights), rows):
        part = slice(start, start + rows)
        parts = _affine_parts(weights[part], zero[part], one[part])
        if parts is None:
            return None
        scales[part], zeros[part], whole[part] = parts
    for group in _groups(len(weights)):
        parameters = _per_group(scales, whole, zeros, group)
        if parameters is not None:
            return _packable(whole + zeros, group, *parameters)
    return None


def _affine_parts(
    weights: np.ndarray, zero: np.ndarray, one: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return for each weight its scale, its zero point, and the integer without that."""
    with np.errstate(all="ignore"):
        scales = one - zero
        zeros = np.rint(-zero / scales)
        whole = np.rint((weights - zero) / scales) - zeros
        # What two subtractions lost of the scales is restored by division.
        if zero.any():
            scales = np.where(whole == 0, scales, weights / whole)
        is_zero = (one == zero) & (zero == 0)  # a group of zeros may have any scale, 0 among them
        whole, zeros = np.where(is_zero, 0, whole), np.where(is_zero, 0, zeros)
        is_exact = np.abs(whole * scales - weights) <= _TOLERANCE * np.abs(weights)
    return (scales, zeros, whole) if is_exact.all() and np.isfinite(scales).all() else None


def _groups(count: int) -> Iterator[int]:
    """Yield the group sizes to try, the largest first."""
    yield count
    size = MOST_GROUP
    while size >= LEAST_GROUP:
        if size < count:
            yield size
        size //= 2


def _per_group(
    scales: np.ndarray, whole: np.ndarray, zeros: np.ndarray, group: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return one scale and one zero point for each group, where they are the same in it."""
    starts = np.arange(0, len(scales), group)
    # Of the scales in a group the one that was divided by the largest number is the most exact.
    scale = scales[starts]
    for row, begin in enumerate(starts):
        part, zero = scales[begin : begin + group], zeros[begin : begin + group]
        if not (zero == zero[0]).all():
            return None
        if (part == part[0]).all():
            continue
        best = np.abs(whole[begin : begin + group]).argmax(axis=0)[None]
        scale[row] = np.take_along_axis(part, best, axis=0)[0]
        if not np.allclose(part, scale[row], rtol=_TOLERANCE * 64, atol=0):
            return None
    return scale, zeros[starts]


def _packable(codes: np.ndarray, group: int, scales: np.ndarray, zeros: np.ndarray) -> StoredWeights | None:
    """Return the weights with integers shifted to as few bits as they fit into; None if they do not fit."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    bits = 4 if high - min(low, 0) <= 15 and (low >= -8) else 8
    middle = (8 if bits == 4 else 128) if high > (7 if bits == 4 else 127) else 0
    if low - middle < -(2 ** (bits - 1)) or high - middle >= 2 ** (bits - 1):
        return None
    moved = zeros - middle
    if np.abs(moved).max(initial=0) > _LARGEST_ZERO:
        return None
    of_bytes = moved.astype(np.int8) if moved.any() else None
    return StoredWeights(bits, (codes - np.float32(middle)).astype(np.int8), group, narrow_floats(scales), of_bytes)


def narrow_floats(numbers: np.ndarray) -> np.ndarray:
    """Return floats in the narrowest type that holds them: bfloat16, float16 or float32."""
    for dtype in ("bfloat16", "float16"):
        with np.errstate(over="ignore"):
            narrow = numbers.astype(to_numpy(dtype))
        if (narrow.astype(np.float32) == numbers).all():
            return narrow
    return numbers.astype(np.float32)


def _with_minima(weights: np.ndarray, zero: np.ndarray, one: np.ndarray) -> StoredWeights | None:
    """Recover `stored * scale + minimum` from its values at stored = 0, which are the minima, and 1."""
    depth, columns = weights.shape
    for group in _groups(depth):
        rows = ((0, -depth % group), (0, 0))
        grouped = (np.pad(each, rows, "edge").reshape(-1, group, columns) for each in (weights, zero, one))
        values, minima, ones = grouped
        if not (minima == minima[:, :1]).all():
            continue
        found = _fit_scales(values, minima[:, 0], (ones - minima)[:, 0])
        if found is not None:
            return _shift_to_fewest_bits(*found, minima[:, 0], depth)
    return None


def _fit_scales(values: np.ndarray, minima: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return integers and scales of groups, (groups, elements, columns) and (groups, columns), where they are such."""
    above = values - minima[:, None]
    with np.errstate(all="ignore"):
        codes = np.where(scales[:, None] == 0, 0, np.rint(above / scales[:, None]))
        # What the subtraction of two sums lost of the scale is restored by the largest multiple of it.
        best = np.abs(codes).argmax(axis=1)[:, None]
        largest = np.take_along_axis(codes, best, 1)[:, 0]
        exact = np.where(largest == 0, scales, np.take_along_axis(above, best, 1)[:, 0] / largest)
        half = exact.astype(np.float16).astype(np.float32)
        for candidate in (half, exact):
            products = codes * candidate[:, None]
            allowed = _TOLERANCE * (np.abs(products) + np.abs(minima[:, None]))
            if (np.abs(products + minima[:, None] - values) <= allowed).all():
                return codes, candidate
    return None


def _shift_to_fewest_bits(
    codes: np.ndarray, scales: np.ndarray, minima: np.ndarray, depth: int
) -> StoredWeights | None:
    """Return integers moved so that they fit into as few bits as they can; the minima are those of the moved ones."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    bits = 4 if (low >= 0 and high <= 15) or (low >= -8 and high <= 7) else 8
    middle = (8 if bits == 4 else 128) if high > (7 if bits == 4 else 127) else 0
    if low - middle < -(2 ** (bits - 1)) or high - middle >= 2 ** (bits - 1):
        return None
    stored = (codes - np.float32(middle)).astype(np.int8).reshape(-1, codes.shape[2])[:depth]
    # In float64 the sum is exact, so that whoever counts from another integer gets the minima back as they were.
    moved = minima.astype(np.float64) + float(middle) * scales.astype(np.float64)
    return StoredWeights(bits, stored, codes.shape[1], narrow_floats(scales), minima=moved)
