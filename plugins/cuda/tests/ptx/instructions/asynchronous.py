"""Asynchronous copies to shared memory: cp.async. Source: PTX ISA 9.7.9, "Data Movement: Asynchronous copy".

The bytes arrive when their thread waits for them. Until then what is in their place is undefined, here unwritten memory:
who forgets the wait, or copies over what others still read, gets wrong numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptx.block import Block
from ptx.errors import PtxError
from ptx.memory import UNWRITTEN
from ptx.parser import Address, Instruction, Literal
from ptx.scalars import literal


@dataclass
class Copy:
    """Hold an asynchronous copy of one instruction. data: (lanes, nbytes). group: that each lane has put it into."""

    lanes: np.ndarray
    places: np.ndarray
    data: np.ndarray
    group: np.ndarray


def copy_asynchronously(block: Block, it: Instruction) -> None:
    if it.has("commit_group"):
        block.committed[block.mask] += 1
    elif it.has("wait_group"):
        _arrive(block, int(block.read(it.operands[0], "u32")[0]))
    elif it.has("wait_all"):
        block.committed[block.mask] += 1
        _arrive(block, 0)
    elif it.has("bulk") or it.has("mbarrier"):
        raise PtxError("bulk copies and mbarriers are unknown")
    else:
        _start(block, it)


def _start(block: Block, it: Instruction) -> None:
    """Where fewer bytes are read than written, the rest are zeros."""
    to, source, size, *given_size = it.operands
    assert isinstance(to, Address)
    assert isinstance(source, Address)
    assert isinstance(size, Literal)
    nbytes = literal(size.text, "u32")
    _, places = block.checked(block.locate(to), "shared", nbytes)
    sizes = block.read(given_size[0] if given_size else size, "u32").astype(np.int64)
    block.fail(sizes > nbytes, f"more than {nbytes} bytes are copied")
    data = _read(block, block.locate(source), nbytes, sizes)
    active = block.mask
    copy = Copy(block.lanes[active], places[active], data[active], block.committed[active].copy())
    block.copies.append(copy)
    _put(block, copy.places, np.full_like(copy.data, UNWRITTEN))


def _read(block: Block, addresses: np.ndarray, nbytes: int, sizes: np.ndarray) -> np.ndarray:
    """Return (lanes, nbytes) of global memory, of which `sizes` bytes are read. Of none the address may be anything."""
    memory = block.spaces["global"]
    block.fail((addresses % nbytes != 0) & (sizes > 0), f"a misaligned copy of {nbytes} bytes", addresses)
    block.fail(memory.outside(addresses, sizes) & (sizes > 0), "a copy out of bounds of global memory", addresses)
    is_read = (np.arange(nbytes) < sizes[:, None]) & block.mask[:, None]
    places = np.where(is_read, (addresses - memory.base)[:, None] + np.arange(nbytes), 0)
    return np.where(is_read, memory.bytes[places], 0).astype(np.uint8)


def _put(block: Block, places: np.ndarray, data: np.ndarray) -> None:
    memory = block.spaces["shared"]
    memory.bytes[(places - memory.base)[:, None] + np.arange(data.shape[1])] = data


def _arrive(block: Block, most: int) -> None:
    """Write what the threads wait for: all but their `most` last groups."""
    left = []
    for copy in block.copies:
        done = block.mask[copy.lanes] & (copy.group < block.committed[copy.lanes] - most)
        _put(block, copy.places[done], copy.data[done])
        if not done.all():
            rest = ~done
            left.append(Copy(copy.lanes[rest], copy.places[rest], copy.data[rest], copy.group[rest]))
    block.copies = left


HANDLERS = {"cp": copy_asynchronously}
