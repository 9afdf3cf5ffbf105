"""Compose products of integers, which models scale afterwards, into products of what dequantize makes of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var
from kernelyard.patterns.decoded import CONVOLUTIONS, PRODUCTS
from kernelyard.transform.canonical_rule import defining_call, make
from kernelyard.transform.pass_base import FunctionPass, PassContext

_EXACT = ("int32", "float64")  # what sums of products of 8-bit integers are exact in
_BYTES = ("int8", "uint8")


class ComposeQuantizedProducts(FunctionPass):
    """`astype(matmul(x - zx, w - zw)) * (sx * sw)` becomes `matmul(dequantize(x, sx, zx), dequantize(w, sw, zw))`.

    Dynamic quantization is written so (MatMulInteger, ConvInteger). Stored numbers have 8 bits; the products are of
    int32 or float64, which hold their sums exactly. sw may be a vector along the channels of a constant w. The result
    is the same number, rounded to float32 at other places.
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


class _Composer(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "multiply" or value.tensor_type.dtype != "float32":
            return value
        for factor, scale in (value.args, value.args[::-1]):
            product = self._product(factor)
            composed = None if product is None else self._composed(product, scale)
            if composed is not None and composed.type == value.type:
                return composed
        return value

    def _product(self, factor: Expr) -> Call | None:
        """Return the product of integers that a factor converts to float32."""
        converted = defining_call(self, factor, "astype")
        while converted is not None:
            product = defining_call(self, converted.args[0], *PRODUCTS)
            if product is not None:
                return product if product.tensor_type.dtype in _EXACT else None
            converted = defining_call(self, converted.args[0], "astype")
        return None

    def _composed(self, product: Call, scale: Expr) -> Call | None:
        left, right = (self._stored(operand) for operand in product.args)
        scales = self._scales(product, scale)
        if left is None or right is None or scales is None:
            return None
        axis = 0 if product.op_name in CONVOLUTIONS else product.args[1].tensor_type.rank - 1
        operands = [
            self.emit(make("dequantize", stored.codes, each, stored.zero, axis=axis if each.tensor_type.rank else None))
            for stored, each in zip((left, right), scales, strict=True)
        ]
        return Call(product.op, operands, product.attrs)

    # --- scales -------------------------------------------------------------------------------------------------------
    def _scales(self, product: Call, scale: Expr) -> tuple[Expr, Expr] | None:
        """Split a factor into the scales of both sides: that of the second is constant, and may be a vector."""
        one = Constant(np.float32(1))
        parts = defining_call(self, scale, "multiply")
        ways = [(one, scale), (scale, one), *([] if parts is None else [parts.args, parts.args[::-1]])]
        for data, weight in ways[::-1]:
            vector = _along_channels(product, weight) if isinstance(weight, Constant) else None
            number = None if vector is None else self._number(data)
            if vector is not None and number is not None:
                return number, vector
        return None

    def _number(self, scale: Expr) -> Expr | None:
        if scale.tensor_type.numel != 1:
            return None
        return scale if not scale.tensor_type.rank else self.emit(make("reshape", scale, shape=()))

    # --- stored integers ----------------------------------------------------------------------------------------------
    def _stored(self, operand: Expr) -> _Stored | None:
        """Return the stored integers behind an operand, less their zero point."""
        value = self.value_of(operand)
        if isinstance(value, Constant):
            return _in_bytes(value.data)
        if not isinstance(value, Call):
            return None
        if value.op_name == "astype":
            codes = value.args[0]
            return _Stored(codes, _number_of(0, codes)) if codes.tensor_type.dtype in _BYTES else None
        converted = defining_call(self, value.args[0], "astype") if value.op_name == "subtract" else None
        if converted is None or converted.args[0].tensor_type.dtype not in _BYTES:
            return None
        codes = converted.args[0]
        zero = self._zero(value.args[1], codes)
        return None if zero is None else _Stored(codes, zero)

    def _zero(self, subtracted: Expr, codes: Expr) -> Expr | None:
        """Return a zero point in the dtype of the stored integers; constants may be as many equal numbers."""
        value = self.value_of(subtracted)
        while isinstance(value, Call) and value.op_name in ("astype", "reshape"):
            subtracted = value.args[0]
            value = self.value_of(subtracted)
        if isinstance(value, Constant):
            first = value.data.reshape(-1)[:1]
            limits = np.iinfo(to_numpy(codes.tensor_type.dtype))
            is_number = first.size and bool((value.data == first).all()) and limits.min <= first[0] <= limits.max
            return _number_of(int(first[0]), codes) if is_number and first[0] == int(first[0]) else None
        return self._number(subtracted) if subtracted.tensor_type.dtype == codes.tensor_type.dtype else None


def _along_channels(product: Call, scale: Constant) -> Constant | None:
    """Return a factor of the product as a number, or as a vector along its channels."""
    if scale.data.size == 1:
        return Constant(scale.data.reshape(()))
    rank = product.tensor_type.rank
    axis = 1 if product.op_name in CONVOLUTIONS else rank - 1
    shape = (1,) * (rank - scale.data.ndim) + scale.data.shape
    is_vector = all(size == 1 for place, size in enumerate(shape) if place != axis)
    return Constant(scale.data.reshape(-1)) if is_vector and product.args[1].tensor_type.rank >= 2 else None


def _number_of(value: int, codes: Expr) -> Constant:
    return Constant(np.asarray(value, to_numpy(codes.tensor_type.dtype)))


def _in_bytes(integers: np.ndarray) -> _Stored | None:
    """Return constants less their zero point as bytes: int8 if they fit, else uint8 with a zero point."""
    if not bool((np.rint(integers) == integers).all()) or not bool(np.isfinite(integers).all()):
        return None
    low, high = int(integers.min(initial=0)), int(integers.max(initial=0))
    if low >= -128 and high <= 127:
        return _Stored(Constant(integers.astype(np.int8)), Constant(np.int8(0)))
    if high - low > 255:
        return None
    return _Stored(Constant((integers - low).astype(np.uint8)), Constant(np.uint8(-low)))
