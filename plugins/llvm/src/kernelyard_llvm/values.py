"""Typed LLVM values as text: scalars and vectors of one element type."""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from kernelyard.records import NamedTuple

FLOAT_TYPES = ("half", "float", "double")
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "float": 32, "double": 64, "ptr": 64}


class Value(NamedTuple):
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
        return f"{vector_type(self.type, self.lanes)} {self.ref}"

    @property
    def is_literal(self) -> bool:
        return not self.ref.startswith("%")

    @property
    def is_float(self) -> bool:
        return self.type in FLOAT_TYPES


# A number stands for a literal of the other operands' type.
Operand: TypeAlias = "Value | float"


def registers(type_: str, *names: str) -> tuple[Value, ...]:
    """Create registers of one type, as for parameters."""
    return tuple(Value(f"%{name}", type_) for name in names)


def values_of(*operands: Operand) -> list[Value]:
    """Return the operands as values: numbers become literals of the others' element type, or of i64."""
    type_ = "i64"
    for each in operands:
        if isinstance(each, Value):
            type_ = each.type
            break
    return [each if isinstance(each, Value) else literal(each, type_) for each in operands]


def state_alignment(place: Value, type_: str) -> Value:
    """Return an address, or a vector of them, of elements of a type, as an argument of an intrinsic."""
    return place._replace(ref=f"align {BITS[type_] // 8} {place.ref}")


@cache
def vector_type(element: str, lanes: int) -> str:
    """Return the LLVM type of `lanes` elements."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


@cache
def mangle_type(type_: str, lanes: int) -> str:
    """Return a type in the name of an intrinsic."""
    short = {"half": "f16", "float": "f32", "double": "f64"}.get(type_, type_)
    return short if lanes == 1 else f"v{lanes}{short}"


def iota(count: int) -> Value:
    """Return a vector of 0, 1, 2, ... (a step vector)."""
    return Value(f"<{', '.join(f'i64 {n}' for n in range(count))}>", "i64", count)


def literal(value: float, type_: str) -> Value:
    """Return a literal of a type."""
    return float_literal(value, type_) if type_ in FLOAT_TYPES else int_literal(int(value), type_)


def float_literal(value: float, type_: str = "float") -> Value:
    """Return a literal of a float or double, rounded to the type: LLVM writes both as the bits of a double."""
    rounded = ctypes.c_float(value).value if type_ == "float" else value
    bits = struct.pack(">d", math.nan if math.isnan(rounded) else rounded)
    return Value(f"0x{bits.hex().upper()}", type_)


@cache
def int_literal(value: int, type_: str = "i64") -> Value:
    """Return an integer literal, wrapped to the type."""
    bits = BITS[type_]
    if type_ == "i1":
        return Value("true" if value & 1 else "false", type_)
    wrapped = value & ((1 << bits) - 1)
    return Value(str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped), type_)


def literal_int(value: Value) -> int | None:
    """Return the number behind an integer literal, else None."""
    return int(value.ref) if value.ref.lstrip("-").isdigit() else None


# op: its meaning, and the literal that changes nothing on the right, and unless it is subtracted from on the left.
FOLDED: dict[str, tuple[Callable[[int, int], int], int]] = {
    "add": (operator.add, 0),
    "sub": (operator.sub, 0),
    "mul": (operator.mul, 1),
}


def fold_integers(op: str, a: Value, b: Value) -> Value | None:
    """Fold integer arithmetic on literals, and with 0 and 1: index expressions are full of it."""
    if op not in FOLDED or a.lanes != 1 or b.lanes != 1:
        return None
    meaning, neutral = FOLDED[op]
    x, y = literal_int(a), literal_int(b)
    if x is not None and y is not None:
        return int_literal(meaning(x, y), a.type)
    if y == neutral:
        return a
    if x == neutral and op != "sub":
        return b
    return int_literal(0, a.type) if op == "mul" and 0 in (x, y) else None
