"""Compose products of integers, which models scale afterwards, into products of what dequantize makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelyard.dims import Dim
from kernelyard.dtypes import to_numpy
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var
from kernelyard.patterns.dequantized import CONVOLUTIONS, PRODUCTS
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import defining_call, make

_EXACT = ("int32", "float64")  # what sums of products of 8-bit integers are exact in
_BYTES = ("int8", "uint8")


class ComposeQuantizedProducts(FunctionPass):
    """`astype(matmul(x - zx, w - zw)) * (sx * sw)` becomes `matmul(dequantize(x, sx, zx), dequantize(w, sw, zw))`.

    Dynamic quantization is written so (MatMulInteger, ConvInteger). Stored numbers have 8 bits; the products are of
    int32 or float64, which hold their sums exactly. sw may be a vector along the channels of a constant w, and so may
    zw. A bias of integers, `astype(conv(...) + b) * s`, is added as `astype(b) * s`. The result is the same number,
    rounded to float32 at other places.
    """

    name = "compose_quantized_products"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        is_there = any(
            binding.value.op_name in PRODUCTS and binding.value.tensor_type.dtype in _EXACT
            for binding in function.bindings
            if isinstance(binding.value, Call)
        )
        return _Composer().mutate(function) if is_there else function


class _Stored(NamedTuple):
    """Integers and their zero point: a number."""

    codes: Expr
    zero: Expr


class _Total(NamedTuple):
    """A product of integers, and a bias of integers that is added to it."""

    product: Call
    bias: Expr | None


class _Composer(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "multiply" or value.tensor_type.dtype != "float32":
            return value
        for factor, scale in (value.args, value.args[::-1]):
            total = self._total(factor)
            composed = None if total is None else self._compose(total.product, scale)
            if total is not None and composed is not None and composed.type == value.type:
                return composed if total.bias is None else self._with_bias(composed, total.bias, scale)
        return value

    def _total(self, factor: Expr) -> _Total | None:
        """Return the integers that a factor converts to float32."""
        inner = self._skip_casts(factor)
        if inner is None:
            return None
        product, bias = self._product(inner), None
        sums = defining_call(self, inner, "add")
        if sums is not None and sums.tensor_type.dtype in _EXACT:
            for part, added in (sums.args, sums.args[::-1]):
                product, bias = (self._product(part), added) if product is None else (product, bias)
        if product is None or (bias is not None and not _is_along_channels(product, bias.tensor_type.shape)):
            return None
        return _Total(product, bias)

    def _product(self, integers: Expr) -> Call | None:
        """Return the product that integers are, perhaps converted."""
        product = defining_call(self, self._skip_casts(integers) or integers, *PRODUCTS)
        return product if product is not None and product.tensor_type.dtype in _EXACT else None

    def _skip_casts(self, result: Expr) -> Expr | None:
        """Return what casts convert; None for the result of another operator."""
        source: Expr | None = None
        while (converted := defining_call(self, result, "astype")) is not None:
            source = result = converted.args[0]
        return source

    def _with_bias(self, product: Call, bias: Expr, scale: Expr) -> Call:
        real = self.emit(make("multiply", self.emit(make("astype", bias, dtype="float32")), scale))
        return make("add", self.emit(product), real)

    def _compose(self, product: Call, scale: Expr) -> Call | None:
        axis = 0 if product.op_name in CONVOLUTIONS else product.args[1].tensor_type.rank - 1
        left, right = (
            self._find_stored_integers(product.args[0], None),
            self._find_stored_integers(product.args[1], axis),
        )
        scales = self._scales(product, scale)
        if left is None or right is None or scales is None:
            return None
        operands: list[Expr] = []
        for stored, each in zip((left, right), scales, strict=True):
            has_several = each.tensor_type.rank or stored.zero.tensor_type.rank
            decoded = make("dequantize", stored.codes, each, stored.zero, axis=axis if has_several else None)
            operands.append(self.emit(decoded))
        return Call(product.op, operands, product.attrs)

    # --- scales -------------------------------------------------------------------------------------------------------
    def _scales(self, product: Call, scale: Expr) -> tuple[Expr, Expr] | None:
        """Split a factor into the scales of both sides: that of the second is constant, and may be a vector."""
        one = Constant(np.float32(1))
        parts = defining_call(self, scale, "multiply")
        ways = [(one, scale), (scale, one), *([] if parts is None else [parts.args, parts.args[::-1]])]
        for data, weight in ways[::-1]:
            vector = _read_channel_factor(product, weight) if isinstance(weight, Constant) else None
            number = None if vector is None else self._number(data)
            if vector is not None and number is not None:
                return number, vector
        return None

    def _number(self, scale: Expr) -> Expr | None:
        if scale.tensor_type.numel != 1:
            return None
        return scale if not scale.tensor_type.rank else self.emit(make("reshape", scale, shape=()))

    # --- stored integers ----------------------------------------------------------------------------------------------
    def _find_stored_integers(self, operand: Expr, axis: int | None) -> _Stored | None:
        """Return the stored integers behind an operand, less their zero point; constants may have one for each index of
        an axis."""
        value = self.value_of(operand)
        if isinstance(value, Constant):
            return _store_as_bytes(value.data, axis)
        if not isinstance(value, Call):
            return None
        if value.op_name == "astype":
            codes = value.args[0]
            return _Stored(codes, _number_of(0, codes)) if codes.tensor_type.dtype in _BYTES else None
        shift = self._shift(value)
        converted = None if shift is None else defining_call(self, value.args[0], "astype")
        if shift is None or converted is None or converted.args[0].tensor_type.dtype not in _BYTES:
            return None
        codes = converted.args[0]
        zero = self._zero(shift, codes, axis)
        return None if zero is None else _Stored(codes, zero)

    def _shift(self, value: Call) -> Expr | None:
        """Return what a call subtracts from its first operand; canonical code adds the negative of a constant."""
        if value.op_name == "subtract":
            return value.args[1]
        added = self.value_of(value.args[1]) if value.op_name == "add" else None
        return Constant(np.negative(added.data)) if isinstance(added, Constant) else None

    def _zero(self, subtracted: Expr, codes: Expr, axis: int | None) -> Expr | None:
        """Return a zero point in the dtype of the stored integers; constants may be one for each index of an axis."""
        value = self.value_of(subtracted)
        while isinstance(value, Call) and value.op_name in ("astype", "reshape"):
            subtracted = value.args[0]
            value = self.value_of(subtracted)
        if isinstance(value, Constant):
            return _zero_points(value.data, codes, axis)
        return self._number(subtracted) if subtracted.tensor_type.dtype == codes.tensor_type.dtype else None


def _read_channel_factor(product: Call, scale: Constant) -> Constant | None:
    """Return a factor of the product as a number, or as a vector along its channels."""
    if scale.data.size == 1:
        return Constant(scale.data.reshape(()))
    is_vector = _is_along_channels(product, scale.data.shape) and product.args[1].tensor_type.rank >= 2
    return Constant(scale.data.reshape(-1)) if is_vector else None


def _is_along_channels(product: Call, shape: Sequence[Dim]) -> bool:
    """Return True for the shape of a number, or of a vector along the channels of a product."""
    rank = product.tensor_type.rank
    axis = 1 if product.op_name in CONVOLUTIONS else rank - 1
    aligned = (1,) * (rank - len(shape)) + tuple(shape)
    return all(size == 1 for place, size in enumerate(aligned) if place != axis)


def _zero_points(zeros: np.ndarray, codes: Expr, axis: int | None) -> Constant | None:
    """Return constants as the zero point of stored integers: one number, or a vector along an axis."""
    dtype, shape = to_numpy(codes.tensor_type.dtype), codes.tensor_type.shape
    first, limits = zeros.reshape(-1)[:1], np.iinfo(dtype)
    if not first.size or not bool(((limits.min <= zeros) & (zeros <= limits.max) & (np.rint(zeros) == zeros)).all()):
        return None
    if bool((zeros == first).all()):
        return Constant(first.astype(dtype).reshape(()))
    aligned = (1,) * (len(shape) - zeros.ndim) + zeros.shape
    is_vector = axis is not None and aligned == tuple(size if n == axis else 1 for n, size in enumerate(shape))
    return Constant(zeros.astype(dtype).reshape(-1)) if is_vector else None


def _number_of(value: int, codes: Expr) -> Constant:
    return Constant(np.asarray(value, to_numpy(codes.tensor_type.dtype)))


def _store_as_bytes(integers: np.ndarray, axis: int | None) -> _Stored | None:
    """Return constants less their zero point as bytes: int8 if they fit, else uint8 with a zero point, or with one for
    each index of an axis."""
    if not bool((np.rint(integers) == integers).all()) or not bool(np.isfinite(integers).all()):
        return None
    if integers.min(initial=0) >= -128 and integers.max(initial=0) <= 127:
        return _Stored(Constant(integers.astype(np.int8)), Constant(np.int8(0)))
    everywhere = tuple(range(integers.ndim))
    for kept in (None, axis):
        axes = tuple(each for each in everywhere if each != kept)
        low, high = (of(integers, axis=axes, keepdims=True, initial=0) for of in (np.min, np.max))
        if bool((high - low <= 255).all()):
            zero = (-low).astype(np.uint8).reshape(() if kept is None else -1)
            return _Stored(Constant((integers - low).astype(np.uint8)), Constant(zero))
    return None
