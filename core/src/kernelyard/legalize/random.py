"""The rule of random bits, from which all random numbers are made."""

from __future__ import annotations

from kernelyard.dims import Shape
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.ops.philox import MASK, philox
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Expr, binary, cast, const, index

_WORD = "uint64"  # in which words of 32 bits are computed


@legalize("random.bits")
def random_bits(b: RuleBuilder, key: Operand, *, shape: Shape, word: int) -> Buffer:
    strides = Buffer("numbers", shape, "int64").strides

    def body(*at: Axis) -> Expr:
        number = index(0)
        for axis, stride in zip(at, strides, strict=True):
            number = number + axis * stride
        zero = const(0, _WORD)
        counter = *_halves(cast(number, _WORD)), zero, zero
        return cast(philox(counter, _halves(key[()]), _xor, _shift_right)[word], "uint32")

    return b.compute(shape, body)


def _halves(value: Expr) -> tuple[Expr, Expr]:
    return value & MASK, _shift_right(value, 32)


def _xor(a: Expr, b: Expr) -> Expr:
    return binary("xor", a, b)


def _shift_right(a: Expr, by: int) -> Expr:
    return binary("shr", a, by)
