"""Operators written by their idioms: with attributes and operands that go together, which samples have few of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from kernelyard.ir import Op, Var
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.movement_idioms import join_pieces
from kernelyard_fuzz.operators import Make, grow
from kernelyard_fuzz.sketch import Sketch
from kernelyard_fuzz.window_idioms import write_pool, write_resize
from kernelyard_fuzz.writer import RefusedError, Writer

POOLS = tuple(f"nn.{kind}_pool{axes}d" for kind in ("max", "avg") for axes in (1, 2, 3))
WRITTEN: Mapping[str, Callable[[Writer, Var], Var]] = {
    **dict.fromkeys(POOLS, write_pool),
    "image.resize": write_resize,
    "concat": join_pieces,
}


def grow_or_write(
    chooser: Chooser, sketch: Sketch, op: Op, read: Var | None, make: Make | None = None
) -> Sequence[Var]:
    """Add an operator that reads a value, as its samples say or, one of floats, as its idiom writes it; return its
    results.

    make: as `grow` takes it. Pools are one idiom: another of them may come of it.
    """
    write = WRITTEN.get(op.name)
    if write is None or read is None or not _is_tensor_of_floats(read) or chooser.chance(50):
        return grow(chooser, sketch, op, read, make=make)
    with suppress(RefusedError):
        return [write(Writer(chooser, sketch), read)]
    return []


def _is_tensor_of_floats(value: Var) -> bool:
    return value.tensor_type.dtype == "float32" and value.tensor_type.rank > 0
