"""Elementwise operators of several operands, with torch's promotion of dtypes."""

from __future__ import annotations

import math

from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr, Operand
from kernelyard_torch.node import Node
from kernelyard_torch.promotion import promote
from kernelyard_torch.registry import Converter, converter, register

ARITHMETIC = {
    "fmod": "fmod",
    "maximum": "maximum",
    "minimum": "minimum",
    "mul": "multiply",
    "remainder": "mod",
}
COMPARISONS = {
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "ne": "not_equal",
}
BITWISE = {
    "bitwise_and": ("bitwise_and", "logical_and"),
    "bitwise_or": ("bitwise_or", "logical_or"),
    "bitwise_xor": ("bitwise_xor", "logical_xor"),
    "bitwise_left_shift": ("left_shift", None),
    "bitwise_right_shift": ("right_shift", None),
    "__lshift__": ("left_shift", None),
    "__rshift__": ("right_shift", None),
}
LOGICAL = {"logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor"}


def arithmetic(node: Node, name: str, a: Operand, b: Operand) -> Expr:
    """Return an operator on numbers; truth values count as 0 and 1."""
    a, b = promote(node, a, b)
    if node.dtype(a) == "bool":
        a, b = node.cast(a, "uint8"), node.cast(b, "uint8")
    return node.op(name, a, b)


def _arithmetic(name: str) -> Converter:
    return lambda node, a, b: arithmetic(node, name, a, b)


def _bitwise(name: str, of_bool: str | None) -> Converter:
    def convert(node: Node, a: Operand, b: Operand) -> Expr:
        a, b = promote(node, a, b)
        return node.op(of_bool if of_bool and node.dtype(a) == "bool" else name, a, b)

    return convert


def _logical(name: str) -> Converter:
    return lambda node, a, b: node.op(name, node.cast(a, "bool"), node.cast(b, "bool"))


def _both(aten: str, convert: Converter, overloads: tuple[str, ...] = ("Tensor", "Scalar")) -> None:
    for overload in overloads:
        register(f"aten.{aten}.{overload}", convert)


for _aten, _name in ARITHMETIC.items():
    _both(_aten, _arithmetic(_name), ("default",) if _aten in ("maximum", "minimum") else ("Tensor", "Scalar"))
for _aten, _name in COMPARISONS.items():
    _both(_aten, _arithmetic(_name))
for _aten, (_name, _of_bool) in BITWISE.items():
    overloads = ("Tensor", "Tensor_Scalar") if _aten.endswith("_shift") else ("Tensor", "Scalar")
    _both(_aten, _bitwise(_name, _of_bool), overloads)
for _aten, _name in LOGICAL.items():
    register(f"aten.{_aten}.default", _logical(_name))


@converter("aten.add.Tensor", "aten.add.Scalar")
def add(node: Node, a: Operand, b: Operand, alpha: float = 1) -> Expr:
    return _sum_scaled(node, "add", a, b, alpha)


@converter("aten.sub.Tensor", "aten.sub.Scalar")
def subtract(node: Node, a: Operand, b: Operand, alpha: float = 1) -> Expr:
    return _sum_scaled(node, "subtract", a, b, alpha)


@converter("aten.rsub.Tensor", "aten.rsub.Scalar")
def reversed_subtract(node: Node, a: Operand, b: Operand, alpha: float = 1) -> Expr:
    return _sum_scaled(node, "subtract", b, a, alpha)


def _sum_scaled(node: Node, name: str, a: Operand, b: Operand, alpha: float) -> Expr:
    left, right = promote(node, a, b)
    if alpha != 1:
        right = arithmetic(node, "multiply", right, alpha)
    return arithmetic(node, name, left, right)


@converter("aten.addcmul.default")
def addcmul(node: Node, x: Expr, a: Expr, b: Expr, value: float) -> Expr:
    x, a, b = promote(node, x, a, b)
    product = node.op("multiply", a, b)
    return node.op("add", x, product if value == 1 else node.op("multiply", product, value))


@converter("aten.addcdiv.default")
def addcdiv(node: Node, x: Expr, a: Expr, b: Expr, value: float) -> Expr:
    x, a, b = promote(node, x, a, b)
    quotient = node.op("divide", a, b)
    return node.op("add", x, quotient if value == 1 else node.op("multiply", quotient, value))


@converter("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def divide(node: Node, a: Operand, b: Operand) -> Expr:
    dtype = node.result.dtype
    return node.op("divide", node.cast(node.expr(a, dtype), dtype), node.cast(node.expr(b, dtype), dtype))


@converter("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def divide_rounded(node: Node, a: Operand, b: Operand, rounding_mode: str | None) -> Expr:
    if rounding_mode is None:
        return divide(node, a, b)
    left, right = promote(node, a, b)
    if is_float(node.dtype(left)) and rounding_mode == "trunc":
        return node.op("trunc", node.op("divide", left, right))
    if is_float(node.dtype(left)):  # PyTorch rounds no quotient to a narrow float before this step
        dtype = node.dtype(left)
        wide = [node.cast(each, "float64" if dtype == "float64" else "float32") for each in (left, right)]
        return node.cast(node.op("floor", node.op("divide", *wide)), dtype)
    if rounding_mode == "trunc":
        return node.op("divide", left, right)
    # What `mod` leaves divides exactly.
    return node.op("divide", node.op("subtract", left, node.op("mod", left, right)), right)


@converter("aten.floor_divide.default")
def floor_divide(node: Node, a: Operand, b: Operand) -> Expr:
    return divide_rounded(node, a, b, "floor")


@converter("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def power(node: Node, base: Operand, exponent: Operand) -> Expr:
    dtype = node.result.dtype
    if isinstance(base, Expr) and exponent == 2 and dtype != "bool":
        return node.op("square", node.cast(base, dtype))
    return arithmetic(
        node, "power", node.cast(node.expr(base, dtype), dtype), node.cast(node.expr(exponent, dtype), dtype)
    )


@converter("aten.where.self")
def where(node: Node, condition: Expr, x: Expr, y: Expr) -> Expr:
    return node.op("where", node.cast(condition, "bool"), *promote(node, x, y))


@converter("aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where_scalar(node: Node, condition: Expr, x: Operand, y: Operand) -> Expr:
    dtype = node.result.dtype
    return node.op("where", condition, node.expr(x, dtype), node.expr(y, dtype))


@converter("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(node: Node, x: Expr, mask: Expr, value: Operand) -> Expr:
    return node.op("where", mask, node.cast(node.expr(value, node.dtype(x)), node.dtype(x)), x)


@converter("aten.clamp.default", "aten.clamp.Tensor")
def clamp(node: Node, x: Expr, low: Operand | None = None, high: Operand | None = None) -> Expr:
    dtype = node.result.dtype
    x = node.cast(x, dtype)
    given = [bound for bound in (low, high) if bound is not None]
    if is_float(dtype) and all(isinstance(bound, (int, float)) and not math.isnan(bound) for bound in given):
        return node.op("clip", x, min=_float(low), max=_float(high))
    work = "uint8" if dtype == "bool" else dtype
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            x = node.op(name, node.cast(x, work), node.cast(node.expr(bound, dtype), work))
    return x


@converter("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(node: Node, x: Expr, low: Operand) -> Expr:
    return clamp(node, x, low, None)


@converter("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(node: Node, x: Expr, high: Operand) -> Expr:
    return clamp(node, x, None, high)


def _float(bound: Operand | None) -> float | None:
    return None if bound is None else float(bound)  # pyright: ignore[reportArgumentType]


@converter("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(node: Node, x: Expr, slope: Expr) -> Expr:
    if node.rank(slope) == 1 and node.rank(x) > 1:
        slope = node.along(slope, 1, node.rank(x))
    return node.op("nn.prelu", x, slope)


@converter("aten.atan2.default")
def atan2(node: Node, y: Expr, x: Expr) -> Expr:
    """By the arc tangent of the smaller over the larger one, which lies in [0, 1], unfolded to the whole circle."""
    dtype = node.result.dtype
    y, x = node.cast(y, dtype), node.cast(x, dtype)
    high, wide = node.op("abs", y), node.op("abs", x)
    smaller, larger = node.op("minimum", high, wide), node.op("maximum", high, wide)
    ratio = node.op("divide", smaller, larger)
    ratio = node.op("where", node.op("equal", smaller, larger), node.full(1, (), dtype), ratio)
    ratio = node.op("where", node.op("equal", smaller, 0), smaller, ratio)
    angle = node.op("atan", ratio)
    angle = node.op(
        "where", node.op("greater", high, wide), node.op("subtract", node.full(math.pi / 2, (), dtype), angle), angle
    )
    behind = _is_negative(node, x)
    angle = node.op("where", behind, node.op("subtract", node.full(math.pi, (), dtype), angle), angle)
    return node.op("where", _is_negative(node, y), node.op("negative", angle), angle)


@converter("prims.hypot.default")
def hypotenuse(node: Node, a: Expr, b: Expr) -> Expr:
    """Compute the root of the sum of squares in 64 bits, which squares of 32 do not overflow."""
    squares = [node.op("square", node.cast(x, "float64")) for x in (a, b)]
    return node.cast(node.op("sqrt", node.op("add", *squares)), node.result.dtype)


@converter("aten.signbit.default")
def signbit(node: Node, x: Expr) -> Expr:
    if not is_float(node.dtype(x)):
        return node.op("less", x, 0) if node.dtype(x) != "bool" else node.full(False, node.shape(x), "bool")
    return _is_negative(node, x)


@converter("aten.copysign.Tensor")
def copysign(node: Node, a: Expr, b: Expr) -> Expr:
    size = node.op("abs", node.cast(a, node.result.dtype))
    return node.op("where", signbit(node, b), node.op("negative", size), size)


def _is_negative(node: Node, x: Expr) -> Expr:
    """Return the sign bit, that of negative zero included."""
    minus_zero = node.op("logical_and", node.op("equal", x, 0), node.op("less", node.op("reciprocal", x), 0))
    return node.op("logical_or", node.op("less", x, 0), minus_zero)
