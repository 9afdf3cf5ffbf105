"""Functions of complex numbers, element by element, by their parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_torch.complex_numbers import Complex
from kernelyard_torch.converters import reduction
from kernelyard_torch.converters.complex import Value, abs_, angle, as_complex, divide, product, to_complex_dtype
from kernelyard_torch.converters.elementwise import copysign
from kernelyard_torch.node import Node
from kernelyard_torch.registry import Converter, converter, register


@converter("aten.exp.default", complex_numbers=True)
def exp(node: Node, z: Complex) -> Complex:
    return _from_polar(node, node.op("exp", z.real), z.imag)


@converter("aten.log.default", complex_numbers=True)
def log(node: Node, z: Complex) -> Complex:
    return Complex(node.op("log", abs_(node, z)), angle(node, z))


@converter("aten.sin.default", complex_numbers=True)
def sin(node: Node, z: Complex) -> Complex:
    return Complex(_times(node, "sin", z.real, "cosh", z.imag), _times(node, "cos", z.real, "sinh", z.imag))


@converter("aten.cos.default", complex_numbers=True)
def cos(node: Node, z: Complex) -> Complex:
    imag = node.op("negative", _times(node, "sin", z.real, "sinh", z.imag))
    return Complex(_times(node, "cos", z.real, "cosh", z.imag), imag)


@converter("aten.sinh.default", complex_numbers=True)
def sinh(node: Node, z: Complex) -> Complex:
    return Complex(_times(node, "sinh", z.real, "cos", z.imag), _times(node, "cosh", z.real, "sin", z.imag))


@converter("aten.cosh.default", complex_numbers=True)
def cosh(node: Node, z: Complex) -> Complex:
    return Complex(_times(node, "cosh", z.real, "cos", z.imag), _times(node, "sinh", z.real, "sin", z.imag))


@converter("aten.tanh.default", complex_numbers=True)
def tanh(node: Node, z: Complex) -> Complex:
    """By the tangent hyperbolic of the real part, so that nothing overflows."""
    a, b = node.op("tanh", z.real), node.op("tan", z.imag)
    above = Complex(a, b)
    below = Complex(node.full(1, node.shape(a), node.dtype(a)), node.op("multiply", a, b))
    return divide(node, above, below)


@converter("aten.sigmoid.default", complex_numbers=True)
def sigmoid(node: Node, z: Complex) -> Complex:
    half = tanh(node, z.map(lambda part: node.op("multiply", part, 0.5)))
    return Complex(node.op("multiply", node.op("add", half.real, 1.0), 0.5), node.op("multiply", half.imag, 0.5))


@converter("aten.sqrt.default", complex_numbers=True)
def sqrt(node: Node, z: Complex) -> Complex:
    """Compute the root whose real part is not negative, its imaginary part with the sign of z's."""
    size = abs_(node, z)

    def half(name: str) -> Expr:
        difference = node.op("maximum", node.op(name, size, z.real), 0)
        return node.op("sqrt", node.op("multiply", difference, 0.5))

    return Complex(half("add"), copysign(node, half("subtract"), z.imag))


@converter("aten.reciprocal.default", complex_numbers=True)
def reciprocal(node: Node, z: Complex) -> Complex:
    return divide(node, 1, z)


@converter("aten.rsqrt.default", complex_numbers=True)
def rsqrt(node: Node, z: Complex) -> Complex:
    return divide(node, 1, sqrt(node, z))


@converter("aten.square.default", complex_numbers=True)
def square(node: Node, z: Complex) -> Complex:
    return product(node, "multiply", z, z)


@converter("aten.sgn.default", complex_numbers=True)
def sgn(node: Node, z: Complex) -> Complex:
    size = abs_(node, z)
    safe = node.op("where", node.op("equal", size, 0), node.full(1, (), node.dtype(size)), size)
    return z.map(lambda part: node.op("divide", part, safe))


@converter("aten.pow.Tensor_Scalar", complex_numbers=True)
def power_of_number(node: Node, z: Complex, exponent: complex) -> Complex:
    """Multiply for small whole exponents, else go by logarithms."""
    if isinstance(exponent, complex) or exponent not in (1, 2, 3, 4):
        return power(node, z, exponent)
    result = z
    for _ in range(int(exponent) - 1):
        result = product(node, "multiply", result, z)
    return result


@converter("aten.pow.Tensor_Tensor", "aten.pow.Scalar", complex_numbers=True)
def power(node: Node, base: Value, exponent: Value) -> Complex:
    """Compute exp(exponent log(base)); zero has powers of its own."""
    z, w = as_complex(node, base), as_complex(node, exponent)
    size = abs_(node, z)
    is_zero = node.op("equal", size, 0)

    def one_of(condition: Expr, value: float, other: Expr | float) -> Expr:
        rest = other if isinstance(other, Expr) else node.full(other, (), node.dtype(size))
        return node.op("where", condition, node.full(value, (), node.dtype(size)), rest)

    whole = exp(node, product(node, "multiply", w, Complex(node.op("log", one_of(is_zero, 1, size)), angle(node, z))))
    is_inverse = node.op("less", w.real, 0)
    of_zero = one_of(is_inverse, np.inf, one_of(node.op("equal", abs_(node, w), 0), 1, 0.0))
    return Complex(
        node.op("where", is_zero, of_zero, whole.real),
        node.op("where", is_zero, one_of(is_inverse, np.nan, 0.0), whole.imag),
    )


@converter("aten.prod.dim_int", complex_numbers=True)
def prod(node: Node, z: Value, axis: int, keepdims: bool = False, *_: object) -> Complex:
    """Multiply along an axis of fixed size, one after the other."""
    whole = as_complex(node, z)
    at = node.axis(axis, node.rank(whole.real))
    count = node.require_fixed(node.shape(whole.real)[at], "the number of factors")
    result = as_complex(node, 1)
    for index in range(count):
        result = product(node, "multiply", result, whole.map(lambda part, i=index: node.slice(part, at, i, i + 1)))
    return result.map(
        lambda part: node.reshape(node.broadcast_to(part, _keepdims_shape(node, whole, at)), node.result.shape)
    )


def _from_polar(node: Node, size: Expr, around: Expr) -> Complex:
    return Complex(_multiply_by(node, size, "cos", around), _multiply_by(node, size, "sin", around))


def _multiply_by(node: Node, size: Expr, name: str, x: Expr) -> Expr:
    return node.op("multiply", size, node.op(name, x))


def _times(node: Node, first: str, x: Expr, second: str, y: Expr) -> Expr:
    return node.op("multiply", node.op(first, x), node.op(second, y))


def _to_common_dtype(node: Node, a: Value, b: Value) -> tuple[Complex, Complex]:
    """Return the operands of a comparison, whose own result is bool."""
    dtype = next(node.dtype(each.real) for each in (a, b) if isinstance(each, Complex))
    return to_complex_dtype(node, a, dtype), to_complex_dtype(node, b, dtype)


def _keepdims_shape(node: Node, z: Complex, axis: int) -> tuple[Dim, ...]:
    return tuple(1 if index == axis else size for index, size in enumerate(node.shape(z.real)))


def _var(convert: Callable[..., Expr]) -> Converter:
    """Return the converter of a variance: the sum of the parts' own."""
    return lambda node, z, *how: node.op("add", convert(node, z.real, *how), convert(node, z.imag, *how))


for _name, _convert in (("correction", reduction.var), ("dim", reduction.var_of_axes)):
    register(f"aten.var.{_name}", _var(_convert), complex_numbers=True)


@converter("aten.eq.Tensor", "aten.eq.Scalar", complex_numbers=True)
def equal(node: Node, a: Value, b: Value) -> Expr:
    left, right = _to_common_dtype(node, a, b)
    same = [node.op("equal", *pair) for pair in ((left.real, right.real), (left.imag, right.imag))]
    return node.op("logical_and", *same)


@converter("aten.ne.Tensor", "aten.ne.Scalar", complex_numbers=True)
def not_equal(node: Node, a: Value, b: Value) -> Expr:
    return node.op("logical_not", equal(node, a, b))


@converter("aten.isnan.default", complex_numbers=True)
def isnan(node: Node, z: Complex) -> Expr:
    return node.op("logical_or", node.op("isnan", z.real), node.op("isnan", z.imag))


@converter("aten.isinf.default", complex_numbers=True)
def isinf(node: Node, z: Complex) -> Expr:
    return node.op("logical_or", node.op("isinf", z.real), node.op("isinf", z.imag))
