"""Sort: a block of threads for each row. Tiles are sorted in shared memory, by a bitonic network, and merged in pairs.

Of every sorted run only as many records are kept as are wanted of the row. A record is a key, an integer in the order
of the values, and the place that it comes from, so that no two are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard.plugins.codegen_api import (
    Buffer,
    Declined,
    Stage,
    extent_of,
    extents_of,
    position_axis,
    positions_used,
    rows_of,
    sorts,
)
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.expressions import Expressions
from kernelyard_native_cuda.codegen.kernel import Kernel
from kernelyard_native_cuda.codegen.types import computed, is_narrow_float
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import finish_point
from kernelyard_native_cuda.schedule.rule import Schedule

THREADS = 256
TILE = 1024


def sort(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that sorts."""
    stage = stages[0]
    if not sorts(stage.first):
        return Declined("the stage does not sort")
    length = stage.reduce[0].extent
    is_short = isinstance(length, int) and length <= TILE
    rows = rows_of(stage.first)
    shape = (*extents_of(rows), 2, length)
    records = () if is_short else (Buffer(f"{name}_keys", shape, "uint64", "local"),)
    records += () if is_short else (Buffer(f"{name}_places", shape, "int64", "local"),)
    kernel = Kernel(stage.written | {*records}, THREADS)
    _SortedRow(kernel, stage, records).write()
    reason = "one tile in shared memory" if is_short else f"tiles of {TILE}, merged in pairs"
    return Schedule(1, kernel.finish(name, extent_of(rows)), reason, scratch=records)


class _SortedRow:
    """records: where the sorted runs of all rows lie, in two halves that are read and written in turn; none where a row
    is one tile.
    """

    def __init__(self, kernel: Kernel, stage: Stage, records: tuple[Buffer, ...]) -> None:
        self.kernel = kernel
        self.writer = kernel.writer
        self.stage = stage
        self.block = stage.first
        self.records = records
        self.length = stage.reduce[0].extent
        self.wanted = positions_used(stage.first)

    def write(self) -> None:
        rows = rows_of(self.block)
        row = self.kernel.define_point(rows, "blockIdx.x")
        here = self.kernel.expressions(self.kernel.axes_at(row, rows))
        self.writer.line(f"SHARED(unsigned long long, keys, {TILE});")
        self.writer.line(f"SHARED(long long, places, {TILE});")
        if not self.records:
            self._sort_tile(here, "0")
            self._finish(here, lambda position: f"places[{position}]")
            return
        keys, places = (self.kernel.tensor(buffer) for buffer in self.records)
        length, wanted = self.kernel.dim(self.length), self.kernel.dim(self.wanted)
        first = self.writer.define("long long", f"{row} * 2ll * {length}")
        kept = self.writer.define("long long", f"least<long long>({wanted}, {TILE})")
        with self.writer.block(f"for (long long start = 0; start < {length}; start += {TILE})"):
            self._sort_tile(here, "start")
            to = f"{first} + start / {TILE} * {kept} + i"
            with self.writer.block(f"for (int i = threadIdx.x; i < {kept} && start + i < {length}; i += {THREADS})"):
                self.writer.line(f"{keys}[{to}] = keys[i];")
                self.writer.line(f"{places}[{to}] = places[i];")
            self.writer.line("__syncthreads();")
        merged = f"merged_runs<{TILE}, {THREADS}>({keys}, {places}, {first}, {length}, {wanted})"
        found = self.writer.define("long long", merged)
        self._finish(here, lambda position: f"{places}[{found} + {position}]")

    def _sort_tile(self, here: Expressions, start: str) -> None:
        """Sort the tile of the row that begins at a place; what lies beyond the row comes last."""
        with self.writer.block(f"for (int i = threadIdx.x; i < {TILE}; i += {THREADS})"):
            place = self.writer.define("long long", f"{start} + i")
            self.writer.line("unsigned long long key = ~0ull;")
            with self.writer.block(f"if ({place} < {self.kernel.dim(self.length)})"):
                self.writer.line(f"key = {self._key(here, place)};")
            self.writer.line("keys[i] = key;")
            self.writer.line(f"places[i] = {place};")
        self.writer.line(f"sort_tile<{TILE}, {THREADS}>(keys, places);")

    def _key(self, here: Expressions, place: str) -> str:
        dtype = self.block.body.dtype
        inner = self.kernel.expressions({**here.axes, self.stage.reduce[0].name: place}, here.known)
        inner.expect(self.block.body)
        value = inner.value(self.block.body)
        if is_narrow_float(dtype):
            value = operations.converted(value, "float32", dtype)
        sign = "~" if self.block.reducer == "argsort_descending" else ""
        return f"{sign}sort_key(({computed(dtype)}){value})"

    def _finish(self, here: Expressions, place_at: Callable[[str], str]) -> None:
        """Hand on the places at the positions that are wanted."""
        position = position_axis(self.block)
        if position is None:
            assert self.block.arg is not None
            with self.writer.block("if (threadIdx.x == 0)"):
                place = self.writer.define("long long", place_at(here.value(self.block.arg)))
                finish_point(self.kernel, here, self.stage, place)
            return
        with self.writer.block(f"for (long long j = threadIdx.x; j < {self.kernel.dim(self.wanted)}; j += {THREADS})"):
            place = self.writer.define("long long", place_at("j"))
            inner = self.kernel.expressions({**here.axes, position.name: "j"}, here.known)
            finish_point(self.kernel, inner, self.stage, place)
