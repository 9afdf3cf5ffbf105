"""Exchanges between the threads of a warp: shuffles, votes, matches. Source: PTX ISA 9.7.9 (shfl), 9.7.13."""

from __future__ import annotations

import numpy as np

from ptx.block import WARP, Block, parts_of
from ptx.parser import Instruction


def by_warp(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, WARP)


def shuffle(block: Block, it: Instruction) -> None:
    """A lane whose source is outside of its segment keeps its own value, and its predicate is false."""
    value = block.read(it.operands[1], "b32")
    distance, control = (block.read(each, "u32").astype(np.int64) for each in it.operands[2:4])
    lane, distance = block.lanes % WARP, distance & 31
    clamp, segments = control & 31, control >> 8 & 31
    highest = (lane & segments) | (clamp & ~segments)
    lowest = lane & segments
    if it.has("up"):
        source = lane - distance
        inside = source >= highest
    elif it.has("down"):
        source = lane + distance
        inside = source <= highest
    elif it.has("bfly"):
        source = lane ^ distance
        inside = source <= highest
    else:
        source = lowest | (distance & ~segments)
        inside = source <= highest
    source = np.where(inside, source, lane)
    absolute = block.lanes - lane + source
    block.fail(~block.mask[absolute], "a shuffle reads a lane that does not execute it")
    to, *predicate = parts_of(it.operands[0])
    block.write(to, value[absolute], "b32")
    for operand in predicate:
        block.write(operand, inside, "pred")


def vote(block: Block, it: Instruction) -> None:
    held = block.read(it.operands[1], "pred") & block.mask
    if it.has("ballot"):
        bits = (by_warp(held) << np.arange(WARP, dtype=np.uint64)).sum(1)
        block.write(it.operands[0], np.repeat(bits, WARP).astype(np.uint32), "b32")
        return
    every = ~by_warp(block.mask & ~held).any(1)
    if it.has("all"):
        found = every
    elif it.has("any"):
        found = by_warp(held).any(1)
    else:
        found = every | ~by_warp(held).any(1)
    block.write(it.operands[0], np.repeat(found, WARP), "pred")


def match(block: Block, it: Instruction) -> None:
    values, active = by_warp(block.read(it.operands[1], it.type)), by_warp(block.mask)
    same = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
    bits = (same << np.arange(WARP, dtype=np.uint64)).sum(2)
    to, *predicate = parts_of(it.operands[0])
    if it.has("all"):
        agree = np.repeat(((same | ~active[:, None, :]).all(2) | ~active).all(1), WARP)
        everyone = (active << np.arange(WARP, dtype=np.uint64)).sum(1)
        block.write(to, np.where(agree, np.repeat(everyone, WARP), 0).astype(np.uint32), "b32")
        for operand in predicate:
            block.write(operand, agree, "pred")
    else:
        block.write(to, bits.reshape(-1).astype(np.uint32), "b32")


def active_mask(block: Block, it: Instruction) -> None:
    bits = (by_warp(block.mask) << np.arange(WARP, dtype=np.uint64)).sum(1)
    block.write(it.operands[0], np.repeat(bits, WARP).astype(np.uint32), "b32")


def reduce(block: Block, it: Instruction) -> None:
    """redux: of the threads that execute it."""
    values, active = by_warp(block.read(it.operands[1], it.type)), by_warp(block.mask)
    function = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[next(name for name in it.modifiers if name in ("add", "min", "max", "and", "or", "xor"))]  # fmt: skip
    found = [function.reduce(row[on]) if on.any() else row[0] for row, on in zip(values, active, strict=True)]
    block.write(it.operands[0], np.repeat(np.array(found, values.dtype), WARP), it.type)


def elect(block: Block, it: Instruction) -> None:
    """elect.sync: the lowest thread that executes it."""
    first = np.argmax(by_warp(block.mask), 1)
    to, predicate = parts_of(it.operands[0])
    block.write(to, np.repeat(first, WARP).astype(np.uint32), "b32")
    block.write(predicate, block.lanes % WARP == np.repeat(first, WARP), "pred")


def waits_for(block: Block, it: Instruction) -> np.ndarray | None:
    """Return of each lane whether all that it must be executed with are there; None where it waits for none."""
    if it.has("aligned") or (it.opcode in ("bar", "barrier") and not it.has("warp")):
        return block.warp_members()
    if not it.has("sync") and not it.has("warp"):
        return None
    members = block.read(it.operands[-1], "u32").astype(np.int64)
    missing = (by_warp(block.alive & ~block.mask) << np.arange(WARP)).sum(1)
    return np.repeat(missing, WARP) & members == 0


HANDLERS = {
    "shfl": shuffle,
    "vote": vote,
    "match": match,
    "activemask": active_mask,
    "redux": reduce,
    "elect": elect,
}
