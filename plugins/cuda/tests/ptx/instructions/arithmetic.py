"""Sums, products, quotients, of whole numbers and floating-point numbers. Source: PTX ISA 9.7.1 to 9.7.4."""

from __future__ import annotations

import numpy as np

from ptx.block import Block
from ptx.errors import PtxError
from ptx.parser import Instruction
from ptx.scalars import PACKED, SCALARS, add_to_odd, flushed, is_float, rounded

ROUNDINGS = ("rn", "rz", "rm", "rp")


def operands(block: Block, it: Instruction) -> list[np.ndarray]:
    """Return the operands behind the result as the instruction's type, flushed where it says so."""
    values = [block.read(each, it.type) for each in it.operands[1:]]
    return [flushed(value) for value in values] if it.has("ftz") else values


def finish(block: Block, it: Instruction, value: np.ndarray) -> None:
    """Flush, saturate, and write a floating-point result."""
    if it.has("ftz"):
        value = flushed(value)
    if it.has("sat"):
        value = np.where(np.isnan(value), np.zeros_like(value), np.clip(value, 0, 1)).astype(value.dtype)
    if it.has("relu"):
        value = np.where(value > 0, value, np.where(np.isnan(value), value, np.zeros_like(value)))
    block.write(it.operands[0], value, it.type)


def rounding_of(it: Instruction) -> str:
    return next((mode for mode in ROUNDINGS if it.has(mode)), "rn")


def round_to_type(it: Instruction, exact: np.ndarray) -> np.ndarray:
    return rounded(exact, it.type, rounding_of(it))


def wide(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64)


def add(block: Block, it: Instruction) -> None:
    a, b = operands(block, it)
    if it.opcode == "sub":
        b = -b if is_float(it.type) else (~b + 1).astype(b.dtype)
    if not is_float(it.type):
        block.write(it.operands[0], saturated_sum(it, a, b), it.type)
    elif it.type == "f64":
        finish(block, it, a + b)
    else:
        finish(block, it, round_to_type(it, add_to_odd(wide(a), wide(b))))


def saturated_sum(it: Instruction, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not it.has("sat"):
        return a + b
    return np.clip(a.astype(np.int64) + b, -(1 << 31), (1 << 31) - 1)


def multiply(block: Block, it: Instruction) -> None:
    a, b = operands(block, it)
    if is_float(it.type):
        finish(block, it, a * b if it.type == "f64" else round_to_type(it, wide(a) * wide(b)))
    else:
        value, name = product(it, a, b)
        block.write(it.operands[0], value, name)


def multiply_add(block: Block, it: Instruction) -> None:
    a, b, c = (block.read(each, it.type) for each in it.operands[1:4])
    if is_float(it.type):
        fused(block, it)
        return
    value, name = product(it, a, b)
    addend = block.read(it.operands[3], name) if it.has("wide") else c
    block.write(it.operands[0], value + addend, name)


def product(it: Instruction, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the lower or upper half of a product, or all of it (.wide), and its type."""
    bits = 8 * SCALARS[it.type].itemsize
    if it.has("wide"):
        name = f"{it.type[0]}{2 * bits}"
        return a.astype(SCALARS[name]) * b.astype(SCALARS[name]), name
    if it.has("hi"):
        exact = a.astype(object) * b.astype(object)
        mask = (1 << bits) - 1
        high = np.array([int(value) >> bits & mask for value in exact], f"u{bits // 8}")
        return high.view(SCALARS[it.type]), it.type
    return a * b, it.type


def fused(block: Block, it: Instruction) -> None:
    """Multiply and add with one rounding: products of two narrower numbers are exact in float64."""
    a, b, c = operands(block, it)
    if it.type == "f64":
        finish(block, it, exact_fused(a, b, c))
    else:
        finish(block, it, round_to_type(it, add_to_odd(wide(a) * wide(b), wide(c))))


def exact_fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c of float64 with one rounding, by longer numbers of the host."""
    return (a.astype(np.longdouble) * b + c).astype(np.float64)


def divide(block: Block, it: Instruction) -> None:
    a, b = operands(block, it)
    if is_float(it.type):
        finish(block, it, a / b if it.type == "f64" else round_to_type(it, wide(a) / wide(b)))
        return
    # The quotient by zero is undefined, not an error: all bits are set, as GPUs do.
    divisor = np.where(b == 0, np.ones_like(b), b)
    negative = (a < 0) != (divisor < 0)
    remainder = np.fmod(a, divisor)
    quotient = (a - remainder) // divisor if negative.any() else a // divisor
    found = quotient if it.opcode == "div" else remainder
    block.write(it.operands[0], np.where(b == 0, ~np.zeros_like(b), found), it.type)


def absolute(block: Block, it: Instruction) -> None:
    (a,) = operands(block, it)
    value = np.abs(a)
    finish(block, it, value) if is_float(it.type) else block.write(it.operands[0], value, it.type)


def negate(block: Block, it: Instruction) -> None:
    (a,) = operands(block, it)
    finish(block, it, -a) if is_float(it.type) else block.write(it.operands[0], -a, it.type)


def choose(block: Block, it: Instruction) -> None:
    """min and max. A NaN gives way to a number, unless .NaN says that it wins."""
    smaller = it.opcode == "min"
    values = operands(block, it)
    value = values[0]
    for other in values[1:]:
        value = _chosen(value, other, smaller, it.has("NaN"))
    finish(block, it, value) if is_float(it.type) else block.write(it.operands[0], value, it.type)


def _chosen(a: np.ndarray, b: np.ndarray, smaller: bool, nan_wins: bool) -> np.ndarray:
    is_first = (a < b) if smaller else (a > b)
    value = np.where(is_first, a, b)
    if a.dtype.kind in "iu":
        return value
    equal = a == b  # zeros: -0 is less than +0
    value = np.where(equal & (np.signbit(a) == smaller), a, value)
    a_is_nan, b_is_nan = np.isnan(a), np.isnan(b)
    if nan_wins:
        return np.where(a_is_nan | b_is_nan, np.array(np.nan, a.dtype), value)
    return np.where(a_is_nan, b, np.where(b_is_nan, a, value))


def dot_product(block: Block, it: Instruction) -> None:
    """dp4a: four products of bytes, and a sum."""
    a, b = (
        np.ascontiguousarray(block.read(operand, "u32")).view(SCALARS[f"{name[0]}8"]).reshape(-1, 4).astype(np.int64)
        for operand, name in zip(it.operands[1:3], it.types[-2:], strict=True)
    )
    block.write(it.operands[0], (a * b).sum(1) + block.read(it.operands[3], "s32"), "s32")


def absolute_difference(block: Block, it: Instruction) -> None:
    if is_float(it.type) or it.type in PACKED:
        raise PtxError("sad is of whole numbers")
    a, b, c = operands(block, it)
    block.write(it.operands[0], np.where(a > b, a - b, b - a) + c, it.type)


HANDLERS = {
    "add": add,
    "sub": add,
    "mul": multiply,
    "mad": multiply_add,
    "fma": fused,
    "div": divide,
    "rem": divide,
    "abs": absolute,
    "neg": negate,
    "min": choose,
    "max": choose,
    "dp4a": dot_product,
    "sad": absolute_difference,
}
