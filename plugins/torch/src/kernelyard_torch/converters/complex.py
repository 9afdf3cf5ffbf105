"""Operators on complex tensors, by their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr, Operand
from kernelyard_torch import registry
from kernelyard_torch.complex_numbers import Complex
from kernelyard_torch.converters import (  # noqa: F401  # used by name
    creation,
    indexing,
    reduction,
    scatter,
    shape,
    slicing,
    unary,
)
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
    *("select.int", "slice.Tensor", "narrow.default", "index.Tensor", "_unsafe_index.Tensor", "index_select.default"),
    *("chunk.default", "split.Tensor", "split_with_sizes.default", "unbind.int", "diagonal.default", "unfold.default"),
    *("as_strided.default", "gather.default", "embedding.default", "tril.default", "triu.default", "roll.default"),
    *("mean.default", "mean.dim", "sum.default", "sum.dim_IntList", "cumsum.default"),
)


def _convert_parts(convert: Callable[..., Any]) -> Converter:
    def convert_parts(node: Node, x: Complex, *rest: Any) -> Any:
        real, imag = convert(node, x.real, *rest), convert(node, x.imag, *rest)
        if isinstance(real, Expr):
            return Complex(real, imag)
        return [Complex(a, b) for a, b in zip(real, imag, strict=True)]

    return convert_parts


def _convert_joined(convert: Callable[..., Any]) -> Converter:
    def join_parts(node: Node, parts: Sequence[Value], axis: int) -> Complex:
        whole = [as_complex(node, part) for part in parts]
        joined = [part.real for part in whole], [part.imag for part in whole]
        return Complex(*(convert(node, each, axis) for each in joined))

    return join_parts


for _names, _make in ((LINEAR, _convert_parts), (("cat.default", "stack.default"), _convert_joined)):
    for _name in _names:
        _found = registry.find(f"aten.{_name}")
        if _found is None:  # it comes apart into others
            continue
        register(f"aten.{_name}", _make(_found), complex_numbers=True)


def as_complex(node: Node, value: Value) -> Complex:
    """Return a complex tensor of the result's dtype; the imaginary part of a real one is zero."""
    return to_complex_dtype(node, value, node.result.dtype)


def to_complex_dtype(node: Node, value: Value, dtype: str) -> Complex:
    """Return a complex tensor whose parts have a dtype."""
    if isinstance(value, Complex):
        return value.map(lambda part: node.cast(part, dtype))
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


def _convert_write(write: Callable[..., Expr]) -> Converter:
    def write_parts(node: Node, x: Value, part: Value, *where: Any) -> Complex:
        whole, new = as_complex(node, x), as_complex(node, part)
        return Complex(write(node, whole.real, new.real, *where), write(node, whole.imag, new.imag, *where))

    return write_parts


register("aten.slice_scatter.default", _convert_write(slicing.slice_scatter), complex_numbers=True)
register("aten.select_scatter.default", _convert_write(slicing.select_scatter), complex_numbers=True)


@converter("aten.full.default", complex_numbers=True)
def full(node: Node, size: object, value: Value, *_: object) -> Complex:
    return _fill(node, value)


@converter("aten.full_like.default", "aten.fill.Scalar", "aten.fill.Tensor", complex_numbers=True)
def full_like(node: Node, x: object, value: Value, *_: object) -> Complex:
    return _fill(node, value)


@converter("aten.scalar_tensor.default", complex_numbers=True)
def scalar_tensor(node: Node, value: Value, *_: object) -> Complex:
    return _fill(node, value)


@converter("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default", complex_numbers=True)
def ones(node: Node, *_: object) -> Complex:
    return _fill(node, 1)


def _fill(node: Node, value: Value) -> Complex:
    return as_complex(node, value).map(lambda part: node.broadcast_to(part, node.result.shape))


@converter("aten.index_put.default", "aten._unsafe_index_put.default", complex_numbers=True)
def index_put(node: Node, x: Complex, where: Any, values: Value, accumulate: bool, *_: object) -> Complex:
    new = as_complex(node, values)
    return Complex(*(indexing.index_put(node, *pair, accumulate) for pair in _pair_parts(x, where, new)))


def _pair_parts(x: Complex, where: Any, new: Complex) -> list[tuple[Expr, Any, Expr]]:
    return [(x.real, where, new.real), (x.imag, where, new.imag)]


@converter("aten.scatter.src", "aten.scatter.value", complex_numbers=True)
def scatter_(node: Node, x: Complex, axis: int, indices: Expr, source: Value) -> Complex:
    return _scatter_parts(node, scatter.scatter, x, axis, indices, source)


@converter("aten.scatter_add.default", complex_numbers=True)
def scatter_add(node: Node, x: Complex, axis: int, indices: Expr, source: Value) -> Complex:
    return _scatter_parts(node, scatter.scatter_add, x, axis, indices, source)


def _scatter_parts(
    node: Node, write: Callable[..., Expr], x: Complex, axis: int, indices: Expr, source: Value
) -> Complex:
    new = as_complex(node, source)
    return Complex(write(node, x.real, axis, indices, new.real), write(node, x.imag, axis, indices, new.imag))


@converter("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", complex_numbers=True)
def where(node: Node, condition: Expr, a: Value, b: Value) -> Complex:
    left, right = as_complex(node, a), as_complex(node, b)
    return Complex(
        node.op("where", condition, left.real, right.real), node.op("where", condition, left.imag, right.imag)
    )


@converter("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", complex_numbers=True)
def masked_fill(node: Node, x: Complex, mask: Expr, value: Value) -> Complex:
    return where(node, mask, value, x)


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
def resolve(node: Node, x: Complex) -> Complex:
    return x


@converter("aten.add.Tensor", "aten.add.Scalar", complex_numbers=True)
def add(node: Node, a: Value, b: Value, alpha: float = 1) -> Complex:
    return _sum(node, "add", a, b, alpha)


@converter("aten.sub.Tensor", "aten.sub.Scalar", complex_numbers=True)
def subtract(node: Node, a: Value, b: Value, alpha: float = 1) -> Complex:
    return _sum(node, "subtract", a, b, alpha)


def _sum(node: Node, name: str, a: Value, b: Value, alpha: complex) -> Complex:
    left, right = as_complex(node, a), as_complex(node, b)
    right = right if alpha == 1 else multiply(node, right, alpha)
    return Complex(node.op(name, left.real, right.real), node.op(name, left.imag, right.imag))


@converter("aten.mul.Tensor", "aten.mul.Scalar", complex_numbers=True)
def multiply(node: Node, a: Value, b: Value) -> Complex:
    if not isinstance(a, (Complex, complex)):
        a, b = b, a
    if not isinstance(b, (Complex, complex)):
        factor = _real(node, b)
        return as_complex(node, a).map(lambda part: node.op("multiply", part, factor))
    return product(node, "multiply", as_complex(node, a), as_complex(node, b))


@converter("aten.mm.default", "aten.bmm.default", "aten.matmul.default", complex_numbers=True)
def matmul(node: Node, a: Value, b: Value) -> Complex:
    return product(node, "matmul", as_complex(node, a), as_complex(node, b))


@converter("aten.addmm.default", "aten.baddbmm.default", complex_numbers=True)
def matmul_and_add(node: Node, c: Value, a: Value, b: Value, beta: complex = 1, alpha: complex = 1) -> Complex:
    whole = multiply(node, matmul(node, a, b), alpha) if alpha != 1 else matmul(node, a, b)
    return _sum(node, "add", whole, c, beta)


@converter("aten.linear.default", complex_numbers=True)
def linear(node: Node, x: Value, weight: Value, bias: Value | None) -> Complex:
    transposed = as_complex(node, weight).map(lambda part: node.permute(part, (1, 0)))
    whole = product(node, "matmul", as_complex(node, x), transposed)
    return whole if bias is None else _sum(node, "add", whole, bias, 1)


def product(node: Node, name: str, a: Complex, b: Complex) -> Complex:
    """Multiply complex tensors by an operator that is linear in both: "multiply" or "matmul"."""
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
    whole = product(node, "multiply", as_complex(node, a), conjugate(node, divisor))
    return whole.map(lambda part: node.op("divide", part, size))


def _real(node: Node, value: Operand) -> Expr:
    return node.cast(node.expr(value, node.result.dtype), node.result.dtype)
