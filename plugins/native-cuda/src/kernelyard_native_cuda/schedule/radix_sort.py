"""Radix sort: rows that are sorted digit by digit, the least significant first, by all blocks together.

For each byte of the keys, blocks count the digits of their tiles, the counts become the places where each tile's
records of a digit begin, and the tiles' records move there, in their order (Satish, Harris and Garland, Designing
efficient sorting algorithms for manycore GPUs, 2009). Each pass keeps the order of equal digits, so that the sort is
stable, and places need not be compared.
"""

from __future__ import annotations

from dataclasses import replace

from kernelyard import dims, dtypes
from kernelyard.plugins.codegen_api import (
    Buffer,
    Stage,
    extent_of,
    extents_of,
    position_axis,
    positions_used,
    rows_of,
)
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.expressions import Expressions
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import computed_type, is_narrow_float
from kernelyard_native_cuda.schedule.points import finish_point

DIGITS = THREADS = 256
ITEMS = 16  # of a thread
TILE = THREADS * ITEMS


def records_of(stage: Stage, name: str) -> tuple[Buffer, Buffer]:
    """Return memory for the keys and the places of all rows, in two halves that are read and written in turn."""
    shape = (*extents_of(rows_of(stage.first)), 2, stage.reduce[0].extent)
    return Buffer(f"{name}_keys", shape, "uint64", "local"), Buffer(f"{name}_places", shape, "int64", "local")


def key_at(kernel: Kernel, stage: Stage, here: Expressions, place: str) -> str:
    """Return the text of the key of an element of a row: an integer in the order that is asked for."""
    dtype = stage.first.body.dtype
    inner = kernel.expressions({**here.axes, stage.reduce[0].name: place}, here.known)
    inner.expect(stage.first.body)
    value = inner.value(stage.first.body)
    if is_narrow_float(dtype):
        value = operations.convert(value, "float32", dtype)
    sign = "~" if stage.first.reducer == "argsort_descending" else ""
    return f"{sign}sort_key(({computed_type(dtype)}){value})"


class RadixSort:
    """The kernels that sort the rows of a stage. records: see `records_of`."""

    def __init__(self, stage: Stage, name: str, records: tuple[Buffer, Buffer]) -> None:
        self.stage = stage
        self.name = name
        self.rows = rows_of(stage.first)
        self.length = stage.reduce[0].extent
        self.tiles = dims.ceildiv(self.length, TILE)
        self.bytes = _bytes_of_keys(stage.first.body.dtype)
        self.records = records
        rows = extents_of(self.rows)
        self.counts = Buffer(f"{name}_counts", (*rows, DIGITS, self.tiles), "int32", "local")
        self.totals = Buffer(f"{name}_totals", (*rows, DIGITS), "int32", "local")
        self.scratch = self.counts, self.totals
        self.reason = f"{self.bytes} digits, by all blocks together"

    def kernels(self) -> tuple[WrittenKernel, ...]:
        """Return the kernels in order: keys, three for each digit, and what becomes of the places."""
        once = self._count(), self._scan(), self._move()
        passes = tuple(self._for_digit(kernel, number) for number in range(self.bytes) for kernel in once)
        return (self._write_keys(), *passes, self._finish())

    @property
    def _digit(self) -> dims.Dim:
        """The number of a digit, one more than it is: kernels take it, and each launch says it."""
        return dims.symbol(f"{self.name}_digit")

    def _for_digit(self, kernel: WrittenKernel, number: int) -> WrittenKernel:
        """Return a launch of a kernel; its text stands before the first one."""
        arguments = tuple(number + 1 if each == self._digit else each for each in kernel.arguments)
        return replace(kernel, text="" if number else kernel.text, arguments=arguments)

    def _kernel(self, *written: Buffer) -> Kernel:
        return Kernel(frozenset(written), THREADS)

    def _each(self, kernel: Kernel, count: dims.Dim) -> str:
        """Return the name of the thread's number, where that is below a count."""
        number = kernel.writer.define("long long", f"blockIdx.x * {THREADS}ll + threadIdx.x")
        kernel.writer.line(f"if ({number} >= {kernel.dim(count)}) return;")
        return number

    def _write_keys(self) -> WrittenKernel:
        kernel, count = self._kernel(*self.records), extent_of(self.rows) * self.length
        number, length = self._each(kernel, count), kernel.dim(self.length)
        row = kernel.writer.define("long long", f"{number} / {length}")
        place = kernel.writer.define("long long", f"{number} % {length}")
        key = key_at(kernel, self.stage, kernel.expressions(kernel.axes_at(row, self.rows)), place)
        keys, places = map(kernel.tensor, self.records)
        kernel.writer.line(f"{keys}[{row} * 2 * {length} + {place}] = {key}{self._to_bytes};")
        kernel.writer.line(f"{places}[{row} * 2 * {length} + {place}] = {place};")
        return kernel.finish(f"{self.name}_keys", dims.ceildiv(count, THREADS))

    @property
    def _to_bytes(self) -> str:
        """Return what is added to keys of narrow signed integers, so that the least is 0, or the greatest ~0."""
        dtype = self.stage.first.body.dtype
        if dtype not in dtypes.SIGNED or dtype == "int64":
            return ""
        least = (1 << 63) - (1 << 8 * self.bytes - 1)
        return f" {'+' if self.stage.first.reducer == 'argsort_descending' else '-'} {least}ull"

    def _at_tile(self, kernel: Kernel) -> None:
        """Define a block's row and tile, where its elements begin, how many there are, and the digit's place."""
        line, tiles, length = kernel.writer.line, kernel.dim(self.tiles), kernel.dim(self.length)
        line(f"const long long row = blockIdx.x / {tiles}, tile = blockIdx.x % {tiles}, start = tile * {TILE};")
        line(f"const long long count = least<long long>({TILE}, {length} - start);")
        line(f"const int digit = (int)({kernel.dim(self._digit)} - 1), shift = digit * 8;")
        line(f"const long long from = row * 2 * {length} + digit % 2 * {length};")

    def _count(self) -> WrittenKernel:
        kernel = self._kernel(self.counts)
        self._at_tile(kernel)
        keys, counts, tiles = kernel.tensor(self.records[0]), kernel.tensor(self.counts), kernel.dim(self.tiles)
        to = f"row * {DIGITS} * {tiles} + tile, {tiles}"
        kernel.writer.line(f"count_tile<{THREADS}, {ITEMS}>({keys}, from + start, count, shift, {counts}, {to});")
        return kernel.finish(f"{self.name}_count", extent_of(self.rows) * self.tiles)

    def _scan(self) -> WrittenKernel:
        kernel = self._kernel(self.counts, self.totals)
        counts, totals = kernel.tensor(self.counts), kernel.tensor(self.totals)
        kernel.writer.line(f"scan_counts<{THREADS}>({counts}, {totals}, blockIdx.x, {kernel.dim(self.tiles)});")
        return kernel.finish(f"{self.name}_scan", extent_of(self.rows) * DIGITS)

    def _move(self) -> WrittenKernel:
        kernel = self._kernel(*self.records)
        self._at_tile(kernel)
        length, tiles = kernel.dim(self.length), kernel.dim(self.tiles)
        kernel.writer.line(f"const long long to = row * 2 * {length} + (1 - digit % 2) * {length};")
        tensors = ", ".join(map(kernel.tensor, self.records))
        counted = ", ".join(map(kernel.tensor, self.scratch))
        given = f"{tensors}, from, to, start, count, shift, {counted}, row, tile, {tiles}"
        kernel.writer.line(f"move_tile<{THREADS}, {ITEMS}>({given});")
        return kernel.finish(f"{self.name}_move", extent_of(self.rows) * self.tiles)

    def _finish(self) -> WrittenKernel:
        """Hand on the places at the positions that are wanted."""
        kernel, position = self._kernel(*self.stage.written), position_axis(self.stage.first)
        wanted = 1 if position is None else positions_used(self.stage.first)
        count = extent_of(self.rows) * wanted
        number = self._each(kernel, count)
        row = kernel.writer.define("long long", f"{number} / {kernel.dim(wanted)}")
        axes = kernel.axes_at(row, self.rows)
        if position is not None:
            axes[position.name] = kernel.writer.define("long long", f"{number} % {kernel.dim(wanted)}")
        here = kernel.expressions(axes)
        assert self.stage.first.arg is not None
        at = here.value(self.stage.first.arg) if position is None else axes[position.name]
        half, length, places = self.bytes % 2, kernel.dim(self.length), kernel.tensor(self.records[1])
        place = kernel.writer.define("long long", f"{places}[({row} * 2 + {half}) * {length} + {at}]")
        finish_point(kernel, here, self.stage, place)
        return kernel.finish(f"{self.name}_finish", dims.ceildiv(count, THREADS))


def _bytes_of_keys(dtype: str) -> int:
    """Return how many bytes tell keys of a dtype apart. Narrow floats are compared as float32."""
    if dtypes.is_float(dtype):
        return 8 if dtype == "float64" else 4
    return dtypes.to_numpy(dtype).itemsize
