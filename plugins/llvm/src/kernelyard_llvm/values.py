"""Typed LLVM values as text: scalars and vectors of one element type."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

FLOAT_TYPES = ("half", "float", "double")
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "float": 32, "double": 64, "ptr": 64}


@dataclass(frozen=True)
class Value:
    """`ref` is a register or a literal; `lanes` 1 is a scalar; `depth` is the scope in which the register is made."""

    ref: str
    type: str
    lanes: int = 1
    depth: int = 0

    @property
    def text(self) -> str:
        """The full LLVM type."""
        return vector_type(self.type, self.lanes)

    @property
    def typed(self) -> str:
        """Type and reference, as operands are written."""
        return f"{self.text} {self.ref}"

    @property
    def is_literal(self) -> bool:
        return not self.ref.startswith("%")

    @property
    def is_float(self) -> bool:
        return self.type in FLOAT_TYPES


def vector_type(element: str, lanes: int) -> str:
    """The LLVM type of `lanes` elements."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def float_literal(value: float, type_: str = "float") -> Value:
    """A floating-point literal, rounded to the type.

    LLVM writes half, float and double literals as the bits of a double that the type holds exactly.
    """
    if type_ == "float" and math.isfinite(value):
        value = _round_to_float(value)
    if type_ == "half":
        bits = struct.unpack("<H", struct.pack("<e", value))[0] if abs(value) < 65520 or not math.isfinite(value) else 0
        return Value(f"0xH{bits:04X}", type_)
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    if math.isnan(value):
        bits = 0x7FF8000000000000
    return Value(f"0x{bits:016X}", type_)


def _round_to_float(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def int_literal(value: int, type_: str = "i64") -> Value:
    """An integer literal, wrapped to the type."""
    bits = BITS[type_]
    if type_ == "i1":
        return Value("true" if value & 1 else "false", type_)
    wrapped = value & ((1 << bits) - 1)
    return Value(str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped), type_)


def literal_int(value: Value) -> int | None:
    """The number behind an integer literal, else None."""
    try:
        return int(value.ref)
    except ValueError:
        return None
