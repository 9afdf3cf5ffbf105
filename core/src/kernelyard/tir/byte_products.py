"""Sums of products of bytes, four at a time: the form that dot-product instructions take (VNNI, `usdot`).

One factor is unsigned, the other signed. Four values of a factor along the innermost reduced axis lie side by side in
an int32, or as neighbours in a buffer of bytes.

A product in int16, converted to int32, says that the first two of a word add up to a number of 16 bits, and so do the
last two. In this form both factors may be signed; or the first is a magnitude, whose sign the second takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple

from kernelyard.tir.analysis import affine_of, axes_of, step_along
from kernelyard.tir.expr import Binary, Cast, Const, Expr, Load, Select, Unary, binary, cast, index, select
from kernelyard.tir.visitor import substitute_axes

PER_WORD = 4
SIGN = 128  # added to int8, it gives the order of uint8
_BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class ByteProduct:
    """A product of bytes at any place of two words.

    unsigned, signed: the words, int32, or loads of the first of four bytes in memory. has_sign: the unsigned bytes are
    int8 in memory, and `SIGN` is added to each. fits_16_bits: two neighbours add up to a number of 16 bits.
    both_signed: the first factor has signed bytes, too; no byte of the second is -128. signs: a word of bytes; where
    these are negative, those of the second factor, none of which is -128, are multiplied by -1.
    """

    unsigned: Expr
    has_sign: bool
    signed: Expr
    fits_16_bits: bool = False
    both_signed: bool = False
    signs: Expr | None = None

    @property
    def words(self) -> Expr:
        """Return the product of the words, which reads what the bytes' product reads."""
        factors = (self.unsigned, self.signed) if self.signs is None else (self.unsigned, self.signed, self.signs)
        return reduce(partial(Binary, "mul"), (cast(word, "int32") for word in factors))

    @property
    def of_memory(self) -> tuple[Load, ...]:
        """The words that are neighbours in a buffer of bytes."""
        words = (self.unsigned, self.signed, self.signs)
        return tuple(word for word in words if isinstance(word, Load) and word.dtype in _BYTES)


def byte_of(word: Expr, place: Expr, dtype: str, number: str = "int32") -> Expr:
    """Return the byte of an int32 at a place, as a number; the first has the lowest bits."""
    return cast(cast(binary("shr", word, cast(place * 8, "int32")), dtype), number)


def to_unsigned_byte(x: Expr, dtype: str = "int32") -> Expr:
    """Return a byte as a number from 0 to 255: `SIGN` is added to int8."""
    number = cast(x, dtype)
    return number + SIGN if x.dtype == "int8" else number


def to_signed_byte(x: Expr, dtype: str = "int32") -> Expr:
    """Return a byte as a number from -128 to 127: `SIGN` is subtracted from uint8."""
    number = cast(x, dtype)
    return number - SIGN if x.dtype == "uint8" else number


def with_sign_of(byte: Expr, number: Expr) -> Expr:
    """Return a number, or -1 times it where a byte is negative."""
    return select(byte < 0, -number, number)


def byte_product(body: Expr, axis: str) -> ByteProduct | None:
    """Return a product of bytes along an axis of `PER_WORD` values; None where it is none."""
    match body:
        case Cast(dtype="int32", x=Binary(op="mul", dtype="int16") as product):
            fits_16_bits = True
        case Binary(op="mul", dtype="int32") as product:
            fits_16_bits = False
        case _:
            return None
    for first, second in ((product.a, product.b), (product.b, product.a)):
        unsigned, signs = _to_unsigned(first, axis), _to_sign(second, axis) if fits_16_bits else None
        signed = _to_signed(second if signs is None else signs.number, axis)
        if signed is not None and unsigned is not None:
            return ByteProduct(*unsigned, signed, fits_16_bits, signs=None if signs is None else signs.word)
    left, right = _to_signed(product.a, axis), _to_signed(product.b, axis)
    if not fits_16_bits or left is None or right is None:
        return None
    return ByteProduct(left, has_sign=False, signed=right, fits_16_bits=True, both_signed=True)


class _Signed(NamedTuple):
    """A number, and the word of the bytes whose signs it takes."""

    number: Expr
    word: Expr


def _to_sign(expr: Expr, axis: str) -> _Signed | None:
    match expr:
        case Select(
            condition=Binary(op="lt", a=Load(dtype="int8") as byte, b=Const(value=0)),
            a=Unary(op="neg", x=negated),
            b=number,
        ) if negated == number:
            word = _find_first_of_four(byte, axis)
            return None if word is None else _Signed(number, word)
    return None


def _word(expr: Expr, axis: str, dtype: str) -> Expr | None:
    """Return the word of which an expression is a byte."""
    match expr:
        case Cast(dtype="int32" | "int16", x=Cast(x=Binary(op="shr", a=word, b=Cast(x=place))) as byte):
            counts = affine_of(place)
            is_place = counts.constant == 0 and len(counts.terms) == 1 and counts.coefficient(axis) == 8
            return word if byte.dtype == dtype and is_place and axis not in axes_of(word) else None
    return None


def _to_signed(expr: Expr, axis: str) -> Expr | None:
    match expr:
        case Cast(dtype="int32" | "int16", x=Load(dtype="int8") as byte):
            return _find_first_of_four(byte, axis)
    return _word(expr, axis, "int8")


def _to_unsigned(expr: Expr, axis: str) -> tuple[Expr, bool] | None:
    """Return the word, and whether it has a sign."""
    match expr:
        case Cast(dtype="int32" | "int16", x=Load(dtype="uint8") as byte):
            found, has_sign = _find_first_of_four(byte, axis), False
        case Binary(op="add", a=Cast(dtype="int32" | "int16", x=Load(dtype="int8") as byte), b=Const(value=value)):
            found, has_sign = _find_first_of_four(byte, axis) if value == SIGN else None, True
        case _:
            found, has_sign = _word(expr, axis, "uint8"), False
    return None if found is None else (found, has_sign)


def _find_first_of_four(byte: Load, axis: str) -> Load | None:
    """Return the first of four neighbours in memory."""
    if step_along(byte, axis) != 1:
        return None
    first = substitute_axes(byte, {axis: index(0)})
    assert isinstance(first, Load)
    return first
