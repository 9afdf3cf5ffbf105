"""Sums of products of bytes, four at a time: the form that dot-product instructions take (VNNI, `usdot`).

One factor is unsigned, the other signed. Four values along the innermost reduced axis lie side by side in an int32: the
signed ones always, the unsigned ones so or as neighbours in a buffer of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard.tir.analysis import affine_of, axes_of, step_along
from kernelyard.tir.expr import Binary, Cast, Const, Expr, Load, binary, cast, index
from kernelyard.tir.visitor import substitute_axes

PER_WORD = 4
SIGN = 128  # added to int8, it gives the order of uint8


@dataclass(frozen=True)
class ByteProduct:
    """A product of bytes at any place of two words.

    unsigned: the word, or the first of four bytes in memory; has_sign: these are int8, and `SIGN` is added to each.
    signed: the other word.
    """

    unsigned: Load
    has_sign: bool
    signed: Load

    @property
    def words(self) -> Expr:
        """Return the product of the words, which reads what the bytes' product reads."""
        unsigned = self.unsigned if self.unsigned.dtype == "int32" else cast(self.unsigned, "int32")
        return Binary("mul", unsigned, self.signed)


def byte_of(word: Expr, place: Expr, dtype: str) -> Expr:
    """Return the byte of an int32 at a place, as a number; the first has the lowest bits."""
    return cast(cast(binary("shr", word, cast(place * 8, "int32")), dtype), "int32")


def unsigned_byte(x: Expr) -> Expr:
    """Return a byte as a number from 0 to 255: `SIGN` is added to int8."""
    number = cast(x, "int32")
    return number + SIGN if x.dtype == "int8" else number


def byte_product(body: Expr, axis: str) -> ByteProduct | None:
    """Return a product of bytes along an axis of `PER_WORD` values; None where it is none."""
    if not isinstance(body, Binary) or body.op != "mul" or body.dtype != "int32":
        return None
    for first, second in ((body.a, body.b), (body.b, body.a)):
        signed, unsigned = _word(second, axis, "int8"), _unsigned(first, axis)
        if signed is not None and unsigned is not None:
            return ByteProduct(*unsigned, signed)
    return None


def _word(expr: Expr, axis: str, dtype: str) -> Load | None:
    """Return the word of which an expression is a byte."""
    match expr:
        case Cast(dtype="int32", x=Cast(x=Binary(op="shr", a=Load(dtype="int32") as word, b=Cast(x=place))) as byte):
            counts = affine_of(place)
            is_place = counts.constant == 0 and len(counts.terms) == 1 and counts.coefficient(axis) == 8
            return word if byte.dtype == dtype and is_place and axis not in axes_of(word) else None
    return None


def _unsigned(expr: Expr, axis: str) -> tuple[Load, bool] | None:
    word = _word(expr, axis, "uint8")
    if word is not None:
        return word, False
    match expr:
        case Cast(dtype="int32", x=Load(dtype="uint8") as byte):
            has_sign = False
        case Binary(op="add", a=Cast(dtype="int32", x=Load(dtype="int8") as byte), b=Const(value=value)):
            if value != SIGN:
                return None
            has_sign = True
        case _:
            return None
    if step_along(byte, axis) != 1:
        return None
    first = substitute_axes(byte, {axis: index(0)})
    assert isinstance(first, Load)
    return first, has_sign
