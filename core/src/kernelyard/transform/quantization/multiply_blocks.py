"""Products of quantized blocks: integers are multiplied, and the sum of each block is scaled."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from kernelyard.ir import Call, Constant, Expr, FunctionMutator, IRModule, TensorType, TupleGetItem, TupleType, Var
from kernelyard.legalize.quantization import code_of, quantize_blocks
from kernelyard.ops.quantization import LARGEST_CODES, STORED_BITS
from kernelyard.patterns.dequantized import is_dequantized
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.byte_products import PER_WORD, byte_of
from kernelyard.tir.expr import Axis, binary, cast, index
from kernelyard.tir.expr import Expr as ScalarExpr
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.simplify import simplify
from kernelyard.tir.verify import verify
from kernelyard.transform.lowering.legalize_ops import PrimFuncTable, call_tir, mutate_with_prim_funcs
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext
from kernelyard.transform.quantization.stored_weights import (
    StoredWeights,
    WeightConstants,
    identify_weights,
    narrow_floats,
    read_stored_weights,
)

COLUMNS = 64  # columns are padded to a multiple of so many, which vectors and tiles of any machine divide
_HALVES = 0x0F0F0F0F  # the lower four bits of each byte
_LARGEST = (1 << 31) - 1  # that an int32 holds


class MultiplyBlocks(Pass):
    """Multiply integers in `matmul(fake_quantize(x), w)`, where w dequantizes constants by the same blocks.

    A product of dequantized numbers is, for each block, that of the integers times both scales: exact sums in int32,
    then float32. Weights become unsigned by an offset; what it, zero points or minima add is the sum of the block of x
    times them. Four bytes along a block are an int32, as dot-product instructions take them
    (`kernelyard.tir.byte_products`); of 4-bit weights eight numbers, the first four in the lower halves. Rows of 16
    bits, in more than one block, have two digits: products of the higher ones are worth 256 times those of the lower.
    For targets that sum such products by an instruction (`CodeGenerator.multiplies_integers`, of 16 bits
    `multiplies_digits`); elsewhere, and where blocks differ, floats are multiplied, with the same result but for
    roundings.
    """

    name = "multiply_blocks"

    def __init__(self, digits: Collection[int] = STORED_BITS) -> None:
        self._digits = digits

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        packed: dict[Hashable, BlockWeights | None] = {}
        return mutate_with_prim_funcs(module, lambda table: _Multiplier(table, packed, self._digits))


@dataclass(frozen=True, eq=False)
class BlockWeights(WeightConstants):
    """Unsigned weights in words: `(number - offset) * scale`, plus the minimum.

    words: int32 (words of all blocks, columns); zeros: what is to be subtracted instead of the offset, uint8.
    """

    bits: int
    block: int
    offset: int

    @property
    def form(self) -> Hashable:
        """Return what a function that multiplies by the weights depends on: all but their numbers."""
        types = tuple((name, constant.tensor_type) for name, constant in self.inputs.items())
        return (types, self.bits, self.block, self.offset)

    @property
    def blocks(self) -> int:
        return self.scales.data.shape[0]

    def largest_sum(self, bits: int) -> float:
        """Return the largest sum of a block's products with numbers of so many bits."""
        return self.block * (2**self.bits - 1) * LARGEST_CODES[bits]

    @property
    def halves(self) -> int:
        """Return how many numbers share a byte."""
        return 8 // self.bits

    def number(self, buffers: Mapping[str, Buffer], row: ScalarExpr, column: ScalarExpr) -> ScalarExpr:
        """See `WeightConstants.number`."""
        word = buffers["w"][row // index(PER_WORD * self.halves), column]
        if self.halves > 1:
            half = row // index(PER_WORD) % index(self.halves)
            word = binary("shr", word, cast(half * 4, "int32")) & _HALVES
        number = cast(byte_of(word, row % index(PER_WORD), "uint8"), "float32")
        number = number if self.zeros is not None else number - float(self.offset)
        return self.dequantize(buffers, number, row // index(self.block), column)


class _Multiplier(FunctionMutator):
    """packed: the weights of all entry functions, by `identify_weights`; they share most of them. digits: the bits of
    the weights that rows of 16 bits are multiplied by."""

    def __init__(
        self, functions: PrimFuncTable, packed: dict[Hashable, BlockWeights | None], digits: Collection[int]
    ) -> None:
        super().__init__()
        self.functions, self.packed, self.digits = functions, packed, digits
        self.weights: dict[Expr, BlockWeights | None] = {}
        self.quantized: dict[Expr, list[Expr]] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "matmul" or value.tensor_type.dtype != "float32":
            return value
        left, right = value.args
        rounded = self.value_of(left)
        if not isinstance(rounded, Call) or rounded.op_name != "fake_quantize":
            return value
        if rounded.attrs["bits"] == 16 and not self.digits:
            return value
        if right.tensor_type.rank != 2 or not is_dequantized(right, self.value_of):
            return value
        weights = self._weights(right)
        if weights is None or min(rounded.attrs["block"], right.tensor_type.shape[0]) != weights.block:
            return value
        if not self._takes(weights, rounded.attrs["bits"]):
            return value
        blocks = self._quantize_left_side(left, rounded, weights.block)
        types = tuple(each.tensor_type for each in blocks)
        key = ("block_matmul", types, value.tensor_type, weights.form)
        make = partial(_product, types, value.tensor_type, weights)
        name = self.functions.name_once(key, "block_matmul", make)
        return call_tir(name, [*blocks, *weights.inputs.values()], value.type)

    def _takes(self, weights: BlockWeights, bits: int) -> bool:
        """Return True where rows of so many bits are multiplied by these weights as integers."""
        pays = bits == 8 or (weights.blocks > 1 and weights.bits in self.digits)
        return pays and weights.largest_sum(bits) <= _LARGEST

    def _weights(self, matrix: Expr) -> BlockWeights | None:
        if matrix not in self.weights:
            key = identify_weights(matrix, self.value_of)
            if key not in self.packed:
                stored = read_stored_weights(matrix, self.value_of)
                self.packed[key] = None if stored is None else pack_blocks_in_words(stored)
            self.weights[matrix] = self.packed[key]
        return self.weights[matrix]

    def _quantize_left_side(self, left: Expr, rounded: Call, block: int) -> list[Expr]:
        """Return codes, scales and sums of the left side, once for all products."""
        if left not in self.quantized:
            function = _quantize(rounded.args[0].tensor_type, block, rounded.attrs["bits"])
            types = function.result_type
            assert isinstance(types, TupleType)
            name = self.functions.name_of(function, "quantize_blocks")
            call = self.emit(call_tir(name, [rounded.args[0]], types))
            self.quantized[left] = [self.emit(TupleGetItem(call, n)) for n in range(len(types.fields))]
        return self.quantized[left]


def pack_blocks_in_words(stored: StoredWeights) -> BlockWeights | None:
    """Return the weights in words; None where no whole words make a block."""
    if stored.group % (PER_WORD * 8 // stored.bits):
        return None
    blocks, columns = stored.scales.shape
    offset = 2 ** (stored.bits - 1)
    missing = ((0, blocks * stored.group - len(stored.codes)), (0, -columns % COLUMNS))
    codes = (np.pad(stored.codes, missing).astype(np.int16) + offset).astype(np.uint8)
    bytes_ = codes.reshape(-1, 8 // stored.bits, PER_WORD, codes.shape[1])
    if stored.bits == 4:
        bytes_ = bytes_[:, :1] | bytes_[:, 1:] << 4
    words = np.ascontiguousarray(np.moveaxis(bytes_[:, 0], 1, -1)).view("<i4")[..., 0]
    zeros, minima = None, None
    if stored.zeros is not None:
        zeros = Constant(_wider((stored.zeros.astype(np.int16) + offset).astype(np.uint8)))
    if stored.minima is not None:
        offset = 0
        lowest = 2.0 ** (stored.bits - 1) * stored.scales.astype(np.float64)
        minima = Constant(_wider(narrow_floats(stored.minima - lowest)))
    scales = Constant(_wider(stored.scales))
    return BlockWeights(Constant(words), scales, zeros, minima, bits=stored.bits, block=stored.group, offset=offset)


def _wider(parameters: np.ndarray) -> np.ndarray:
    return np.pad(parameters, ((0, 0), (0, -parameters.shape[1] % COLUMNS)))


@lru_cache(64)  # a model has few kinds of left sides, and many of each
def _quantize(x: TensorType, block: int, bits: int) -> PrimFunc:
    """Return the function that quantizes blocks: their codes, scales, and sums (of what the codes stand for)."""
    b = PrimFuncBuilder()
    codes, scales = quantize_blocks(b, b.input("x", x), block, bits)
    sums = b.reduce("sum", scales.shape, (block,), lambda at, point: code_of(codes, at, *point), name="sums")
    worth = b.compute(scales.shape, lambda *at: cast(sums[at], "float32") * scales[at], name="worth")
    return _finish(b, (codes, scales, worth), "fake_quantize")


def _finish(b: PrimFuncBuilder, results: tuple[Buffer, ...], *ops: str) -> PrimFunc:
    function = simplify(b.finish(results, {"ops": ops}))
    verify(function, ops[-1])
    return function


def _product(blocks: Sequence[TensorType], result: TensorType, weights: BlockWeights) -> PrimFunc:
    """Return the product of blocks: codes, scales and sums by the weights."""
    b = PrimFuncBuilder()
    codes, scales, sums = (b.input(name, type_) for name, type_ in zip("xab", blocks, strict=True))
    by_name = {name: b.input(name, constant.tensor_type) for name, constant in weights.inputs.items()}
    words, block = by_name.pop("w"), weights.block
    per_block = block // (PER_WORD * weights.halves)
    digits = blocks[0].shape[-2]
    assert isinstance(digits, int)
    inner = (digits, per_block, weights.halves, PER_WORD)

    def integers(at: Sequence[Axis], block: ScalarExpr, point: Sequence[Axis]) -> ScalarExpr:
        digit, step, half, byte = point
        word = words[block * per_block + step, at[-1]]
        if weights.halves > 1:
            word = binary("shr", word, cast(half * 4, "int32")) & _HALVES
        place = (step * weights.halves + half) * PER_WORD + byte
        product = byte_of(word, byte, "uint8") * cast(codes[(*at[:-1], block, digit, place)], "int32")
        return binary("shl", product, cast(8 - digit * 8, "int32")) if digits > 1 else product

    def dequantize(at: Sequence[Axis], block: ScalarExpr, product: ScalarExpr, part: float) -> ScalarExpr:
        """Return a product, or the sum of a part of a block, in float32; part: of the block's corrections."""
        row, column = (*at[:-1], block), (block, at[-1])
        share = sums[row] * part
        scale, minimum, zero = (by_name[name][column] if name in by_name else None for name in "smz")
        assert scale is not None
        total = cast(product, "float32") * scales[row]
        if zero is not None:
            total = total - share * cast(zero, "float32")
        elif weights.offset:
            total = total + sums[row] * (-weights.offset * part)
        total = total * cast(scale, "float32")
        return total if minimum is None else total + share * cast(minimum, "float32")

    def product(at: Sequence[Axis], point: Sequence[Axis]) -> ScalarExpr:
        return dequantize(at, point[0], integers(at, point[0], point[1:]), 1 / (block * digits))

    shape = (*result.shape[:-1], weights.columns)
    if weights.blocks == 1:
        whole = b.reduce("sum", shape, inner, lambda at, point: integers(at, index(0), point), name="matmul")
        y = b.compute(result.shape, lambda *at: dequantize(at, index(0), whole[at], 1.0))
    else:
        total = b.reduce("sum", shape, (weights.blocks, *inner), product, name="matmul")
        y = total if shape == result.shape else b.compute(result.shape, lambda *at: total[at])
    return _finish(b, (y,), "dequantize", "matmul")
