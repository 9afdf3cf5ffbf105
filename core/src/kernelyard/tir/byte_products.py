"""Sums of products of bytes, four at a time: the form that dot-product instructions take (VNNI, `usdot`).

One factor is unsigned, the other signed. Four values of a factor along the innermost reduced axis lie side by side in
an int32, or as neighbours in a buffer of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard.tir.analysis import affine_of, axes_of, step_along
from kernelyard.tir.expr import Binary, Cast, Const, Expr, Load, binary, cast, index
from kernelyard.tir.visitor import substitute_axes

PER_WORD = 4
SIGN = 128  # added to int8, it gives the order of uint8
_BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class ByteProduct:
    """A product of bytes at any place of two words.

    unsigned, signed: the words, int32, or loads of the first of four bytes in memory. has_sign: the unsigned bytes are
    int8 in memory, and `SIGN` is added to each.
    """

    unsigned: Expr
    has_sign: bool
    signed: Expr

    @property
    def words(self) -> Expr:
        """Return the product of the words, which reads what the bytes' product reads."""
        return Binary("mul", *(cast(word, "int32") for word in (self.unsigned, self.signed)))

    @property
    def of_memory(self) -> tuple[Load, ...]:
        """The words that are neighbours in a buffer of bytes."""
        words = (self.unsigned, self.signed)
        return tuple(word for word in words if isinstance(word, Load) and word.dtype in _BYTES)


def byte_of(word: Expr, place: Expr, dtype: str) -> Expr:
    """Return the byte of an int32 at a place, as a number; the first has the lowest bits."""
    return cast(cast(binary("shr", word, cast(place * 8, "int32")), dtype), "int32")


def to_unsigned_byte(x: Expr) -> Expr:
    """Return a byte as a number from 0 to 255: `SIGN` is added to int8."""
    number = cast(x, "int32")
    return number + SIGN if x.dtype == "int8" else number


def byte_product(body: Expr, axis: str) -> ByteProduct | None:
    """Return a product of bytes along an axis of `PER_WORD` values; None where it is none."""
    if not isinstance(body, Binary) or body.op != "mul" or body.dtype != "int32":
        return None
    for first, second in ((body.a, body.b), (body.b, body.a)):
        signed, unsigned = _to_signed(second, axis), _to_unsigned(first, axis)
        if signed is not None and unsigned is not None:
            return ByteProduct(*unsigned, signed)
    return None


def _word(expr: Expr, axis: str, dtype: str) -> Expr | None:
    """Return the word of which an expression is a byte."""
    match expr:
        case Cast(dtype="int32", x=Cast(x=Binary(op="shr", a=word, b=Cast(x=place))) as byte):
            counts = affine_of(place)
            is_place = counts.constant == 0 and len(counts.terms) == 1 and counts.coefficient(axis) == 8
            return word if byte.dtype == dtype and is_place and axis not in axes_of(word) else None
    return None


def _to_signed(expr: Expr, axis: str) -> Expr | None:
    match expr:
        case Cast(dtype="int32", x=Load(dtype="int8") as byte):
            return _find_first_of_four(byte, axis)
    return _word(expr, axis, "int8")


def _to_unsigned(expr: Expr, axis: str) -> tuple[Expr, bool] | None:
    """Return the word, and whether it has a sign."""
    match expr:
        case Cast(dtype="int32", x=Load(dtype="uint8") as byte):
            found, has_sign = _find_first_of_four(byte, axis), False
        case Binary(op="add", a=Cast(dtype="int32", x=Load(dtype="int8") as byte), b=Const(value=value)):
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
