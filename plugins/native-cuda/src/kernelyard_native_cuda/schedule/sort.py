"""Sort: a block of threads for each row. Tiles are sorted in shared memory, by a bitonic network, and merged in pairs.

Of every sorted run only as many records are kept as are wanted of the row. A record is a key, an integer in the order
of the values, and the place that it comes from, so that no two are equal. A few long rows are sorted by digits instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard import dims
from kernelyard.plugins.codegen_api import (
    Buffer,
    Declined,
    Stage,
    extent_of,
    position_axis,
    positions_used,
    rows_of,
    sorts,
)
from kernelyard_native_cuda.codegen.expressions import Expressions
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel, launch_where
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import finish_point
from kernelyard_native_cuda.schedule.radix_sort import RadixSort, key_at, records_of
from kernelyard_native_cuda.schedule.rule import Schedule

THREADS = 256
TILE = 1024
# A sort by digits starts more than ten kernels, which is worth it from rows of so many elements on.
LEAST_BY_DIGITS = 16 * TILE
# Fewer rows than this leave most multiprocessors without a block.
MOST_ROWS = 32


def sort(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return kernels for a first stage that sorts: by digits where few rows are long, else by tiles."""
    stage = stages[0]
    if not sorts(stage.first):
        return Declined("the stage does not sort")
    length = stage.reduce[0].extent
    if isinstance(length, int) and length <= TILE:
        return Schedule(1, _write_tiles(stage, name, ()), "one tile in shared memory")
    records = records_of(stage, name)
    tiles, reason = _write_tiles(stage, name, records), f"tiles of {TILE}, merged in pairs"
    are_long = dims.minimum(1, dims.floordiv(length, LEAST_BY_DIGITS)) if _is_worth_all_blocks(stage) else 0
    if are_long == 0:
        return Schedule(1, tiles, reason, scratch=records)
    by_digits = RadixSort(stage, f"{name}_digits", records)
    passes = by_digits.kernels()
    scratch = (*records, *by_digits.scratch)
    if are_long == 1:
        return Schedule(1, passes[0], by_digits.reason, passes[1:], scratch)
    others = tuple(launch_where(kernel, are_long) for kernel in passes)
    reason = f"{reason}; from {LEAST_BY_DIGITS} on {by_digits.reason}"
    return Schedule(1, launch_where(tiles, 1 - are_long), reason, others, scratch)


def _is_worth_all_blocks(stage: Stage) -> bool:
    """Return False where tiles keep little of each row, and there is a row for each multiprocessor."""
    wanted, rows = positions_used(stage.first), extent_of(rows_of(stage.first))
    keeps_little = isinstance(wanted, int) and wanted <= TILE
    return not keeps_little or (isinstance(rows, int) and rows <= MOST_ROWS)


def _write_tiles(stage: Stage, name: str, records: tuple[Buffer, ...]) -> WrittenKernel:
    kernel = Kernel(stage.written | {*records}, THREADS)
    _SortedRow(kernel, stage, records).write()
    return kernel.finish(name, extent_of(rows_of(stage.first)))


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
                self.writer.line(f"key = {key_at(self.kernel, self.stage, here, place)};")
            self.writer.line("keys[i] = key;")
            self.writer.line(f"places[i] = {place};")
        self.writer.line(f"sort_tile<{TILE}, {THREADS}>(keys, places);")

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
