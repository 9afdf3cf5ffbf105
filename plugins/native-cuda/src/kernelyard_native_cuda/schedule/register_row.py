"""RegisterRow: rows of a known length in registers: each is read once, 16 bytes at a time, whatever is reduced of it.

A thread has the same elements in every stage, so that stages hand them on without shared memory or barriers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kernelyard.plugins.codegen_api import (
    Axis,
    Buffer,
    ComputeBlock,
    Expr,
    IterVar,
    Load,
    Stage,
    axes_of,
    element_at_zeros,
    unconditional_loads,
)
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.expressions import Expressions, from_stored, to_stored
from kernelyard_native_cuda.codegen.kernel import Kernel
from kernelyard_native_cuda.codegen.types import computed_type, stored_type
from kernelyard_native_cuda.schedule.access import Access, lanes_along, lanes_in
from kernelyard_native_cuda.schedule.lanes import MOST_LANES, PIECE
from kernelyard_native_cuda.schedule.points import finish_point

MOST_THREADS = 1024
MOST_EACH = 32  # elements of a row that a thread has: registers of each tensor that is kept
FEW_PIECES = 4  # as many a thread has before there are more threads

Place = tuple[Buffer, tuple[Expr | None, ...]]  # an element of a row; None stands for the place in the row


@dataclass(frozen=True)
class RowShape:
    """A row of `size` elements, `lanes` neighbours at a time, `pieces` times by each of `threads` threads."""

    size: int
    lanes: int
    threads: int

    @property
    def pieces(self) -> int:
        return -(-self.size // (self.threads * self.lanes))

    @property
    def is_even(self) -> bool:
        """True where every thread has all its pieces."""
        return self.size % (self.threads * self.lanes) == 0


def along(stage: Stage, inner: Sequence[IterVar]) -> IterVar | None:
    """Return the one axis along which a stage goes through a row; None where there are several, or none."""
    axes = [axis for axis in (*inner, *stage.reduce) if axis.extent != 1]
    return axes[0] if len(axes) == 1 else None


def row_shape(stages: Sequence[tuple[Stage, Sequence[IterVar]]], private: frozenset[Buffer]) -> RowShape | None:
    """Return the shape of rows that stages may have in registers, each given with its axes inside of a row.

    private: buffers that no other stage touches. None where a row is not of one known length, is too long, or is read
    at other places than it is written.
    """
    if not all(is_along_rows(stage, inner) for stage, inner in stages):
        return None
    lines = [(stage, along(stage, inner)) for stage, inner in stages]
    sizes = {axis.extent for _, axis in lines if axis is not None}
    size = next(iter(sizes), None)
    if len(sizes) != 1 or not isinstance(size, int) or not _reads_where_it_writes(lines):
        return None
    lanes = _common_lanes(lines, private)
    threads = 32
    while threads < MOST_THREADS and size > threads * lanes * FEW_PIECES:
        threads *= 2
    shape = RowShape(size, lanes, threads)
    return shape if lanes > 1 and shape.pieces * lanes <= MOST_EACH else None


def is_along_rows(stage: Stage, inner: Sequence[IterVar]) -> bool:
    """Return True where one axis inside of a row is longer than 1, if any; that which is reduced, if one is."""
    axes = [axis for axis in (*inner, *stage.reduce) if axis.extent != 1]
    return len(axes) <= 1 and (not stage.reduce or all(axis in stage.reduce for axis in axes))


def _reads_where_it_writes(lines: Sequence[tuple[Stage, IterVar | None]]) -> bool:
    written: set[Buffer] = set()
    for stage, axis in lines:
        name = axis.name if axis is not None else None
        for load in stage.loads:
            if load.buffer in written and place_of(load, name) is None:
                return False
        if axis is not None and not stage.reduce:
            written |= stage.written
            if any(place_of(element_at_zeros(block), name) is None for block in stage.blocks):
                return False
    return True


def _common_lanes(lines: Sequence[tuple[Stage, IterVar | None]], private: frozenset[Buffer]) -> int:
    """Return how many neighbours are read and written at once of all that lies in memory along rows: 16 bytes of the
    narrowest, where the others are aligned to as many."""
    elements: list[tuple[Load, IterVar, Stage]] = []
    written = {block.output for stage, _ in lines for block in stage.blocks}
    for stage, axis in lines:
        if axis is not None:
            elements += [(load, axis, stage) for load in _row_loads(stage, axis) if load.buffer not in written]
        if axis is not None and not stage.reduce:
            outputs = (block for block in stage.blocks if block.output not in stage.inside | private)
            elements += [(element_at_zeros(block), axis, stage) for block in outputs]
    lanes = min(max([lanes_in(load.dtype, PIECE) for load, _, _ in elements], default=1), MOST_LANES)
    for load, axis, stage in elements:
        extents = {each.name: each.extent for each in stage.first.axes}
        lanes = max(min(lanes, lanes_along(Access(load), [axis], extents, lanes)), 1)
    return lanes


def _row_loads(stage: Stage, axis: IterVar) -> list[Load]:
    blocks = stage.blocks[:1] if stage.reduce else stage.blocks
    loads = (load for block in blocks for load in unconditional_loads(block.body, in_indices=True))
    return [load for load in dict.fromkeys(loads) if place_of(load, axis.name) is not None]


def place_of(load: Load, axis: str | None) -> Place | None:
    """Return where an element lies, whatever the axis along the row is called; None where it is not along it."""
    if not load.indices or not isinstance(load.indices[-1], Axis) or load.indices[-1].name != axis:
        return None
    before = load.indices[:-1]
    if any(axis in axes_of(index) for index in before):
        return None
    return load.buffer, (*before, None)


class RegisterRow:
    """Writes the stages of a kernel whose rows are in registers."""

    def __init__(self, kernel: Kernel, shape: RowShape, private: frozenset[Buffer]) -> None:
        self._kernel = kernel
        self._shape = shape
        self._private = private
        self._texts: dict[Place, str] = {}  # of elements that are in registers

    def emit_reduction(self, row: Expressions, stage: Stage) -> str:
        """Emit a stage's reduction of the row, and return the name of its value, which every thread gets."""
        kernel, writer, block = self._kernel, self._kernel.writer, stage.first
        assert block.reducer in operations.REDUCERS
        dtype, total = block.output.dtype, kernel.writer.fresh("total")
        writer.line(f"{computed_type(dtype)} {total} = {operations.neutral(block.reducer, dtype)};")
        axis = along(stage, ())
        assert axis is not None
        new = self._declare(stage, axis)
        with self._pieces(), self._lanes(row, stage, axis, new) as here:
            here.expect(block.body)
            writer.line(f"{total} = {operations.combine(block.reducer, total, here.value(block.body), dtype)};")
        writer.line(f"{total} = block_reduced<{operations.REDUCERS[block.reducer]}, {kernel.threads}>({total});")
        if block.init is None:
            return total
        return writer.define(
            computed_type(dtype), operations.combine(block.reducer, row.value(block.init), total, dtype)
        )

    def write(self, row: Expressions, stage: Stage, axis: IterVar) -> None:
        """Write a stage over rows, and keep values that later stages read in registers."""
        kernel, writer, shape = self._kernel, self._kernel.writer, self._shape
        kept: dict[Buffer, str] = {}
        for block in stage.blocks:
            if block.output not in stage.inside:
                name = kept[block.output] = writer.fresh("row")
                writer.line(f"{computed_type(block.output.dtype)} {name}[{shape.pieces}][{shape.lanes}];")

        def store(block: ComputeBlock, value: str) -> None:
            writer.line(f"{kept[block.output]}[piece][lane] = {value};")

        new = self._declare(stage, axis)
        with self._pieces():
            with self._lanes(row, stage, axis, new) as here:
                finish_point(kernel, here, stage, None, store)
            start = kernel.expressions({**row.axes, axis.name: "start"}, row.known)
            for block in stage.blocks:
                if block.output in kept and block.output not in self._private:
                    self._put(start, block, kept[block.output])
        for block in stage.blocks:
            place = place_of(element_at_zeros(block), axis.name)
            if block.output in kept and place is not None:
                self._texts[place] = f"{kept[block.output]}[piece][lane]"

    def _put(self, start: Expressions, block: ComputeBlock, name: str) -> None:
        writer, lanes, type_ = self._kernel.writer, self._shape.lanes, stored_type(block.output.dtype)
        results = writer.fresh("results")
        writer.line(f"Pack<{type_}, {lanes}> {results};")
        writer.line("#pragma unroll")
        value = to_stored(f"{name}[piece][lane]", block.output.dtype)
        writer.line(f"for (int lane = 0; lane < {lanes}; ++lane) {results}.at[lane] = {value};")
        offset = start.offset(block.output, block.indices)
        writer.line(f"put_pack<{lanes}, {type_}>({self._kernel.tensor(block.output)}, {offset}, {results});")

    @contextmanager
    def _pieces(self) -> Iterator[None]:
        """Write the loop over a thread's pieces; `start` is the index of a piece's first element."""
        writer, shape = self._kernel.writer, self._shape
        writer.line("#pragma unroll")
        with writer.block(f"for (int piece = 0; piece < {shape.pieces}; ++piece)"):
            writer.line(f"const int start = (piece * {shape.threads} + (int)threadIdx.x) * {shape.lanes};")
            if not shape.is_even:
                writer.line(f"if (start >= {shape.size}) continue;")
            yield

    def _declare(self, stage: Stage, axis: IterVar) -> dict[Load, str]:
        """Declare registers for what a stage is the first to read; their names."""
        writer, lanes = self._kernel.writer, self._shape.lanes
        new: dict[Load, str] = {}
        for load in _row_loads(stage, axis):
            place = place_of(load, axis.name)
            if place is not None and place not in self._texts:
                name = new[load] = writer.fresh("row")
                writer.line(f"Pack<{stored_type(load.dtype)}, {lanes}> {name}[{self._shape.pieces}];")
                self._texts[place] = from_stored(f"{name}[piece].at[lane]", load.dtype)
        return new

    @contextmanager
    def _lanes(self, row: Expressions, stage: Stage, axis: IterVar, new: Mapping[Load, str]) -> Iterator[Expressions]:
        """Write the loop over the elements of a piece; `new` are the loads made before it, and the variables that take
        them.
        """
        kernel, writer, shape = self._kernel, self._kernel.writer, self._shape
        known: dict[Expr, str] = dict(row.known)
        start = kernel.expressions({**row.axes, axis.name: "start"}, row.known)
        for load in _row_loads(stage, axis):
            place = place_of(load, axis.name)
            assert place is not None
            known[load] = self._texts[place]
        for load, name in new.items():
            type_, offset = stored_type(load.dtype), start.offset(load.buffer, load.indices)
            tensor = kernel.tensor(load.buffer)
            writer.line(f"{name}[piece] = pack_at<{shape.lanes}, {type_}>({tensor}, {offset});")
        writer.line("#pragma unroll")
        with writer.block(f"for (int lane = 0; lane < {shape.lanes}; ++lane)"):
            at = writer.define("long long", "start + lane")
            yield kernel.expressions({**row.axes, axis.name: at}, known, row.kept)
