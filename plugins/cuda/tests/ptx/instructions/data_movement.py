"""Moves, loads, stores, addresses, atomic operations. Source: PTX ISA 9.7.9, 9.7.13."""

from __future__ import annotations

import operator

import numpy as np

from ptx.block import LOCAL_BASE, PARAM_BASE, SHARED_BASE, Block, parts_of
from ptx.parser import Address, Instruction, Symbol, Vector
from ptx.scalars import nbytes_of, typed

BASES = {"global": 0, "const": 0, "shared": SHARED_BASE, "local": LOCAL_BASE, "param": PARAM_BASE}
VECTORS = {"v2": 2, "v4": 4, "v8": 8}


def space_named(it: Instruction) -> str:
    """Return the state space that the instruction names; none for generic addresses."""
    return next((name.split("::")[0] for name in it.modifiers if name.split("::")[0] in BASES), "")


def move(block: Block, it: Instruction) -> None:
    """mov: a vector is the parts of a number, the lowest first."""
    to, source = it.operands
    if isinstance(to, Vector):
        bits = np.ascontiguousarray(block.read(source, it.type))
        parts = bits.view(f"u{bits.dtype.itemsize // len(to.parts)}").reshape(-1, len(to.parts))
        for number, part in enumerate(to.parts):
            block.write(part, parts[:, number], f"b{8 * parts.dtype.itemsize}")
    elif isinstance(source, Vector):
        name = f"b{8 * nbytes_of(it.type) // len(source.parts)}"
        parts = np.stack([block.read(part, name) for part in source.parts], 1)
        block.write(to, parts.view(f"u{nbytes_of(it.type)}").reshape(-1), f"b{8 * nbytes_of(it.type)}")
    else:
        block.write(to, block.read(source, it.type), it.type)


def load(block: Block, it: Instruction) -> None:
    to, address = it.operands[:2]
    parts, nbytes = parts_of(to), nbytes_of(it.type)
    memory, places = _access(block, it, address, nbytes * len(parts))
    for number, part in enumerate(parts):
        block.write(part, typed(memory.load(places + number * nbytes, nbytes), it.type), it.type)


def store(block: Block, it: Instruction) -> None:
    address, source = it.operands[:2]
    parts, nbytes = parts_of(source), nbytes_of(it.type)
    memory, places = _access(block, it, address, nbytes * len(parts))
    for number, part in enumerate(parts):
        words = block.read(part, f"b{8 * nbytes}")
        memory.store(places[block.mask] + number * nbytes, words[block.mask])


def _access(block: Block, it: Instruction, address: object, nbytes: int):
    assert isinstance(address, Address)
    space, addresses = block.space_of(block.locate(address), space_named(it))
    return block.checked(addresses, space, nbytes)


def convert_address(block: Block, it: Instruction) -> None:
    """cvta: from a space to generic addresses, or with .to the other way."""
    base = BASES[space_named(it)] * (-1 if it.has("to") else 1)
    source = it.operands[1]
    if isinstance(source, Address):
        addresses = block.locate(source)
    else:
        addresses = block.read(source, "u64").astype(np.int64)
    block.write(it.operands[0], addresses + base, "s64")


def is_space(block: Block, it: Instruction) -> None:
    addresses = block.read(it.operands[1], "u64").astype(np.int64)
    bases = sorted(BASES[name] for name in ("global", "shared", "local", "param"))
    own = BASES[space_named(it)]
    after = [base for base in bases if base > own]
    block.write(it.operands[0], (addresses >= own) & (addresses < (after[0] if after else 1 << 62)), "pred")


OPERATIONS = {
    "add": operator.add,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "exch": lambda old, new: new,
    "inc": lambda old, most: 0 if old >= most else old + 1,
    "dec": lambda old, most: most if old == 0 or old > most else old - 1,
}


def atomic(block: Block, it: Instruction) -> None:
    """atom and red: thread after thread; atom gives what was there before."""
    operands = it.operands if it.opcode == "atom" else (Symbol("_"), *it.operands)
    to, address, *sources = operands
    name = next(each for each in it.modifiers if each in OPERATIONS or each == "cas")
    memory, places = _access(block, it, address, nbytes_of(it.type))
    values = [block.read(source, it.type) for source in sources]
    before = np.zeros(block.lanes.size, f"u{nbytes_of(it.type)}")
    for lane in np.flatnonzero(block.mask):
        place = places[lane : lane + 1]
        before[lane] = memory.load(place, nbytes_of(it.type))[0]
        old = typed(before[lane : lane + 1], it.type)
        given = [value[lane : lane + 1] for value in values]
        memory.store(place, np.ascontiguousarray(_updated(name, old, given)).view(before.dtype).reshape(-1))
    block.write(to, typed(before, it.type), it.type)


def _updated(name: str, old: np.ndarray, given: list[np.ndarray]) -> np.ndarray:
    if name == "cas":
        return np.where(old == given[0], given[1], old)
    if name == "add":
        return (old + given[0]).astype(old.dtype)
    return np.array([OPERATIONS[name](old[0], given[0][0])], old.dtype)


def nothing(block: Block, it: Instruction) -> None:
    """Do nothing for fences and hints: every access is done at once."""


HANDLERS = {
    "mov": move,
    "ld": load,
    "ldu": load,
    "st": store,
    "cvta": convert_address,
    "isspacep": is_space,
    "atom": atomic,
    "red": atomic,
    "membar": nothing,
    "fence": nothing,
    "prefetch": nothing,
    "prefetchu": nothing,
}
