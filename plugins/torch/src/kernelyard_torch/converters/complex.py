"""Operators on complex tensors, by their parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr, Operand
from kernelyard_torch import registry
from kernelyard_torch.complex_numbers import Complex
from kernelyard_torch.converters import creation, indexing, reduction, shape, slicing, unary  # noqa: F401  # used by name
from kernelyard_torch.converters.elementwise import atan2
from kernelyard_torch.node import Node
from kernelyard_torch.registry import Converter, converter, register

Value: TypeAlias = "Complex | complex | Operand"
# Operators that do the same to each part of their first argument.
LINEAR = (
    *("alias.default", "clone.default", "contiguous.default", "detach.default", "lift_fresh_copy.default"),
    *("_unsafe_view.default", "_reshape_alias.default", "flatten.using_ints", "reshape.default", "view.default"),
    *("expand.default", "permute.default", "t.default", "transpose.int", "unflatten.int", "unsqueeze.default"),
    *("squeeze.default", "squeeze.dim", "squeeze.dims", "neg.default", "flip.default", "repeat.default"),
    *(
        "select.int",
        "slice.Tensor",
        "narrow.default",
        "index.Tensor",
        "index_select.default",
    ),
    *("chunk.default", "split.Tensor", "split_with_sizes.default", "unbind.int", "mean.dim", "sum.dim_IntList"),
)


def _by_parts(convert: Callable[..., Any]) -> Converter:
    def converted(node: Node, x: Complex, *rest: Any) -> Any:
        real, imag = convert(node, x.real, *rest), convert(node, x.imag, *rest)
        if isinstance(real, Expr):
            return Complex(real, imag)
        return [Complex(a, b) for a, b in zip(real, imag, strict=True)]

    return converted


def _joining(convert: Callable[..., Any]) -> Converter:
    def converted(node: Node, parts: Sequence[Value], axis: int) -> Complex:
        whole = [as_complex(node, part) for part in parts]
        joined = [part.real for part in whole], [part.imag for part in whole]
        return Complex(*(convert(node, each, axis) for each in joined))

    return converted


for _names, _make in ((LINEAR, _by_parts), (("cat.default", "stack.default"), _joining)):
    for _name in _names:
        _found = registry.find(f"aten.{_name}")
        assert _found is not None, _name
        register(f"aten.{_name}", _make(_found), complex_numbers=True)


def as_complex(node: Node, value: Value) -> Complex:
    """Return a complex tensor; the imaginary part of a real one is zero."""
    if isinstance(value, Complex):
        return value.map(lambda part: node.cast(part, node.result.dtype))
    dtype = node.result.dtype
    if isinstance(value, complex):
        return Complex(node.expr(value.real, dtype), node.expr(value.imag, dtype))
    real = node.cast(node.expr(value, dtype), dtype)
    return Complex(real, node.full(0, node.shape(real), dtype))


# --- writing into complex tensors -------------------------------------------------------------------------------------
@converter("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", complex_numbers=True)
@converter("aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default", complex_numbers=True)
def zeros(node: Node, *_: object) -> Complex:
    return Complex(*[creation.zeros(node)] * 2)


@converter("aten.copy.default", complex_numbers=True)
def copy(node: Node, x: Value, source: Value, *_: object) -> Complex:
    if not node.gives_complex:
        node.reject("it drops the imaginary parts")
    return as_complex(node, source).map(lambda part: node.broadcast_to(part, node.result.shape))


def _writing(write: Callable[..., Expr]) -> Converter:
    def converted(node: Node, x: Value, part: Value, *where: Any) -> Complex:
        whole, new = as_complex(node, x), as_complex(node, part)
        return Complex(write(node, whole.real, new.real, *where), write(node, whole.imag, new.imag, *where))

    return converted


register("aten.slice_scatter.default", _writing(slicing.slice_scatter), complex_numbers=True)
register("aten.select_scatter.default", _writing(slicing.select_scatter), complex_numbers=True)


# --- from and to real tensors -----------------------------------------------------------------------------------------
@converter("aten.view_as_complex.default", complex_numbers=True)
def view_as_complex(node: Node, x: Expr) -> Complex:
    real, imag = node.ops("split", x, axis=node.rank(x) - 1, sections=(1, 1))
    return Complex(real, imag).map(lambda part: node.reshape(part, node.shape(x)[:-1]))


@converter("aten.view_as_real.default", complex_numbers=True)
def view_as_real(node: Node, x: Complex) -> Expr:
    return node.stack([x.real, x.imag], node.rank(x.real))


@converter("aten.complex.default", complex_numbers=True)
def complex_(node: Node, real: Expr, imag: Expr) -> Complex:
    return Complex(real, imag).map(lambda part: node.broadcast_to(part, node.result.shape))


@converter("aten.polar.default", complex_numbers=True)
def polar(node: Node, size: Expr, angle: Expr) -> Complex:
    return Complex(node.op("multiply", size, node.op("cos", angle)), node.op("multiply", size, node.op("sin", angle)))


@converter("aten.constant_pad_nd.default", complex_numbers=True)
def pad(node: Node, x: Complex, pads: Sequence[Dim], value: complex) -> Complex:
    value = complex(value)
    return Complex(shape.pad(node, x.real, pads, value.real), shape.pad(node, x.imag, pads, value.imag))


@converter("aten._to_copy.default", "prims.convert_element_type.default", complex_numbers=True)
def cast(node: Node, x: Value, *_: object) -> Complex | Expr:
    if isinstance(x, Complex) and not node.gives_complex:
        return node.cast(x.real, node.result.dtype)
    return as_complex(node, x)


@converter("aten.real.default", complex_numbers=True)
def real(node: Node, x: Complex) -> Expr:
    return x.real


@converter("aten.imag.default", complex_numbers=True)
def imag(node: Node, x: Complex) -> Expr:
    return x.imag


@converter("aten.abs.default", complex_numbers=True)
def abs_(node: Node, x: Complex) -> Expr:
    """Compute the absolute value; the larger part comes out of the root, so that no square overflows."""
    parts = x.map(lambda part: node.op("abs", part))
    large, small = node.op("maximum", parts.real, parts.imag), node.op("minimum", parts.real, parts.imag)
    ratio = node.op(
        "divide", small, node.op("where", node.op("equal", large, 0), node.full(1, (), node.dtype(large)), large)
    )
    return node.op("multiply", large, node.op("sqrt", node.op("add", node.op("square", ratio), 1)))


@converter("aten.angle.default", complex_numbers=True)
def angle(node: Node, x: Complex) -> Expr:
    return atan2(node, x.imag, x.real)


# --- arithmetic -------------------------------------------------------------------------------------------------------
@converter("aten._conj.default", "aten.conj.default", "aten._conj_physical.default", complex_numbers=True)
@converter("aten.conj_physical.default", complex_numbers=True)
def conjugate(node: Node, x: Complex) -> Complex:
    return Complex(x.real, node.op("negative", x.imag))


@converter("aten.resolve_conj.default", "aten.resolve_neg.default", complex_numbers=True)
def resolved(node: Node, x: Complex) -> Complex:
    return x


@converter("aten.add.Tensor", "aten.add.Scalar", complex_numbers=True)
def add(node: Node, a: Value, b: Value, alpha: float = 1) -> Complex:
    return _sum(node, "add", a, b, alpha)


@converter("aten.sub.Tensor", "aten.sub.Scalar", complex_numbers=True)
def subtract(node: Node, a: Value, b: Value, alpha: float = 1) -> Complex:
    return _sum(node, "subtract", a, b, alpha)


def _sum(node: Node, name: str, a: Value, b: Value, alpha: float) -> Complex:
    left, right = as_complex(node, a), as_complex(node, b)
    right = right if alpha == 1 else right.map(lambda part: node.op("multiply", part, alpha))
    return Complex(node.op(name, left.real, right.real), node.op(name, left.imag, right.imag))


@converter("aten.mul.Tensor", "aten.mul.Scalar", complex_numbers=True)
def multiply(node: Node, a: Value, b: Value) -> Complex:
    if not isinstance(a, (Complex, complex)):
        a, b = b, a
    if not isinstance(b, (Complex, complex)):
        factor = _real(node, b)
        return as_complex(node, a).map(lambda part: node.op("multiply", part, factor))
    return _product(node, "multiply", as_complex(node, a), as_complex(node, b))


@converter("aten.mm.default", "aten.bmm.default", "aten.matmul.default", complex_numbers=True)
def matmul(node: Node, a: Value, b: Value) -> Complex:
    return _product(node, "matmul", as_complex(node, a), as_complex(node, b))


def _product(node: Node, name: str, a: Complex, b: Complex) -> Complex:
    return Complex(
        node.op("subtract", node.op(name, a.real, b.real), node.op(name, a.imag, b.imag)),
        node.op("add", node.op(name, a.real, b.imag), node.op(name, a.imag, b.real)),
    )


@converter("aten.div.Tensor", "aten.div.Scalar", complex_numbers=True)
def divide(node: Node, a: Value, b: Value) -> Complex:
    if not isinstance(b, (Complex, complex)):
        number = _real(node, b)
        return as_complex(node, a).map(lambda part: node.op("divide", part, number))
    divisor = as_complex(node, b)
    size = node.op("add", node.op("square", divisor.real), node.op("square", divisor.imag))
    whole = _product(node, "multiply", as_complex(node, a), conjugate(node, divisor))
    return whole.map(lambda part: node.op("divide", part, size))


def _real(node: Node, value: Operand) -> Expr:
    return node.cast(node.expr(value, node.result.dtype), node.result.dtype)


# --- Fourier transforms -----------------------------------------------------------------------------------------------
Matrix: TypeAlias = "tuple[np.ndarray, np.ndarray]"


@converter("aten._fft_r2c.default", complex_numbers=True)
def fft_of_real(node: Node, x: Expr, axes: Sequence[int], normalization: int, onesided: bool) -> Complex:
    *rest, last = (node.axis(axis, node.rank(x)) for axis in axes)
    size = node.fixed(node.shape(x)[last], "the size of a transformed axis")
    matrix = _matrix(size, size // 2 + 1 if onesided else size, -1)
    result = Complex(*(node.times_matrix(x, last, part) for part in matrix))
    return _scaled(node, _transformed(node, result, rest, -1), _count(node, x, axes), normalization)


@converter("aten._fft_c2c.default", complex_numbers=True)
def fft(node: Node, x: Complex, axes: Sequence[int], normalization: int, forward: bool) -> Complex:
    around = [node.axis(axis, node.rank(x.real)) for axis in axes]
    result = _transformed(node, x, around, -1 if forward else 1)
    return _scaled(node, result, _count(node, x.real, axes), normalization)


@converter("aten._fft_c2r.default", complex_numbers=True)
def fft_to_real(node: Node, x: Complex, axes: Sequence[int], normalization: int, size: Dim) -> Expr:
    """Weigh the last axis, which has half of the frequencies: those that are in both halves count twice."""
    *rest, last = (node.axis(axis, node.rank(x.real)) for axis in axes)
    width = node.fixed(size, "the size of a transformed axis")
    count = width // 2 + 1
    x = _transformed(node, x, rest, 1).map(lambda part: node.slice(part, last, 0, count))
    frequencies = np.arange(count)[:, None]
    weights = np.where((frequencies == 0) | (2 * frequencies == width), 1.0, 2.0)
    cosines, sines = (part.T * weights for part in _matrix(width, count, 1))
    result = node.op("subtract", node.times_matrix(x.real, last, cosines), node.times_matrix(x.imag, last, sines))
    return _scaled(node, Complex(result, result), _count(node, result, axes), normalization).real


def _matrix(size: int, kept: int, sign: int) -> Matrix:
    """(size, kept): cosines and sines of a Fourier transform, of whole steps below `size`, which are exact."""
    angles = 2 * np.pi / size * (np.arange(size)[:, None] * np.arange(kept) % size)
    return np.cos(angles), sign * np.sin(angles)


def _transformed(node: Node, x: Complex, axes: Sequence[int], sign: int) -> Complex:
    for axis in axes:
        size = node.fixed(node.shape(x.real)[axis], "the size of a transformed axis")
        cosines, sines = _matrix(size, size, sign)
        x = Complex(
            node.op("subtract", node.times_matrix(x.real, axis, cosines), node.times_matrix(x.imag, axis, sines)),
            node.op("add", node.times_matrix(x.real, axis, sines), node.times_matrix(x.imag, axis, cosines)),
        )
    return x


def _count(node: Node, x: Expr, axes: Sequence[int]) -> int:
    sizes = [node.shape(x)[node.axis(axis, node.rank(x))] for axis in axes]
    return math.prod(node.fixed_all(sizes, "the size of a transformed axis"))


def _scaled(node: Node, x: Complex, count: int, normalization: int) -> Complex:
    """PyTorch's codes: 0 does not scale, 1 divides by the root of the count, 2 by the count."""
    if normalization == 0:
        return x
    factor = 1 / math.sqrt(count) if normalization == 1 else 1 / count
    return x.map(lambda part: node.op("multiply", part, factor))
