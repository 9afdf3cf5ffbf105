"""Products of matrices by the lanes of a warp, and their operands from shared memory: mma.sync, ldmatrix.

Lane `l` is number l / 4 of eight groups, and l % 4 in its group. Source: PTX ISA 9.7.14, "Matrix Fragments for mma".
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from ptx.block import WARP, Block, parts_of
from ptx.errors import PtxError
from ptx.parser import Address, Instruction
from ptx.scalars import SCALARS

ROWS, COLUMNS = 16, 8
LANE = np.arange(WARP)
GROUP, OF_GROUP = LANE // 4, LANE % 4
# Types of factors, as elements of the registers that hold them.
ELEMENTS = {"f16": "f16", "bf16": "bf16", "tf32": "f32", "s8": "s8", "u8": "u8"}
TF32_MASK = np.uint32(0xFFFFE000)


@cache
def places_of_a(registers: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row and place of the sum of each lane's elements (lanes, registers, elements of one) of the left factor."""
    lane, number, element = np.ogrid[:WARP, :registers, :each]
    row = lane // 4 + 8 * (number % 2)
    place = number // 2 * 4 * each + lane % 4 * each + element
    return np.broadcast_arrays(row, place)


@cache
def places_of_b(registers: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Return place of the sum and column of each lane's elements of the right factor."""
    lane, number, element = np.ogrid[:WARP, :registers, :each]
    return np.broadcast_arrays(number * 4 * each + lane % 4 * each + element, lane // 4)


def _elements(block: Block, operand: object, name: str) -> np.ndarray:
    """Return a fragment as (warps, lanes, registers, elements of one)."""
    registers = np.stack([block.read(part, "b32") for part in parts_of(operand)], 1)
    if name == "tf32":
        registers = registers & TF32_MASK
    elements = np.ascontiguousarray(registers).view(SCALARS[ELEMENTS[name]])
    return elements.reshape(-1, WARP, registers.shape[1], 4 // SCALARS[ELEMENTS[name]].itemsize)


def multiply(block: Block, it: Instruction) -> None:
    to, a, b, c = it.operands
    total, of_a, of_b, addend = it.types
    shape = next((name for name in it.modifiers if re.fullmatch(r"m16n8k\d+", name)), "")
    if of_a not in ELEMENTS or not shape or not it.has("row") or not it.has("col"):
        raise PtxError("of mma.sync there is m16n8 of f16, bf16, tf32, s8 and u8, row by column")
    depth = int(shape.removeprefix("m16n8k"))
    left, right = _elements(block, a, of_a), _elements(block, b, of_b)
    wide = np.int64 if of_a in ("s8", "u8") else np.float64
    x = np.zeros((left.shape[0], ROWS, depth), wide)
    y = np.zeros((left.shape[0], depth, COLUMNS), wide)
    x[:, *places_of_a(*left.shape[2:])] = left
    y[:, *places_of_b(*right.shape[2:])] = right
    z = x @ y + _accumulators(block, c, addend).astype(wide)
    if it.has("satfinite"):
        z = np.clip(z, -(1 << 31), (1 << 31) - 1)
    _write_accumulators(block, to, z, total)


def _accumulators(block: Block, operand: object, name: str) -> np.ndarray:
    """Return (warps, rows, columns): each lane has two neighbors of a row, and two of the row eight below."""
    parts = parts_of(operand)
    if name == "f16":
        four = np.stack([block.read(part, "f16x2") for part in parts], 1).reshape(-1, WARP, 4)
    else:
        four = np.stack([block.read(part, name) for part in parts], 1).reshape(-1, WARP, 4)
    found = np.zeros((four.shape[0], ROWS, COLUMNS), four.dtype)
    found[:, *_places_of_c()] = four
    return found


@cache
def _places_of_c() -> tuple[np.ndarray, np.ndarray]:
    lane, number = np.ogrid[:WARP, :4]
    return np.broadcast_arrays(lane // 4 + 8 * (number // 2), lane % 4 * 2 + number % 2)


def _write_accumulators(block: Block, operand: object, z: np.ndarray, name: str) -> None:
    four = z[:, *_places_of_c()].reshape(-1, 4)
    if name == "f16":
        for number, part in enumerate(parts_of(operand)):
            block.write(part, four[:, 2 * number : 2 * number + 2].astype(np.float16), "f16x2")
        return
    for number, part in enumerate(parts_of(operand)):
        block.write(part, four[:, number].astype(SCALARS[name]), name)


def load_matrices(block: Block, it: Instruction) -> None:
    """Lane 8 i + r has the address of row r of matrix i, of 16 bytes; a lane gets two neighbors of each matrix."""
    to, address = it.operands
    assert isinstance(address, Address)
    parts = parts_of(to)
    addresses = block.locate(address)
    everyone = block.mask
    block.mask = everyone & (block.lanes % WARP < 8 * len(parts))  # whose addresses count
    memory, places = block.checked(addresses, "shared", 16)
    block.mask = everyone
    rows = np.stack([memory.load(places + 2 * column, 2) for column in range(8)], 1).reshape(-1, WARP, 8)
    for number, part in enumerate(parts):
        matrix = rows[:, 8 * number : 8 * number + 8]
        if it.has("trans"):
            matrix = matrix.transpose(0, 2, 1)
        two = np.stack([matrix[:, GROUP, 2 * OF_GROUP + element] for element in range(2)], 2)
        block.write(part, np.ascontiguousarray(two).view(np.uint32).reshape(-1), "b32")


HANDLERS = {"mma": multiply, "ldmatrix": load_matrices}
