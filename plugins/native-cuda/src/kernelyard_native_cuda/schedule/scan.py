"""Scan: running sums, products and extrema, read and written once, in tiles; a block of threads for each.

Lanes of a warp scan 32 neighbours at a time by shuffles. A tile publishes its total, and adds up those of the tiles
before it (decoupled look-back: Merrill and Garland, Single-pass parallel prefix scan, 2016). Which totals are added in
which order does not depend on who comes first, so that floats come out the same each time: a tile takes the totals of
all tiles before it in its group of 32, and what the last tile of the group before has published. Tiles are numbered as
their blocks begin, so that no block waits for one that has not begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Buffer, Declined, Recurrence, Stage, recurrence_of, step_along
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import computed_type
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import finish_point
from kernelyard_native_cuda.schedule.rule import Schedule

THREADS = 256
WARP = 32
ITEMS = 8  # of a thread
TILE = THREADS * ITEMS
# With as many rows as this and more, a thread for each row keeps a GPU busy, and neighbours of another axis are read
# together.
MOST_STRIDED_ROWS = 4096


def scan(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that scans, and one before it that resets the tiles' progress."""
    stage = stages[0]
    found = recurrence_of(stage.first)
    if found is None or len(stage.blocks) > 1:
        return Declined("the stage is no scan in which each element is the one before it combined with an item")
    length = stage.reduce[0].extent
    if isinstance(length, int) and length < WARP:
        return Declined("the scan is shorter than a warp")
    dtype = _dtype_of_totals(found)
    if dtype is None:
        return Declined("products of float64 are made in order, so that those of neighbours do not leave the range")
    if not _is_contiguous(stage, found) and not _has_few_rows(stage):
        return Declined("the scanned axis is strided, and there may be many rows")
    tiles = dims.ceildiv(length, TILE)
    progress = None if tiles == 1 else _progress(name, stage, tiles, dtype)
    kernel = _Scan(
        Kernel(stage.written | (progress.buffers if progress else frozenset()), THREADS), stage, found, dtype
    )
    kernel.write(progress)
    blocks = stage.points * tiles
    if progress is None:
        return Schedule(1, kernel.kernel.finish(name, blocks), "one tile")
    reset = _write_reset(progress, f"{name}_reset")
    scratch = (progress.marks, progress.totals, progress.prefixes)
    return Schedule(1, reset, f"tiles of {TILE}, with look-back", (kernel.kernel.finish(name, blocks),), scratch)


def _dtype_of_totals(found: Recurrence) -> str | None:
    """Return the dtype of totals of neighbours: products of floats need more range than they have."""
    if found.is_associative:
        return found.dtype
    return "float64" if found.dtype != "float64" else None


def _is_contiguous(stage: Stage, found: Recurrence) -> bool:
    return all(step_along(load, found.axis) in (1, -1, 0) for load in stage.first.loads)


def _has_few_rows(stage: Stage) -> bool:
    return isinstance(stage.points, int) and stage.points < MOST_STRIDED_ROWS


@dataclass(frozen=True)
class _Progress:
    """Hold what tiles share. marks: how many have begun, then for each how far it is: 1 with its total, 2 with the
    total up to its end. tiles: of a row.
    """

    tiles: Dim
    marks: Buffer
    totals: Buffer
    prefixes: Buffer

    @property
    def buffers(self) -> frozenset[Buffer]:
        return frozenset((self.marks, self.totals, self.prefixes))


def _progress(name: str, stage: Stage, tiles: Dim, dtype: str) -> _Progress:
    count = stage.points * tiles
    marks = Buffer(f"{name}_marks", (count + 1,), "int32", "local")
    totals, prefixes = (Buffer(f"{name}_{what}", (count,), dtype, "local") for what in ("totals", "prefixes"))
    return _Progress(tiles, marks, totals, prefixes)


def _write_reset(progress: _Progress, name: str) -> WrittenKernel:
    kernel = Kernel(frozenset((progress.marks,)), THREADS)
    (count,) = progress.marks.shape
    at = kernel.writer.define("long long", f"blockIdx.x * {THREADS}ll + threadIdx.x")
    kernel.writer.line(f"if ({at} < {kernel.dim(count)}) {kernel.tensor(progress.marks)}[{at}] = 0;")
    return kernel.finish(name, dims.ceildiv(count, THREADS))


class _Scan:
    """Writes the kernel of a scan. type: of totals."""

    def __init__(self, kernel: Kernel, stage: Stage, found: Recurrence, dtype: str) -> None:
        self.kernel = kernel
        self.writer = kernel.writer
        self.stage = stage
        self.found = found
        self.type = computed_type(dtype)
        self.operation = operations.REDUCERS[found.reducer]
        self.neutral = operations.neutral(found.reducer, dtype)
        self.length = kernel.dim(stage.reduce[0].extent)

    def write(self, progress: _Progress | None) -> None:
        """Write one tile: scan its elements, add the total of the tiles before it, store."""
        line, length = self.writer.line, self.length
        number = self._number(progress)
        tiles = self.kernel.dim(progress.tiles) if progress else "1"
        row = self.writer.define("long long", f"{number} / {tiles}")
        tile = self.writer.define("long long", f"{number} % {tiles}")
        axes = self.kernel.axes_at(row, self.stage.spatial)
        line(f"const long long start = {tile} * {TILE} + threadIdx.x / {WARP} * {WARP * ITEMS} + threadIdx.x % {WARP};")
        line(f"{self.type} values[{ITEMS}], carried = {self.neutral};")
        line("#pragma unroll")
        with self.writer.block(f"for (int i = 0; i < {ITEMS}; ++i)"):
            line(f"const long long k = start + i * {WARP};")
            line(f"{self.type} value = {self.neutral};")
            with self.writer.block(f"if (k < {length})"):
                self._read(axes)
            line(f"values[i] = {self.operation}::of(carried, lanes_scanned<{self.operation}>(value));")
            line(f"carried = of_lane(values[i], {WARP - 1});")
        line(f"{self.type} before = {self.neutral};")
        line(f"const {self.type} total = warps_scanned<{self.operation}, {THREADS}>(carried, before, {self.neutral});")
        if progress:
            marks, totals, prefixes = map(self.kernel.tensor, (progress.marks, progress.totals, progress.prefixes))
            place = f"{number}, {tile}, total, {self.neutral}"
            found = f"total_before_tile<{self.operation}>({marks}, {totals}, {prefixes}, {place})"
            line(f"before = {self.operation}::of({found}, before);")
        line("#pragma unroll")
        with self.writer.block(f"for (int i = 0; i < {ITEMS}; ++i)"):
            line(f"const long long k = start + i * {WARP};")
            with self.writer.block(f"if (k < {length})"):
                here = self.kernel.expressions({**axes, self.found.axis: "k"})
                result = f"({computed_type(self.found.dtype)}){self.operation}::of(before, values[i])"
                finish_point(self.kernel, here, self.stage, self.writer.define(computed_type(self.found.dtype), result))

    def _number(self, progress: _Progress | None) -> str:
        if progress is None:
            return "blockIdx.x"
        self.writer.line("SHARED(long long, ticket, 1);")
        self.writer.line(f"if (threadIdx.x == 0) ticket[0] = atomicAdd(&{self.kernel.tensor(progress.marks)}[0], 1);")
        self.writer.line("__syncthreads();")
        return self.writer.define("long long", "ticket[0]")

    def _read(self, axes: dict[str, str]) -> None:
        """Give `value` the element at k."""
        for head, expr in (("if (k < 1)", self.found.first), ("else", self.found.item)):
            with self.writer.block(head):
                here = self.kernel.expressions({**axes, self.found.axis: "k"})
                here.expect(expr)
                self.writer.line(f"value = {here.value(expr)};")
