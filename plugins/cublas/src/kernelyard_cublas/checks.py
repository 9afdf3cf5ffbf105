"""Checks of matches against what cuBLASLt supports; each declines with the reason.

The library reads a bias, a batch or an alignment without looking: what is accepted here is right in every size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelyard import dims
from kernelyard.dims import Dim, Shape
from kernelyard.plugins.api import (
    Accept,
    Answer,
    Call,
    Constant,
    Decline,
    Expr,
    Gemm,
    Match,
    Target,
    check_bias,
    gemm_of_shapes,
)
from kernelyard_cublas.problem import ROLES
from kernelyard_cublas.reading import Reading, read_call, read_match
from kernelyard_cublas.type_table import (
    FP8,
    FP8_ALIGNMENT,
    FP8_CAPABILITY,
    INT8_LEADING_MULTIPLE,
    INT8_LEAST_ROWS,
    INT8_MULTIPLE,
    PRODUCTS,
    ProductType,
    alignment_of_columns,
)
from kernelyard_cuda.driver_api import capability_of

Check = Callable[[Match], Answer]


class Checks:
    """The checks for a target. approximate_gelu: whether gelu may be computed by its approximation with tanh."""

    def __init__(self, target: Target, approximate_gelu: bool = False) -> None:
        self._target = target
        self._approximate_gelu = approximate_gelu

    def product(self, match: Match) -> Answer:
        """Return a matmul, and what follows it: a scale, bias, residual, activation."""
        reading = read_match(match)
        return (
            _inner(match)
            or self.refusal(reading)
            or _scale(match, reading)
            or _bias(match, reading)
            or _residual(match, reading)
            or self._activation(match, reading)
            or Accept()
        )

    def dequantize(self, match: Match) -> Answer:
        """Return a matmul of integers restored to floats by one number."""
        reading = read_match(match)
        scale, zero_point = match["scale"], match["zero_point"]
        for code, number in (("scale", scale), ("zero-point", zero_point)):
            if number.tensor_type.rank:
                return Decline(code, f"it is {number.type!r}, one number for each of many", at=number)
        if _check_one_number(zero_point) != 0:
            return Decline("zero-point", f"the zero point is {_check_one_number(zero_point)}, not 0", at=zero_point)
        return _inner(match) or self.refusal(reading) or _scale(match, reading) or Accept()

    def multiply(self, match: Match) -> Answer:
        """Return a matmul of float8 multiplied by two numbers that are on the device."""
        reading = read_match(match)
        refused = _inner(match) or self.refusal(reading)
        if refused is not None:
            return refused
        if not _product_type(reading).scales:
            return Decline("dtype", f"operands of {reading.lhs.dtype} have no scales on the device; {FP8} has")
        for name in ("scale_a", "scale_b"):
            if match[name].tensor_type.dtype != "float32":
                return Decline("scale", f"a scale of {match[name].tensor_type.dtype}, not float32", at=match[name])
        return Accept()

    def call(self, call: Call) -> Answer:
        """Return a matmul by itself, for rules of single operators."""
        return self.refusal(read_call(call)) or Accept()

    def refusal(self, reading: Reading) -> Decline | None:
        """Return the reason why a matmul cannot be one call, whatever follows it."""
        lhs, rhs = reading.lhs, reading.rhs
        if lhs.dtype != rhs.dtype or (lhs.dtype, reading.dtype) not in PRODUCTS:
            return Decline("dtype", f"{lhs.dtype} @ {rhs.dtype} -> {reading.dtype} is not a matmul of cuBLASLt")
        gemm = gemm_of_shapes(reading.left, reading.right)
        if isinstance(gemm, Decline):
            return gemm
        if not _is_positive(gemm.inner):
            return Decline("dynamic-shape", f"the contraction axis is {gemm.inner}, which is not known to be 1 or more")
        if lhs.dtype == "int8":
            return _int8(reading, gemm)
        if lhs.dtype == FP8:
            return self._arch() or _fp8(reading)
        return None

    def _arch(self) -> Decline | None:
        for arch in self._target.archs:
            capability = capability_of(arch)
            if capability is not None and capability < FP8_CAPABILITY:
                return Decline("arch", f"{arch} has no {FP8} matmul; sm_89 and later have")
        return None

    def _activation(self, match: Match, reading: Reading) -> Decline | None:
        if reading.activation == "none":
            return None
        if not _product_type(reading).activations:
            return Decline("activation", f"no activation can follow a matmul {reading.lhs.dtype} -> {reading.dtype}")
        if match.call_of("activation").op_name == "nn.gelu" and not self._approximate_gelu:
            return Decline(
                "approximation",
                "cuBLASLt approximates gelu by tanh: nn.gelu_tanh is that; for nn.gelu say "
                'options={"cublas": {"approximate_gelu": True}}',
            )
        return None


def _inner(match: Match) -> Decline | None:
    """Check that operands come from before the matmul: y + y has no residual, but twice the matmul's result."""
    for name in ROLES:
        operand = match.get(name)
        if operand is not None and operand in match.members:
            return Decline("operand", f"{name} is computed inside of the group", at=operand)
    return None


def _product_type(reading: Reading) -> ProductType:
    return PRODUCTS[reading.lhs.dtype, reading.dtype]


def _is_positive(size: Dim) -> bool:
    """Return True for 1 or more, whatever the symbols are: a symbol is, and what is added to it may not be negative."""
    if isinstance(size, int):
        return size >= 1
    symbols = [dims.symbol(name) for name in dims.symbols_of(size)]
    rests = [size - each for each in symbols]
    return any(isinstance(rest, int) and rest >= 0 for rest in rests) or size == dims.product(symbols)


def _multiple(size: Dim, of: int, what: str) -> Decline | None:
    if isinstance(size, int) and size % of == 0:
        return None
    return Decline("alignment", f"{what} is {size}; it must be known, and a multiple of {of}")


def _int8(reading: Reading, gemm: Gemm) -> Decline | None:
    """Check that the right operand lies along the contraction axis or along the columns, which are asked about anyway.

    Rows that are not known now may be too few: the library says so once they are (`CublasBackend.may_refuse`).
    """
    if isinstance(gemm.rows, int) and gemm.rows < INT8_LEAST_ROWS:
        return Decline("rows", f"the number of rows is {gemm.rows}; it must be at least {INT8_LEAST_ROWS}")
    return (
        _multiple(gemm.inner, INT8_MULTIPLE, "the contraction axis")
        or _multiple(gemm.columns, INT8_MULTIPLE, "the number of columns")
        or _multiple(
            reading.lhs.shape[-1], INT8_LEADING_MULTIPLE, "the last axis of the left operand, as it is stored,"
        )
    )


def _fp8(reading: Reading) -> Decline | None:
    if reading.lhs.transposed or not (reading.rhs.transposed or reading.pack_rhs):
        return Decline(
            "layout", f"operands of {FP8} must both be contiguous along the contraction axis: x @ permute_dims(w)"
        )
    multiple = alignment_of_columns(reading.dtype)
    return _multiple(reading.left[-1], FP8_ALIGNMENT, "the contraction axis") or _multiple(
        reading.right[-1], multiple, "the number of columns"
    )


def _check_one_number(expr: Expr | None) -> float | None:
    return float(expr.data.item()) if isinstance(expr, Constant) and expr.data.size == 1 else None


def alpha_of(match: Match) -> float:
    """Return alpha, the scale of the matmul."""
    number = _check_one_number(match.get("scale"))
    if number is None:
        return 1.0
    if match.get("quotient") is None:
        return number
    return 1.0 / number if number else math.inf


def _scale(match: Match, reading: Reading) -> Decline | None:
    scale = match.get("scale")
    if scale is None:
        return None
    if reading.dtype == "int32":
        return Decline("scale", f"a {reading.dtype} matmul cannot be scaled", at=scale)
    if _check_one_number(scale) is None:
        return Decline("scale", f"the matmul is scaled by {scale.type!r}, which is not a scalar", at=scale)
    if not math.isfinite(alpha_of(match)):
        return Decline("scale", f"the matmul is scaled by {alpha_of(match)}, which is not finite", at=scale)
    if scale.tensor_type.rank > len(match["root"].tensor_type.shape):
        return Decline("scale", f"{scale.type!r} has more axes than the matmul's result", at=scale)
    return None


def _bias(match: Match, reading: Reading) -> Decline | None:
    bias = match.get("bias")
    if bias is None:
        return None
    wanted = _product_type(reading).bias
    if wanted != bias.tensor_type.dtype:
        expected = f"has a bias of {wanted}" if wanted else "has none"
        return Decline("bias", f"a matmul {reading.lhs.dtype} -> {reading.dtype} {expected}", at=bias)
    return check_bias(match)


def _residual(match: Match, reading: Reading) -> Decline | None:
    residual = match.get("residual")
    if residual is None:
        return None
    if not _product_type(reading).residual:
        return Decline(
            "residual", f"no residual can be added to a matmul {reading.lhs.dtype} -> {reading.dtype}", at=residual
        )
    product, shape = match["root"].tensor_type.shape, residual.tensor_type.shape
    is_one = shape[-2:] == product[-2:] and all(size == 1 for size in shape[:-2])
    is_whole = len(shape) >= 2 and _drop_leading_ones(shape) == _drop_leading_ones(product)
    if len(shape) > len(product) or not (is_one or is_whole):
        return Decline("residual", f"what is added is {residual.type!r}, no whole product of {product}", at=residual)
    return None


def _drop_leading_ones(shape: Shape) -> Shape:
    """Drop leading axes of one element, which broadcast to nothing."""
    first = next((i for i, size in enumerate(shape[:-2]) if size != 1), max(len(shape) - 2, 0))
    return shape[first:]
