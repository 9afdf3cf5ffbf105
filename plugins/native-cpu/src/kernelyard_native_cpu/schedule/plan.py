"""Schedule of one stage: the axis along vector lanes, and the tile of the output that stays in registers."""

from __future__ import annotations

from dataclasses import field, replace

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import ShapeError
from kernelyard.plugins.codegen_api import Buffer, ByteProduct, Expr, Load, Recurrence
from kernelyard.runtime.api import record
from kernelyard_native_cpu.machine import Compression, Machine
from kernelyard_native_cpu.schedule.record_layout import RecordLayout

# What a symbolic extent is taken to be where choices need a number.
TYPICAL_EXTENT = 224
# Lanes of the narrower versions of a loop whose length is not known.
NARROW_LANES = (4, 1)
# Tiles that one task computes from a panel: more share the cost of packing, fewer are better shared among threads.
TILES_PER_PANEL = 16


@record
class Panel:
    """An operand of a contraction, packed for one step of the vector axis: its rows are contiguous.

    operand: the copied value, a load or what is made of loads; buffer: rows of the reduced axes, each as long as the
    step. is_transposed: the load is contiguous along the reduced axis. is_kept: the buffer has all steps, packed
    before the first of the blocks of rows that read them.
    """

    operand: Expr
    buffer: Buffer
    is_transposed: bool = False
    is_kept: bool = False


@record
class Stream:
    """A load that is prefetched, where it is so many steps of an axis later: its next row is too far
    away for the processor to see it coming. is_aligned: a tile's row begins where a cache line does, or is one line.
    of_each_step: of unrolled axes, too; else of the first step of each."""

    load: Load
    axis: str
    steps: int
    is_aligned: bool
    of_each_step: bool = False


@record
class KBlocks:
    """Blocks of a reduced axis: every tile is computed along one of `depth` steps, then the next, so that what the
    tiles share is still in cache for the last of them. sums: buffer of the tiles' partial sums."""

    depth: int
    sums: Buffer


@record
class Shift:
    """Shift one factor by what is the same along the inner reduced axes: `by`, with all else that is, is
    multiplied by the sums of the other factors, `times`, which all columns share."""

    by: Expr
    times: Expr


@record
class Factored:
    """A summand split into `factor`, which is invariant along all reduced axes but the first, and `rest`: the sums of
    `rest` along these axes are multiplied by it. shift: what a zero point or a minimum adds."""

    factor: Expr
    rest: Expr
    shift: Shift | None = None


@record
class DotProduct:
    """Four products of bytes are added at a time, by an instruction (see `Machine.dot_instruction`); the reduced axis
    of the four is not walked. block: what is added for each step of the first reduced axis, where that is not the sum
    of products along the others, but made of it, `sum`. digits: a reduced axis each step of which is worth 256 times
    the one behind it: the sum so far is multiplied by that before the next step. in_16_bits: these hold the sum of
    such a step, or of a block without, by `pmaddubsw`."""

    of: ByteProduct
    instruction: str
    block: Expr | None = None
    sum: Load | None = None
    digits: str | None = None
    in_16_bits: bool = False


@record
class Sort:
    """Rows are sorted, of which the first `wanted` places are handed on, or what stands there.

    layout: of the records. value: the element at a place, where nothing else is asked of the place: records have none
    then. position: the axis that counts what is wanted; None where each point wants one place, of a row of its own.
    lanes, result_lanes: elements of a row, and places, that are worked on at once; compression: of their lanes. fill:
    so many records are sorted at first; is_whole: these are all of a row. room: so many are sorted at most. records:
    room for two times that; counters: of digits.
    """

    layout: RecordLayout
    value: Expr | None
    position: str | None
    wanted: Dim
    lanes: int
    result_lanes: int
    compression: Compression | None
    fill: Dim
    room: Dim
    is_whole: bool
    records: Buffer
    counters: Buffer

    @property
    def in_vectors(self) -> bool:
        """Records are words that vectors can sort."""
        return self.compression is not None and self.layout.words == 1


@record
class Scan:
    """Each total is the one before it, combined with an item, as the recurrence says. lanes: items of its axis that are
    scanned in a register. row: vectors of another axis, whose totals stay in the nearest cache from step to step."""

    of: Recurrence
    lanes: int = 1
    row: int = 0


@record
class Plan:
    """spatial, reduce: axes to loop over, outermost first; extents: of these (other axes of the stage stand at 0).

    vector: the axis along lanes, None for scalar code; lanes: how many; unroll: vectors of it per step.
    masked: lanes beyond the end of the axis are left out; without it, the last step is moved back to end there.
    transposed_axis: the contiguous axis of memory; square tiles of it and the vector axis are transposed in
      registers: of loads in an elementwise kernel, of results in a reduction (it is the only tile axis then).
    stream: what is prefetched. k_blocks: of the reduced axis (with one tile axis).
    panel: what is packed before a tile axis is walked. tile_scratch: holds a tile of results while it is transposed.
    tiles: axes of which several values are computed at once, with how many.
    unrolled_axes: reduced axes that are fully unrolled. factored: what is summed, where that is split.
    dot_product: what is summed of bytes, four at a time.
    sort: how rows are sorted. scan: what is carried along the reduced axis.
    least_rows: how long a symbolic tile axis must be for this plan; for_fewer_rows: others, where it is shorter.
    """

    spatial: tuple[str, ...]
    reduce: tuple[str, ...]
    extents: dict[str, Dim] = field(hash=False)
    vector: str | None = None
    lanes: int = 1
    unroll: int = 1
    tiles: tuple[tuple[str, int], ...] = ()
    masked: bool = False
    transposed_axis: str | None = None
    panel: Panel | None = None
    tile_scratch: Buffer | None = None
    stream: Stream | None = None
    k_blocks: KBlocks | None = None
    unrolled_axes: tuple[str, ...] = ()
    factored: Factored | None = None
    dot_product: DotProduct | None = None
    sort: Sort | None = None
    scan: Scan | None = None
    least_rows: int = 0
    for_fewer_rows: tuple[Plan, ...] = ()

    @property
    def reason(self) -> str:
        """The chosen schedule as text, for reports."""
        if self.sort is not None:
            if not self.sort.is_whole:
                return "the first of a row selected by a threshold"
            return "rows sorted in vectors" if self.sort.in_vectors else "rows sorted by digits"
        if self.vector is None:
            return f"totals of {self.scan.lanes} along {self.scan.of.axis} at once" if self.scan else "scalars"
        if self.scan and self.scan.row:
            return f"rows of {self.scan.row} vectors of {self.lanes} along {self.vector}"
        what = [f"{self.unroll} vectors of {self.lanes} along {self.vector}"]
        what += [f"{count} of {name} at a time" for name, count in self.tiles]
        what += ["an operand packed in panels"] if self.panel else []
        what += ["four products of bytes at a time"] if self.dot_product else []
        return ", ".join(what)

    @property
    def has_groups(self) -> bool:
        """Sums along all reduced axes but the first are made into something before they are added."""
        return self.factored is not None or (self.dot_product is not None and self.dot_product.block is not None)

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        """Buffers of a thread's own."""
        own = self.panel and self.panel.buffer, self.tile_scratch, self.k_blocks and self.k_blocks.sums
        of_sort = (self.sort.records, self.sort.counters) if self.sort else ()
        return (*(buffer for buffer in own if buffer), *of_sort)

    def narrow_to(self, lanes: int) -> Plan:
        """Return the same loops with fewer lanes; scalar code has no tiles either."""
        if lanes == 1:
            scan = replace(self.scan, row=0) if self.scan else None
            narrow = replace(self, vector=None, lanes=1, unroll=1, scan=scan)
            return replace(narrow, tiles=(), panel=None, stream=None, k_blocks=None)
        return replace(self, lanes=lanes, unroll=1, panel=None, stream=None, k_blocks=None)

    def versions(self, machine: Machine) -> tuple[Plan, ...]:
        """Return this plan, and variants for symbolic vector axes shorter than one step."""
        if self.vector is None or isinstance(self.extents[self.vector], int) or self.for_fewer_rows:
            return (self, *self.for_fewer_rows)
        if machine.has_masks:
            return (self, replace(self, unroll=1, masked=True, panel=None, stream=None, k_blocks=None))
        wanted = NARROW_LANES if self.reduce else NARROW_LANES[-1:]
        narrow = [self.narrow_to(lanes) for lanes in wanted if lanes < self.lanes]
        single = [self.narrow_to(self.lanes)] if self.least() > self.lanes else []
        return (self, *single, *narrow)

    @property
    def conditions(self) -> dict[str, int]:
        """The minimum extents of symbolic axes for this plan: of rows, and of the vector axis.

        A shorter vector axis would be computed several times.
        """
        found: dict[str, int] = {}
        if self.least_rows:
            rows = next(name for name, _ in self.tiles if not isinstance(self.extents[name], int))
            found[rows] = self.least_rows
        if self.vector is not None and not self.masked and not isinstance(self.extents[self.vector], int):
            are_tiles = self.reduce and not self.vector_is_reduced
            found[self.vector] = self.lanes * self.unroll if are_tiles else self.lanes
        return found

    @property
    def measured(self) -> str | None:
        """The axis whose length decides between versions outside of rows, where only one is symbolic."""
        return next(iter(self.conditions), self.vector)

    def least(self) -> int:
        """Return the minimum extent of that axis."""
        return self.conditions.get(str(self.measured), 0)

    @property
    def vector_is_reduced(self) -> bool:
        return self.vector in self.reduce


def size_of(dim: Dim) -> int:
    """Return a number to reckon with, at least 1: symbols count as `TYPICAL_EXTENT`."""
    try:
        return max(1, dims.evaluate(dim, dict.fromkeys(dims.symbols_of(dim), TYPICAL_EXTENT)))
    except ShapeError:  # where an open size meets a fixed one, the typical extent need not broadcast with it
        return TYPICAL_EXTENT
