"""Products of quantized values: the integers are multiplied, and the sum is scaled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kernelyard import dims
from kernelyard.dims import Shape
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, TensorType, TupleGetItem, Var
from kernelyard.patterns.dequantized import CONVOLUTIONS, is_dequantized
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.byte_products import PER_WORD, SIGN, byte_of, to_signed_byte, to_unsigned_byte, with_sign_of
from kernelyard.tir.expr import Axis, binary, cast, index, select, unary
from kernelyard.tir.expr import Expr as ScalarExpr
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.simplify import simplify
from kernelyard.tir.verify import verify
from kernelyard.transform.lowering.legalize_ops import PrimFuncTable, call_tir
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext
from kernelyard.transform.quantization.outliers import Outliers, outlier_products, split_outliers
from kernelyard.transform.quantization.stored_weights import read_stored_weights

LEAST_DEPTH = 16  # shorter sums are not worth their corrections
LEAST_COLUMNS = 4  # fewer leave vectors along them empty
MOST_DEPTH = (1 << 31) // (255 * 255)  # products of longer sums may be more than an int32 holds
_BYTES = ("int8", "uint8")
_SIGNS = -0x7F7F7F80  # 0x80808080: turned over in a word, the signs of its bytes make int8 of uint8
# Sums in 16 bits: neighbouring weights of one sign are worth no more than this beside uint8.
_MOST_OF_A_PAIR = ((1 << 15) - 1) // 255


class MultiplyIntegers(Pass):
    """Multiply integers in `matmul(dequantize(x), w)` and `conv(dequantize(x), w)`; w dequantizes constants.

    `sum((x - zx) * sx * w * sw)` becomes `(sum(x * w) - zx * sum(w)) * (sx * sw)`: the sums are exact in int32, and the
    second one is known at compile time. x has one scale and one zero point, w a scale for each channel. int8 becomes
    uint8 by an offset, so that one factor is unsigned and the other signed, as instructions want them; four weights
    along the sum are one int32 (`kernelyard.tir.byte_products`). For targets that sum such products by an instruction
    (`CodeGenerator.multiplies_integers`); libraries come first.
    """

    name = "multiply_integers"

    def __init__(self, sums_in_16_bits: bool = False) -> None:
        self.sums_in_16_bits = sums_in_16_bits

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        functions = PrimFuncTable(module)
        changed: dict[str, Function] = {}
        for name, function in module.entry_functions().items():
            new = _Multiplier(functions, self.sums_in_16_bits).mutate(function)
            if new is not function:
                changed[name] = new
        return module.with_functions({**changed, **functions.added}) if changed else module


class _Data(NamedTuple):
    """The left operand: integers, one scale and one zero point."""

    codes: Expr
    scale: Expr
    zero: Expr

    @property
    def type(self) -> TensorType:
        return self.codes.tensor_type


class _Weights(NamedTuple):
    """The right operand, int8, and for each channel a scale and a zero point (None: all are 0)."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None


class _Form(NamedTuple):
    """How products are summed. number: the dtype of a product; int16 where two neighbours add up to 16 bits, too.
    is_signed: the left operand is signed, too; weights take its sign, and are multiplied by its magnitude."""

    number: str = "int32"
    is_signed: bool = False

    def byte(self, x: ScalarExpr) -> ScalarExpr:
        """Return a byte of the left operand, or its zero point, as a number."""
        return to_signed_byte(x) if self.is_signed else to_unsigned_byte(x)

    def product(self, byte: ScalarExpr, magnitude: ScalarExpr, weight: ScalarExpr) -> ScalarExpr:
        """Return the product of a byte of the left operand and a weight. magnitude: of the former, where it is signed,
        else itself."""
        signed = with_sign_of(byte, weight) if self.is_signed else weight
        return cast(to_unsigned_byte(magnitude, self.number) * signed, "int32")


def _narrowest_form(codes: np.ndarray) -> _Form:
    """Return the form of sums along the first axis, by what pairs of weights allow (a word has two)."""
    pairs = codes[: len(codes) - len(codes) % PER_WORD].astype(np.int16).reshape(-1, 2, *codes.shape[1:])
    of_one_sign = (np.maximum(sign * pairs, 0).sum(1).max(initial=0) for sign in (1, -1))
    if max(of_one_sign) <= _MOST_OF_A_PAIR:
        return _Form("int16")
    return _Form("int16", is_signed=True) if codes.min(initial=0) > -SIGN else _Form()


class _Multiplier(FunctionMutator):
    def __init__(self, functions: PrimFuncTable, sums_in_16_bits: bool) -> None:
        super().__init__()
        self.functions = functions
        self.sums_in_16_bits = sums_in_16_bits
        self.matrices: dict[Expr, _Weights | None] = {}
        self.signed: dict[Expr, tuple[Expr, Expr]] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in ("matmul", *_FORWARD):
            return value
        data = self._data(value.args[0]) if value.tensor_type.dtype == "float32" else None
        if data is None:
            return value
        return self._matmul(value, data) if value.op_name == "matmul" else self._convolution(value, data)

    def _data(self, operand: Expr) -> _Data | None:
        call = self.value_of(operand)
        if not isinstance(call, Call) or call.op_name != "dequantize" or isinstance(call.args[0], Constant):
            return None
        found = _Data(*call.args)
        is_single = not found.scale.tensor_type.rank and not found.zero.tensor_type.rank
        return found if is_single and found.type.dtype in _BYTES else None

    # --- matmul -------------------------------------------------------------------------------------------------------
    def _matmul(self, call: Call, data: _Data) -> Expr:
        right = call.args[1]
        if right not in self.matrices:
            self.matrices[right] = self._matrix(right)
        weights = self.matrices[right]
        if weights is None:
            return call
        depth, columns = weights.codes.shape
        whole = depth - depth % PER_WORD
        form, codes, outliers = self._find_form(weights.codes[:whole])
        inputs: dict[str, Expr] = dict(zip(("x", "sx", "zx"), data, strict=True))
        if form.is_signed:
            inputs["x"], inputs["ax"] = self._take_signs(data.codes)
        inputs["words"] = _pack_words(codes.reshape(-1, PER_WORD, columns), 1)
        inputs["sums"], inputs["sw"] = _parameters(weights, 0)
        if whole < depth:
            inputs["rest"] = Constant(weights.codes[whole:])
        if outliers is not None:
            function = outlier_products(data.type, outliers, call.tensor_type.shape)
            type_ = TensorType(call.tensor_type.shape, "int32")
            inputs["outliers"] = self.emit(self._call(function, "outliers", [data.codes, *outliers], type_))
        if weights.zeros is not None:
            sums = _row_sums(inputs["x"].tensor_type, form)
            type_ = TensorType(data.type.shape[:-1], "int32")
            inputs["rows"] = self.emit(self._call(sums, "row_sums", [inputs["x"]], type_))
            inputs["zw"] = Constant(weights.zeros)
        function = _matmul(inputs, depth, call.tensor_type, form)
        return self._call(function, "integer_matmul", list(inputs.values()), call.tensor_type)

    def _find_form(self, codes: np.ndarray) -> tuple[_Form, np.ndarray, Outliers | None]:
        """Return how products with weights (K, N) are summed, and the weights, perhaps without outliers."""
        form = _narrowest_form(codes) if self.sums_in_16_bits else _Form()
        is_narrowest = not self.sums_in_16_bits or form == _Form("int16")
        found = None if is_narrowest else split_outliers(codes, _MOST_OF_A_PAIR)
        return (form, codes, None) if found is None else (_Form("int16"), *found)

    def _take_signs(self, codes: Expr) -> tuple[Expr, Expr]:
        """Return the codes of a left operand as int8, `SIGN` less than those of uint8, and their magnitudes."""
        if codes not in self.signed:
            function = _take_signs(codes.tensor_type)
            both = self.emit(call_tir(self.functions.name_of(function, "take_signs"), [codes], function.result_type))
            self.signed[codes] = self.emit(TupleGetItem(both, 0)), self.emit(TupleGetItem(both, 1))
        return self.signed[codes]

    def _matrix(self, right: Expr) -> _Weights | None:
        shape = right.tensor_type.shape
        if len(shape) != 2 or not is_dequantized(right, self.value_of):
            return None
        if not isinstance(shape[1], int) or shape[1] < LEAST_COLUMNS:
            return None
        stored = read_stored_weights(right, self.value_of)
        if stored is None or stored.minima is not None:
            return None
        if stored.group != len(stored.codes) or not LEAST_DEPTH <= stored.group <= MOST_DEPTH:
            return None
        zeros = None if stored.zeros is None else stored.zeros[0].astype(np.int32)
        return _Weights(stored.codes, stored.scales[0].astype(np.float32), zeros)

    # --- convolution --------------------------------------------------------------------------------------------------
    def _convolution(self, call: Call, data: _Data) -> Expr:
        weights = self._filters(call.args[1]) if call.attrs["groups"] == 1 else None
        if weights is None:
            return call
        filters, channels, *kernel = weights.codes.shape
        missing = -channels % PER_WORD
        codes = np.pad(weights.codes, ((0, 0), (0, missing), *((0, 0) for _ in kernel)))
        words = _pack_words(codes.reshape(filters, -1, PER_WORD, *kernel), 2)
        type_ = _type_of_words(data.type, call.attrs["padding"])
        form = _narrowest_form(np.moveaxis(codes, 1, 0)) if self.sums_in_16_bits else _Form()
        packed = self._call(_pack(data, call.attrs["padding"], form), "pack_bytes", [data.codes, data.zero], type_)
        args = [self.emit(packed), *data[1:], words, *_parameters(weights, tuple(range(1, codes.ndim)))]
        function = _convolution(args, call, form)
        return self._call(function, "integer_conv", args, call.tensor_type)

    def _filters(self, operand: Expr) -> _Weights | None:
        """Return filters (O, C, ...) that differ from their zero points by no more than int8 holds."""
        call = self.value_of(operand)
        if not isinstance(call, Call) or call.op_name != "dequantize":
            return None
        stored = [arg.data for arg in call.args if isinstance(arg, Constant)]
        is_per_filter = call.attrs["axis"] == 0 or call.args[1].tensor_type.rank == 0
        if len(stored) != len(call.args) or stored[0].dtype.name not in _BYTES or not is_per_filter:
            return None
        filters, depth = len(stored[0]), int(np.prod(stored[0].shape[1:]))
        scales, zeros = (np.broadcast_to(each.reshape(-1), (filters,)) for each in stored[1:])
        codes = stored[0].astype(np.int32) - zeros.astype(np.int32).reshape(-1, *(1,) * (stored[0].ndim - 1))
        if not LEAST_DEPTH <= depth <= MOST_DEPTH or codes.min() < -SIGN or codes.max() >= SIGN:
            return None
        return _Weights(codes.astype(np.int8), scales.astype(np.float32))

    def _call(self, function: PrimFunc, name: str, args: Sequence[Expr], type_: TensorType) -> Call:
        return call_tir(self.functions.name_of(function, name), args, type_)


_FORWARD = tuple(sorted(name for name in CONVOLUTIONS if not name.endswith("_transpose")))


def _pack_words(codes: np.ndarray, axis: int) -> Constant:
    """Return int8 with an axis of `PER_WORD` values, which become the bytes of an int32, the first the lowest."""
    bytes_ = np.moveaxis(codes, axis, -1)
    return Constant(np.ascontiguousarray(bytes_).view("<i4")[..., 0])


def _parameters(weights: _Weights, summed: int | tuple[int, ...]) -> list[Constant]:
    """Return for each channel the sum of its weights, less their zero points, and the scale."""
    sums = weights.codes.sum(axis=summed, dtype=np.int32)
    if weights.zeros is not None:
        sums = sums - weights.zeros * np.int32(len(weights.codes))
    return [Constant(sums.astype(np.int32)), Constant(weights.scales)]


def _inputs(b: PrimFuncBuilder, names: str, args: Sequence[Expr]) -> list[Buffer]:
    return [b.input(name, arg.tensor_type) for name, arg in zip(names.split(), args, strict=True)]


def _finish(b: PrimFuncBuilder, results: Sequence[Buffer], *ops: str) -> PrimFunc:
    function = simplify(b.finish(tuple(results), {"ops": ops}))
    verify(function, ops[-1])
    return function


def _take_signs(data: TensorType) -> PrimFunc:
    """Return the function that makes int8 of bytes, and uint8 of their magnitudes."""
    b = PrimFuncBuilder()
    x = b.input("x", data)
    signed = b.compute(data.shape, lambda *at: cast(to_signed_byte(x[at]), "int8"), name="signed")
    magnitude = b.compute(data.shape, lambda *at: cast(unary("abs", to_signed_byte(x[at])), "uint8"), name="magnitude")
    return _finish(b, (signed, magnitude), "dequantize")


def _row_sums(data: TensorType, form: _Form) -> PrimFunc:
    """Return the function that sums up the rows of the left operand."""
    b = PrimFuncBuilder()
    x = b.input("x", data)

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> ScalarExpr:
        return form.byte(x[(*at, point[0])])

    return _finish(b, (b.reduce("sum", data.shape[:-1], data.shape[-1:], body, name="row_sums"),), "dequantize")


def _matmul(inputs: Mapping[str, Expr], depth: int, result: TensorType, form: _Form) -> PrimFunc:
    """Return the product (..., K) x (K, N): whole words, what is left of K, and the corrections."""
    b = PrimFuncBuilder()
    of = {name: b.input(name, expr.tensor_type) for name, expr in inputs.items()}
    x, words, left = of["x"], of["words"], depth % PER_WORD
    magnitudes = of.get("ax", x)

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> ScalarExpr:
        place = (*at[:-1], point[0] * PER_WORD + point[1])
        weight = byte_of(words[point[0], at[-1]], point[1], "int8", form.number)
        return form.product(x[place], magnitudes[place], weight)

    total = b.reduce("sum", result.shape, (depth // PER_WORD, PER_WORD), body, name="matmul")

    def dequantize(*at: Axis) -> ScalarExpr:
        column = at[-1]
        whole = total[at] - form.byte(of["zx"][()]) * of["sums"][column]
        for row in range(left):
            byte = form.byte(x[(*at[:-1], index(depth - left + row))])
            whole = whole + byte * cast(of["rest"][index(row), column], "int32")
        if "outliers" in of:
            whole = whole + of["outliers"][at]
        if "zw" in of:
            whole = whole - of["rows"][at[:-1]] * of["zw"][column]
        return cast(whole, "float32") * (of["sx"][()] * of["sw"][column])

    return _finish(b, (b.compute(result.shape, dequantize),), "dequantize", "matmul")


def _type_of_words(data: TensorType, padding: Sequence[int]) -> TensorType:
    rank = data.rank - 2
    whole = (size + padding[n] + padding[rank + n] for n, size in enumerate(data.shape[2:]))
    return TensorType((data.shape[0], dims.ceildiv(data.shape[1], PER_WORD), *whole), "int32")


def _pack(data: _Data, padding: Sequence[int], form: _Form) -> PrimFunc:
    """Return the function that puts four channels into an int32, with zero points around the image."""
    b = PrimFuncBuilder()
    x, zero = _inputs(b, "x zx", [data.codes, data.zero])
    begins, shape = padding[: x.rank - 2], _type_of_words(data.type, padding).shape

    def body(*at: Axis) -> ScalarExpr:
        places = [place - begin if begin else place for place, begin in zip(at[2:], begins, strict=True)]
        pads = zip(places, at[2:], x.shape[2:], shape[2:], strict=True)
        inside = [cond for place, _, size, whole in pads if whole != size for cond in (place >= 0, place < size)]
        word: ScalarExpr | None = None
        for number in range(PER_WORD):
            channel = at[1] * PER_WORD + number
            is_there = [*inside, *([channel < x.shape[1]] if _is_cut(x.shape, number) else [])]
            byte = to_unsigned_byte(x[(at[0], channel, *places)])
            if is_there:
                byte = select(_all(is_there), byte, to_unsigned_byte(zero[()]))
            shifted = binary("shl", byte, 8 * number) if number else byte
            word = shifted if word is None else word | shifted
        assert word is not None
        return binary("xor", word, _SIGNS) if form.is_signed else word

    return _finish(b, (b.compute(shape, body),), "dequantize")


def _is_cut(shape: Shape, number: int) -> bool:
    """Return True where the last word of channels may lack the byte of a number."""
    channels = shape[1]
    return not isinstance(channels, int) or 0 < channels % PER_WORD <= number


def _all(conditions: Sequence[ScalarExpr]) -> ScalarExpr:
    whole = conditions[0]
    for each in conditions[1:]:
        whole = whole & each
    return whole


def _convolution(args: Sequence[Expr], call: Call, form: _Form) -> PrimFunc:
    """Return the convolution of packed channels, with the corrections."""
    b = PrimFuncBuilder()
    x, scale, zero, words, sums, scales = _inputs(b, "x sx zx words sums sw", args)
    strides, dilation, shape = call.attrs["strides"], call.attrs["dilation"], call.tensor_type.shape
    (_, *reduced) = words.shape

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> ScalarExpr:
        (n, f, *out), (c, *taps, number) = at, point
        places = [o * s + t * d for o, s, t, d in zip(out, strides, taps, dilation, strict=True)]
        byte = byte_of(x[(n, c, *places)], number, "int8" if form.is_signed else "uint8", form.number)
        return cast(byte * byte_of(words[(f, c, *taps)], number, "int8", form.number), "int32")

    total = b.reduce("sum", shape, (*reduced, PER_WORD), body, name="conv")

    def dequantize(*at: Axis) -> ScalarExpr:
        whole = total[at] - form.byte(zero[()]) * sums[at[1]]
        return cast(whole, "float32") * (scale[()] * scales[at[1]])

    return _finish(b, (b.compute(shape, dequantize),), "dequantize", call.op_name)
