"""Weight-only quantization: integers and scales are stored, and dequantized in front of each matmul."""

from __future__ import annotations

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.errors import PassError
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.patterns.templates import swaps_last_two
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

BITS = (4, 8)
GROUP = 32  # elements along the summed axis that share a scale, of 4 bits
LEAST_ELEMENTS = 1 << 16  # smaller weights stay in cache, and constants so small are folded again
_LARGEST = {8: 127.0, 4: 7.0}
# The extreme of a group is so many units: what leaves the range is cut, and the others are finer.
_UNITS_OF_EXTREME = (7.0, 7.5, 8.0, 8.5)
_AT_A_TIME = 8  # groups: what is computed of them stays in cache


class QuantizeWeights(FunctionPass):
    """Constant float32 right sides of matrix products are stored in `bits`: 8 or 4.

    Of 8 bits each column has a scale, `dequantize` restores them. Of 4 bits so do every 32 elements of a column (the
    scales are bfloat16 numbers), and a product with the scales restores them. Weights of fewer than 65536 elements, of
    more than two axes, or with infinities or NaNs stay as they are; so does what else reads a weight.

    The meaning stays up to the rounding of weights: by half a unit of 1/127 of a column's extreme with 8 bits; with 4,
    1/14 of a group's extreme at the root of the mean square.
    """

    name = "quantize_weights"

    def __init__(self, bits: int = 8) -> None:
        if bits not in BITS:
            raise PassError("weights are quantized to 4 or 8 bits", found=bits, expected="4 or 8")
        self._bits = bits

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Quantizer(self._bits).mutate(function)


class _Quantizer(FunctionMutator):
    def __init__(self, bits: int) -> None:
        super().__init__()
        self._bits = bits
        self._stored: dict[tuple[str, bool], tuple[Constant, Constant]] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "matmul" or value.tensor_type.dtype != "float32":
            return value
        left, right = value.args
        weight, is_transposed = self._weight(right)
        if weight is None or isinstance(left, Constant) or not _is_worth_it(weight.data):
            return value
        key = weight.digest, is_transposed
        if key not in self._stored:
            matrix = weight.data.T if is_transposed else weight.data
            codes, scales = quantize_matrix(matrix, self._bits)
            self._stored[key] = Constant(codes), Constant(scales)
        return Call(value.op, [left, self._emit_dequantize(*self._stored[key], right)], value.attrs)

    def _weight(self, right: Expr) -> tuple[Constant | None, bool]:
        """Return the constant that a right side is, or is the transpose of."""
        value = self.value_of(right)
        if isinstance(value, Call) and value.op_name == "permute_dims" and swaps_last_two(value.attrs["axes"]):
            below = self.value_of(value.args[0])
            return (below, True) if isinstance(below, Constant) else (None, True)
        return (value, False) if isinstance(value, Constant) else (None, False)

    def _emit_dequantize(self, codes: Constant, scales: Constant, like: Expr) -> Expr:
        if self._bits == 8:
            zero = Constant(np.zeros((), np.int8))
            return self.emit(Call(get_op("dequantize"), [codes, scales, zero], {"axis": 1}))
        wide = self.emit(Call(get_op("astype"), [codes], {"dtype": "float32"}))
        real = self.emit(Call(get_op("multiply"), [wide, scales]))
        k, n = like.tensor_type.shape
        groups, size, _ = codes.data.shape
        flat = self.emit(Call(get_op("reshape"), [real], {"shape": (groups * size, n)}))
        if groups * size == k:
            return flat
        cut = {"axes": (0,), "begin": (0,), "end": (k,), "strides": (1,)}
        return self.emit(Call(get_op("strided_slice"), [flat], cut))


def _is_worth_it(weight: np.ndarray) -> bool:
    return weight.ndim == 2 and weight.size >= LEAST_ELEMENTS and bool(np.isfinite(weight).all())


def quantize_matrix(matrix: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a float32 matrix (K, N) as integers and scales.

    8 bits: int8 (K, N) and float32 (N,). 4 bits: int8 (K / 32 rounded up, 32, N), from -8 to 7, and float32
    (K / 32 rounded up, 1, N).

    Example:
        >>> codes, scales = quantize_matrix(np.array([[1.0, -4.0], [-0.5, 2.0]], np.float32), 8)
        >>> codes.tolist(), (scales * 127).tolist()
        ([[127, -127], [-64, 64]], [1.0, 4.0])
    """
    if bits == 8:
        scales = _nonzero(np.abs(matrix).max(axis=0) / np.float32(_LARGEST[8]))
        return np.rint(matrix / scales).astype(np.int8), scales
    rows = -(-len(matrix) // GROUP) * GROUP
    padded = np.concatenate([matrix, np.zeros((rows - len(matrix), matrix.shape[1]), np.float32)])
    groups = padded.reshape(-1, GROUP, matrix.shape[1])
    parts = [_choose_group_scales(groups[start : start + _AT_A_TIME]) for start in range(0, len(groups), _AT_A_TIME)]
    codes, scales = zip(*parts, strict=True)
    return np.concatenate(codes), np.concatenate(scales)


def _choose_group_scales(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the best of several scales for each group: the one with the least squared error."""
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    extreme = _nonzero(np.where(-low > high, low, high))
    parts = groups / extreme  # no square of them overflows
    least = np.full(extreme.shape, np.inf, np.float32)
    codes, scales = np.zeros(groups.shape, np.int8), np.ones(extreme.shape, np.float32)
    for units in _UNITS_OF_EXTREME:
        candidate = _nonzero((extreme / np.float32(-units)).astype(to_numpy("bfloat16")).astype(np.float32))
        unit = candidate / extreme
        rounded = np.clip(np.rint(parts / unit), -8, 7)
        error = np.square(rounded * unit - parts).sum(axis=1, keepdims=True)
        better = error < least
        least, scales = np.where(better, error, least), np.where(better, candidate, scales)
        np.copyto(codes, rounded.astype(np.int8), where=better)
    return codes, scales


def _nonzero(scales: np.ndarray) -> np.ndarray:
    """Return the scales with 1 in place of 0, which is the scale of weights that are all 0."""
    return np.where(scales == 0, np.float32(1), scales)
