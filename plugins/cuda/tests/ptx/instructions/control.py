"""Branches, ends, barriers of a block, assertions. Source: PTX ISA 9.7.12, 9.7.13."""

from __future__ import annotations

from ptx.block import Block
from ptx.errors import PtxError
from ptx.parser import Instruction, Symbol


def branch(block: Block, it: Instruction) -> None:
    (label,) = it.operands
    if not isinstance(label, Symbol) or label.name not in block.function.labels:
        raise PtxError(f"the label {label} is unknown")
    block.place[block.mask] = block.function.labels[label.name]


def end(block: Block, it: Instruction) -> None:
    block.alive &= ~block.mask
    block.release()


def barrier(block: Block, it: Instruction) -> None:
    if it.opcode == "bar" and it.has("warp"):  # who goes on has waited for the others
        return
    if len(it.operands) != 1 or not it.has("sync") or it.has("red"):
        raise PtxError("of barriers there are only those of all threads")
    block.barrier[block.mask] = block.read(it.operands[0], "u32")[block.mask]
    block.release()


def call(block: Block, it: Instruction) -> None:
    name = next((each.name for each in it.operands if isinstance(each, Symbol)), "")
    if name == "__assertfail":
        block.fail(block.mask, "an assertion fails")
    raise PtxError(f"the function {name or it.operands} cannot be called")


def trap(block: Block, it: Instruction) -> None:
    block.fail(block.mask, "the kernel traps")


HANDLERS = {"bra": branch, "ret": end, "exit": end, "bar": barrier, "barrier": barrier, "call": call, "trap": trap}
