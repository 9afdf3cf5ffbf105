"""Comparisons, and choices by them. Source: PTX ISA 9.7.6, 9.7.7."""

from __future__ import annotations

import numpy as np

from ptx.block import Block, parts_of
from ptx.errors import PtxError
from ptx.parser import Instruction
from ptx.scalars import flushed, is_float

COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
COMBINATIONS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def compared(block: Block, it: Instruction) -> np.ndarray:
    a, b = (block.read(each, it.types[0] if it.opcode == "setp" else it.type) for each in it.operands[1:3])
    if it.has("ftz"):
        a, b = flushed(a), flushed(b)
    name = it.modifiers[0]
    if not is_float(it.type):
        return COMPARISONS[name](a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        return unordered if name == "nan" else ~unordered
    if name.endswith("u") and name[:-1] in COMPARISONS:
        return COMPARISONS[name[:-1]](a, b) | unordered
    if name not in COMPARISONS:
        raise PtxError(f"the comparison .{name} is unknown")
    return COMPARISONS[name](a, b) & ~unordered


def set_predicate(block: Block, it: Instruction) -> None:
    """setp: a second predicate gets the opposite; both are combined with a third operand, if there is one."""
    found = compared(block, it)
    results = [found, ~found]
    if len(it.operands) == 4:
        other = block.read(it.operands[3], "pred")
        combine = next(COMBINATIONS[name] for name in it.modifiers if name in COMBINATIONS)
        results = [combine(each, other) for each in results]
    for operand, value in zip(parts_of(it.operands[0]), results, strict=False):
        block.write(operand, value, "pred")


def set_number(block: Block, it: Instruction) -> None:
    """set: 1.0, or all bits, where the comparison holds."""
    found = compared(block, it)
    name = it.types[0]
    block.write(
        it.operands[0],
        np.where(found, 1.0 if is_float(name) else -1, 0).astype(np.float64 if is_float(name) else np.int64),
        name,
    )


def select(block: Block, it: Instruction) -> None:
    a, b = (block.read(each, it.type) for each in it.operands[1:3])
    block.write(it.operands[0], np.where(block.read(it.operands[3], "pred"), a, b), it.type)


def select_by_sign(block: Block, it: Instruction) -> None:
    a, b = (block.read(each, it.types[0]) for each in it.operands[1:3])
    block.write(it.operands[0], np.where(block.read(it.operands[3], it.types[1]) >= 0, a, b), it.types[0])


HANDLERS = {"setp": set_predicate, "set": set_number, "selp": select, "slct": select_by_sign}
