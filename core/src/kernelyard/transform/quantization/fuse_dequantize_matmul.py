"""Weight-only quantized matmul: one loop-level function reads the stored integers and dequantizes them on the way."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kernelyard.dims import Shape
from kernelyard.ir import Call, Constant, Expr, FunctionMutator, IRModule, TensorType, Var
from kernelyard.patterns.dequantized import is_dequantized
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import Axis, binary, cast, index, select
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

PER_WORD = 8  # 4-bit integers in an int32, the first in the lowest bits
COLUMNS = 64  # columns are padded to a multiple of so many, which vectors and tiles of any machine divide


class FuseDequantizeMatmul(Pass):
    """Fuse `matmul(x, w)` with the dequantization of a constant `w`: one function reads integers and scales.

    `read_stored_weights` recognizes the operators that dequantize `w`. 4-bit integers are packed eight to an int32
    along K, the reduction axis. A dequantization without other users is left to dead-code elimination. Run this pass
    after partitioning, on the matmuls that libraries declined.
    """

    name = "fuse_dequantize_matmul"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        packed: dict[Hashable, ColumnWeights | None] = {}
        return mutate_with_prim_funcs(module, lambda table: _Fuser(table, packed))


@dataclass(frozen=True, eq=False)
class ColumnWeights(WeightConstants):
    """The constants that a function reads, padded to whole groups and `COLUMNS`. words: packed integers, see
    `FuseDequantizeMatmul`; of 8 bits the integers themselves. minima: what is added to all integers times their scale;
    of 4 bits those count from 0 then, not from -8."""

    bits: int
    depth: int  # K, padded
    group: int

    @property
    def form(self) -> Hashable:
        """Return what a function that multiplies by the weights depends on: all but their numbers."""
        types = tuple((name, constant.tensor_type) for name, constant in self.inputs.items())
        return (types, self.bits, self.depth, self.group)

    @property
    def lowest(self) -> int:
        """The integer that bits of 0 stand for."""
        return -8 if self.bits == 4 and self.minima is None else 0

    @property
    def is_whole(self) -> bool:
        """True where a column has one scale and nothing besides: the sum is scaled, not what is summed."""
        return self.group == self.depth and self.zeros is None and self.minima is None

    def number(self, buffers: Mapping[str, Buffer], row: ScalarExpr, column: ScalarExpr) -> ScalarExpr:
        """See `WeightConstants.number`."""
        words = buffers["w"]
        if self.bits == 8:
            number = cast(words[row, column], "float32")
        else:
            word = words[row // index(PER_WORD), column]
            nibble = binary("shr", word, cast(row % index(PER_WORD) * 4, "int32")) & 15
            number = cast(nibble, "float32") + float(self.lowest)
        return self.dequantize(buffers, number, row // index(self.group), column)


class _Fuser(FunctionMutator):
    """packed: the weights of all entry functions, by `identify_weights`; they share most of them."""

    def __init__(self, functions: PrimFuncTable, packed: dict[Hashable, ColumnWeights | None]) -> None:
        super().__init__()
        self.functions, self.packed = functions, packed

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "matmul" or value.tensor_type.dtype != "float32":
            return value
        left, right = value.args
        if right.tensor_type.rank != 2 or not is_dequantized(right, self.value_of):
            return value
        key = identify_weights(right, self.value_of)
        if key not in self.packed:
            stored = read_stored_weights(right, self.value_of)
            self.packed[key] = None if stored is None else pack_columns_in_words(stored)
        operands = self.packed[key]
        if operands is None:
            return value
        types = (left.tensor_type, value.tensor_type)
        make = partial(_function, *types, operands)
        name = self.functions.name_once(("dequantize_matmul", *types, operands.form), "dequantize_matmul", make)
        return call_tir(name, [left, *operands.inputs.values()], value.type)


def pack_columns_in_words(stored: StoredWeights) -> ColumnWeights:
    """Return the constants that `FuseDequantizeMatmul` makes of stored weights."""
    k, n = stored.codes.shape
    group = stored.group
    if stored.bits == 4 and group % PER_WORD:
        group = -(-group // PER_WORD) * PER_WORD  # a whole column
    groups = len(stored.scales)
    depth, columns = groups * group, -(-n // COLUMNS) * COLUMNS
    codes = np.pad(stored.codes, ((0, depth - k), (0, columns - n)))
    if stored.bits == 4:
        nibbles = (codes + 8).astype(np.uint32).reshape(depth // PER_WORD, PER_WORD, columns)
        shifts = np.arange(0, 4 * PER_WORD, 4, dtype=np.uint32)[:, None]
        codes = np.bitwise_or.reduce(nibbles << shifts, axis=1).view(np.int32)
    wider = ((0, 0), (0, columns - n))
    zeros = None if stored.zeros is None else Constant(np.pad(stored.zeros, wider))
    scales, minima = stored.scales, None
    if stored.minima is not None:
        lowest = (8.0 if stored.bits == 4 else 0.0) * scales.astype(np.float64)
        minima = Constant(np.pad(narrow_floats(stored.minima - lowest), wider))
    scales = Constant(np.pad(scales, wider))
    return ColumnWeights(Constant(codes), scales, zeros, minima, bits=stored.bits, depth=depth, group=group)


def _function(left: TensorType, result: TensorType, operands: ColumnWeights) -> PrimFunc:
    b = PrimFuncBuilder()
    x = b.input("x", left)
    words, *others = (b.input(name, constant.tensor_type) for name, constant in operands.inputs.items())
    x = _pad_left_side(b, x, operands.depth)
    shape: Shape = (*left.shape[:-1], operands.columns)
    total = _contraction(b, x, shape, operands, words, [] if operands.is_whole else others)
    if operands.is_whole:
        scales = others[0]
        y = b.compute(result.shape, lambda *at: total[at] * cast(scales[0, at[-1]], "float32"))
    elif total.shape != result.shape:
        y = b.compute(result.shape, lambda *at: total[at])
    else:
        y = total
    function = simplify(b.finish((y,), {"ops": ("dequantize", "matmul")}))
    verify(function, "dequantize_matmul")
    return function


def _pad_left_side(b: PrimFuncBuilder, x: Buffer, depth: int) -> Buffer:
    """Return the left side with zeros behind each row, where weights are padded."""
    size = x.shape[-1]
    if size == depth:
        return x

    def body(*at: Axis) -> ScalarExpr:
        return select(at[-1] < size, x[at], 0.0)

    return b.compute((*x.shape[:-1], depth), body)


def _contraction(
    b: PrimFuncBuilder, x: Buffer, shape: Shape, operands: ColumnWeights, words: Buffer, parameters: Sequence[Buffer]
) -> Buffer:
    """Contract over groups, where there are several, the words of a group, and the packed integers of a word."""
    has_groups = bool(parameters)
    inner = (operands.group // PER_WORD, PER_WORD) if operands.bits == 4 else (operands.group,)
    extents = (operands.depth // operands.group, *inner) if has_groups else inner

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> ScalarExpr:
        group, within = (point[0], point[1:]) if has_groups else (index(0), point)
        column = at[-1]
        row = group * index(inner[0]) + within[0]
        number = cast(words[row, column], "float32")
        if operands.bits == 4:
            nibble = binary("shr", words[row, column], cast(within[1] * 4, "int32")) & 15
            number = cast(nibble, "float32")
            number = number + float(operands.lowest) if operands.lowest else number
            row = row * PER_WORD + within[1]
        if not has_groups:
            return x[(*at[:-1], row)] * number
        scale, *other = (cast(parameter[group, column], "float32") for parameter in parameters)
        if operands.minima is not None:
            return x[(*at[:-1], row)] * (number * scale + other[0])
        shifted = number - other[0] if other else number
        return x[(*at[:-1], row)] * (shifted * scale)

    return b.reduce("sum", shape, extents, body, name="matmul")
