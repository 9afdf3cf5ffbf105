"""Logic, shifts, fields of bits, permutations of bytes. Source: PTX ISA 9.7.1 (bits), 9.7.8."""

from __future__ import annotations

from functools import partial

import numpy as np

from ptx.block import Block
from ptx.errors import PtxError
from ptx.parser import Instruction, Literal
from ptx.scalars import SCALARS, literal

from .arithmetic import operands


def logic(block: Block, it: Instruction) -> None:
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[it.opcode]
    block.write(it.operands[0], function(*operands(block, it)), it.type)


def complement(block: Block, it: Instruction) -> None:
    (a,) = operands(block, it)
    block.write(it.operands[0], ~a, it.type)


def constant_not(block: Block, it: Instruction) -> None:
    (a,) = operands(block, it)
    block.write(it.operands[0], (a == 0).astype(a.dtype), it.type)


def three_input_logic(block: Block, it: Instruction) -> None:
    """The result's bit is that of the table at 4 a + 2 b + c."""
    a, b, c = (block.read(each, "b32") for each in it.operands[1:4])
    assert isinstance(it.operands[4], Literal)
    table = literal(it.operands[4].text, "u32")
    value = np.zeros_like(a)
    for number in range(8):
        if table >> number & 1:
            value |= (a if number & 4 else ~a) & (b if number & 2 else ~b) & (c if number & 1 else ~c)
    block.write(it.operands[0], value, "b32")


def shift(block: Block, it: Instruction) -> None:
    """Shifts of more bits than there are shift all out."""
    a, count = block.read(it.operands[1], it.type), block.read(it.operands[2], "u32")
    bits = 8 * a.dtype.itemsize
    few = np.minimum(count, bits - 1).astype(a.dtype)
    if it.opcode == "shl":
        value = np.where(count >= bits, 0, a << few).astype(a.dtype)
    else:
        last = a >> few
        value = last if a.dtype.kind == "i" else np.where(count >= bits, 0, last).astype(a.dtype)
    block.write(it.operands[0], value, it.type)


def funnel_shift(block: Block, it: Instruction) -> None:
    low, high, count = (block.read(each, "u32").astype(np.uint64) for each in it.operands[1:4])
    count = count & 31 if it.has("wrap") else np.minimum(count, 32)
    both = high << np.uint64(32) | low
    value = both >> count if it.has("r") else both << count >> np.uint64(32)
    block.write(it.operands[0], value.astype(np.uint32), "b32")


def extract_field(block: Block, it: Instruction) -> None:
    a = block.read(it.operands[1], it.type)
    start, length = (block.read(each, "u32").astype(np.int64) & 0xFF for each in it.operands[2:4])
    bits = 8 * a.dtype.itemsize
    sign = np.where(length > 0, a < 0, False)  # of what is above the highest bit
    last = np.minimum(start + length - 1, bits - 1)
    value = np.zeros(a.size, object)
    for lane in np.flatnonzero(block.mask):
        field = int(a[lane]) >> int(start[lane]) & ((1 << int(length[lane])) - 1) if start[lane] < bits else 0
        is_negative = a.dtype.kind == "i" and length[lane] and int(a[lane]) >> int(last[lane]) & 1
        if is_negative or (start[lane] >= bits and sign[lane]):
            field -= 1 << int(length[lane])
        value[lane] = field & ((1 << bits) - 1)
    block.write(it.operands[0], value.astype(f"u{bits // 8}"), f"u{bits}")


def insert_field(block: Block, it: Instruction) -> None:
    """Put the lower bits of the first operand into the second."""
    a, b = (block.read(each, it.type) for each in it.operands[1:3])
    start, length = (block.read(each, "u32").astype(np.int64) & 0xFF for each in it.operands[3:5])
    bits = 8 * a.dtype.itemsize
    kept = np.array(
        [((1 << int(n)) - 1) << int(s) & ((1 << bits) - 1) for s, n in zip(start, length, strict=True)], a.dtype
    )
    moved = np.where(start < bits, a << np.minimum(start, bits - 1).astype(a.dtype), 0).astype(a.dtype)
    block.write(it.operands[0], (moved & kept) | (b & ~kept), it.type)


def permute_bytes(block: Block, it: Instruction) -> None:
    """Choose four of eight bytes; the highest bit of a selector copies the byte's sign."""
    if it.modifiers != ("b32",):
        raise PtxError("of prmt there is only the default mode")
    a, b, selector = (block.read(each, "u32") for each in it.operands[1:4])
    eight = np.stack([a, b], 1).view(np.uint8)
    value = np.zeros_like(a)
    for place in range(4):
        chosen = selector >> np.uint32(4 * place) & 0xF
        byte = np.take_along_axis(eight, (chosen & 7)[:, None].astype(np.int64), 1)[:, 0]
        byte = np.where(chosen & 8, np.where(byte & 0x80, 0xFF, 0), byte).astype(np.uint32)
        value |= byte << np.uint32(8 * place)
    block.write(it.operands[0], value, "b32")


def each_number(function, block: Block, it: Instruction) -> None:
    """Apply a function of a number and its count of bits; the result is of 32 bits, or of the type for `brev`."""
    a = block.read(it.operands[1], f"u{8 * SCALARS[it.type].itemsize}")
    bits = 8 * a.dtype.itemsize
    name = it.type if it.opcode == "brev" else "u32"
    values = np.array([function(int(each), bits) for each in a], np.uint64)
    block.write(it.operands[0], values.astype(f"u{SCALARS[name].itemsize}"), name)


def find_highest(block: Block, it: Instruction) -> None:
    """The place of the highest bit that is not the sign; all bits where there is none."""
    a = block.read(it.operands[1], it.type)
    bits = 8 * a.dtype.itemsize
    found = [int(~each if each < 0 else each).bit_length() - 1 for each in a]
    value = np.array([(bits - 1 - n if it.has("shiftamt") else n) if n >= 0 else 0xFFFFFFFF for n in found], np.uint32)
    block.write(it.operands[0], value, "u32")


HANDLERS = {
    "and": logic,
    "or": logic,
    "xor": logic,
    "not": complement,
    "cnot": constant_not,
    "lop3": three_input_logic,
    "shl": shift,
    "shr": shift,
    "shf": funnel_shift,
    "bfe": extract_field,
    "bfi": insert_field,
    "bfind": find_highest,
    "prmt": permute_bytes,
    "popc": partial(each_number, lambda value, bits: value.bit_count()),
    "clz": partial(each_number, lambda value, bits: bits - value.bit_length()),
    "brev": partial(each_number, lambda value, bits: int(f"{value:0{bits}b}"[::-1], 2)),
}
