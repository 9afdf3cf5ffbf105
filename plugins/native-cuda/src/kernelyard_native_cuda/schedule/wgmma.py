"""Matmul by warp groups of Hopper (sm_90a): wgmma on tiles that bulk copies of tensors (TMA) bring.

A block of threads goes through several tiles of the result (it is persistent): one warp group starts copies, the others
multiply. The epilogue of one tile overlaps with the copies of the next. Elsewhere `matmul` has the same contraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    Affine,
    Axis,
    Binary,
    Buffer,
    Const,
    Declined,
    Expr,
    Load,
    Stage,
    offset_of,
)
from kernelyard_cuda.function_info import MAP_DTYPES
from kernelyard_native_cuda.codegen import wgmma_text
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel, WrittenMap
from kernelyard_native_cuda.codegen.types import stored_type
from kernelyard_native_cuda.schedule.access import is_multiple
from kernelyard_native_cuda.schedule.contraction import Contraction, Operand, contraction_of, merge_axes
from kernelyard_native_cuda.schedule.lanes import lanes_of
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.matmul import tensor_dtype, usual
from kernelyard_native_cuda.schedule.rule import Schedule
from kernelyard_native_cuda.schedule.tile import Side, finish_sums, inside_condition, write_place

WARPGROUPS = Path(wgmma_text.__file__).with_name("warpgroups.cuh")
GROUP = 128  # threads
DEPTH = 64  # elements of the sum for each step: lines of 128 bytes
LEAST = 64  # rows, columns and elements of the sum: fewer waste most of a tile
MOST_STAGES = 8
MOST_AXES = 4  # of a tensor map
PIECE = 16  # bytes: strides of a tensor map are multiples
SLAB_COLUMNS = 64
SLAB_NBYTES = 16 * SLAB_COLUMNS * 4  # of each warp that multiplies


@dataclass(frozen=True)
class GroupShape:
    """A tile of rows and columns, made by one or two warp groups; each has 64 or 128 of the rows."""

    rows: int
    columns: int
    consumers: int

    @property
    def threads(self) -> int:
        return GROUP * (self.consumers + 1)

    @property
    def blocks(self) -> int:
        """The number of blocks that a multiprocessor is to have room for."""
        return 3 - self.consumers

    @property
    def registers(self) -> tuple[int, int]:
        """Return the registers of each thread that starts copies, and of each that multiplies."""
        return (40, 232) if self.consumers == 2 else (40, 216)

    @property
    def step_time(self) -> int:
        """The time of a step, in 32nds of a cycle: in one, a multiprocessor of an H100 multiplies 32 rows by columns,
        and is brought 64 bytes, half of a row.
        """
        return max(self.rows * self.columns, 64 * (self.rows + self.columns))

    @property
    def stage_nbytes(self) -> int:
        return (self.rows + self.columns) * DEPTH * 2

    def stages(self, machine: Machine) -> int:
        """Return the number of stages that shared memory has room for beside the slabs and the mbarriers."""
        room = machine.shared_for_half if self.blocks == 2 else machine.shared_for_block
        return min(MOST_STAGES, (room - 4 * self.consumers * SLAB_NBYTES - 128) // self.stage_nbytes)

    def shared_nbytes(self, stages: int) -> int:
        """See `WarpGroupTile`."""
        return stages * self.stage_nbytes + -(-16 * stages // 128) * 128 + 4 * self.consumers * SLAB_NBYTES


SHAPES = (
    GroupShape(128, 256, 2),
    GroupShape(256, 128, 2),
    GroupShape(128, 128, 2),
    GroupShape(128, 64, 2),
    GroupShape(64, 128, 1),
    GroupShape(64, 64, 1),
)


@dataclass(frozen=True)
class BulkOperand:
    """An operand as a tensor map has it: axes of the sum and of the rows, those along memory first, and batch axes.

    sizes, steps: of the map's axes; steps in elements. batch: the indices along the batch axes.
    """

    buffer: Buffer
    along_sum: bool
    sizes: tuple[Dim, ...]
    steps: tuple[Dim, ...]
    batch: tuple[Expr, ...]


def wgmma(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that contracts two operands which TMA can copy."""
    it = contraction_of(stages[0])
    if it is None or not it.a.own or not it.b.own:
        return Declined("the stage is not a contraction of two operands with data reuse")
    return write_warp_group_contraction(it, name, machine)


def write_warp_group_contraction(it: Contraction, name: str, machine: Machine) -> Schedule | Declined:
    """Return the kernel of a contraction, or why there is none."""
    declined = why_not_by_warp_groups(it, machine)
    if declined is not None:
        return declined
    a, b = bulk_operand(it.a, it), bulk_operand(it.b, it)
    if isinstance(a, Declined):
        return a
    if isinstance(b, Declined):
        return b
    shape = choose(it, machine)
    count = shape.stages(machine)
    reason = f"warp groups on {it.a.narrow.dtype}, tiles of {shape.rows}x{shape.columns}, {count} stages by TMA"
    return Schedule(1, write_kernel(MatrixTiling(it, a, b, shape), shape, name, machine), reason)


def why_not_by_warp_groups(it: Contraction, machine: Machine) -> Declined | None:
    """Return why warp groups do not multiply two operands, however these lie in memory; None where they may."""
    if not machine.has_wgmma:
        return Declined("the target is not sm_90 alone, or the option wgmma is off")
    if tensor_dtype(it, machine) not in MAP_DTYPES:
        return Declined("the operands are not both float16, or bfloat16, and summed up in float32")
    if not isinstance(it.depth, int) or it.depth < LEAST:
        return Declined(f"the sum is not known to have {LEAST} elements")
    if min(usual(it.a.extent), usual(it.b.extent)) < LEAST:
        return Declined(f"there are fewer than {LEAST} rows or columns")
    return None


def choose(it: Contraction, machine: Machine) -> GroupShape:
    """Return the shape whose waves of tiles take least: see `matmul`."""
    rows, columns, batches = usual(it.a.extent), usual(it.b.extent), usual(it.batches)

    def cost(shape: GroupShape) -> float:
        tiles = -(-rows // shape.rows) * -(-columns // shape.columns) * batches
        return -(-tiles // machine.multiprocessors) * shape.step_time

    return min(SHAPES, key=cost)


# --- operands ---------------------------------------------------------------------------------------------------------
def bulk_operand(operand: Operand, it: Contraction) -> BulkOperand | Declined:
    """Return an operand as TMA copies it, or why it cannot."""
    load = operand.narrow
    if not isinstance(load, Load):
        return Declined("an operand is computed as it is read, which TMA cannot")
    offset = offset_of(load.buffer, load.indices)
    of_sum, of_rows = merge_axes(it.reduce, offset), merge_axes(operand.own, offset)
    if of_sum is None or of_rows is None or 1 not in (of_sum[1], of_rows[1]) or offset.constant != 0:
        return Declined("an operand's elements are not evenly spaced, as TMA reads them")
    along_sum = of_sum[1] == 1
    first = (of_sum, of_rows) if along_sum else (of_rows, of_sum)
    batch = _batch_indices(it, operand, offset)
    if batch is None:
        return Declined("an operand's elements are not evenly spaced, as TMA reads them")
    axes = [*first, *((extent, step) for _, extent, step in batch)]
    if len(axes) > MOST_AXES:
        return Declined(f"an operand has more than {MOST_AXES - 2} batch axes")
    if not all(is_multiple(step * dtypes.itemsize(load.dtype), PIECE) for _, step in axes[1:]):
        return Declined(f"an operand's rows are not known to be a multiple of {PIECE} bytes apart, which TMA requires")
    sizes, all_steps = zip(*axes, strict=True)
    return BulkOperand(load.buffer, along_sum, sizes, all_steps, tuple(index for index, _, _ in batch))


def _batch_indices(it: Contraction, operand: Operand, offset: Affine) -> list[tuple[Expr, Dim, Dim]] | None:
    """Return the indices that pick an operand's matrix, each with its extent and step in memory; None where matrices
    are not evenly spaced.

    Heads of keys and values that several heads of queries share are picked by a quotient of an axis.
    """
    extents = {axis.name: axis.extent for axis in it.batch}
    own = {axis.name for axis in (*it.reduce, *operand.own)}
    found: list[tuple[Expr, Dim, Dim]] = []
    for index, step in offset.terms:
        match index:
            case Axis(name=name) if name in own:
                continue
            case Axis(name=name) if name in extents:
                found.append((index, extents[name], step))
            case Binary(op="floordiv", a=Axis(name=name), b=Const(value=int() as members)) if name in extents:
                found.append((index, dims.ceildiv(extents[name], members), step))
            case _:
                return None
    return found


# --- the kernel -------------------------------------------------------------------------------------------------------
class Tiling(Protocol):
    """How a contraction is shared out to tiles. steps: of the sum of each."""

    it: Contraction
    a: Side
    b: Side

    @property
    def steps(self) -> Dim: ...

    def write_tile(self, kernel: Kernel, number: str) -> dict[str, str]:
        """Write where the tile of a number begins, `a_start` and `b_start`; return the texts of the batch axes."""
        ...

    def write_copies(self, kernel: Kernel, batch: Mapping[str, str]) -> None:
        """Write `copies(base, full, step)`, which starts the copies of both operands."""
        ...

    def write_row(self, kernel: Kernel) -> str:
        """Write `a_own` for a `row` of a part `down` the tile; return the condition that it and `b_own` are there."""
        ...


class MatrixTiling:
    """Tiles of operands whose rows and elements of the sum are evenly spaced: see `Tiling`."""

    def __init__(self, it: Contraction, a: BulkOperand, b: BulkOperand, shape: GroupShape) -> None:
        self.it = it
        self.operands = (a, b)
        pairs = (("a", it.a, a, shape.rows), ("b", it.b, b, shape.columns))
        self.a, self.b = (
            Side(side, operand, operand.narrow, own, DEPTH, found.along_sum, tile_type(found, own))
            for side, operand, found, own in pairs
        )

    @property
    def steps(self) -> Dim:
        return dims.ceildiv(self.it.depth, DEPTH)

    def write_tile(self, kernel: Kernel, number: str) -> dict[str, str]:
        """See `Tiling`."""
        return write_place(kernel, self.it, self.a, self.b, number)

    def write_copies(self, kernel: Kernel, batch: Mapping[str, str]) -> None:
        """See `Tiling`."""
        (a, b), start = self.operands, "base"
        with kernel.writer.block("const auto copies = [&](unsigned base, unsigned full, int step)"):
            for type_, side, operand in (("Tile::A", self.a, a), ("Tile::B", self.b, b)):
                own, k = f"(int){side.name}_start", f"step * {DEPTH}"
                write_bulk_copies(kernel, operand, type_, side.tile, start, own, k, batch)
                start = "base + Tile::A::BYTES"
        kernel.writer.line(";")

    def write_row(self, kernel: Kernel) -> str:
        """See `Tiling`."""
        kernel.writer.line("const long long a_own = a_start + Tile::row_of(down, row);")
        return inside_condition(kernel, self.it, self.a, self.b)


def write_kernel(tiling: Tiling, shape: GroupShape, name: str, machine: Machine) -> WrittenKernel:
    """Return the kernel of a contraction."""
    it, a, b = tiling.it, tiling.a, tiling.b
    kernel = Kernel(it.stage.written, shape.threads)
    writer, stages = kernel.writer, shape.stages(machine)
    writer.line(f"typedef WarpGroupTile<{a.type}, {b.type}, {shape.consumers}, {stages}> Tile;")
    tiles = a.tiles * b.tiles * it.batches
    head = f"for (long long number = blockIdx.x; number < {kernel.dim(tiles)}; number += gridDim.x)"
    with write_producer(kernel, shape.registers, head):
        tiling.write_copies(kernel, tiling.write_tile(kernel, "number"))
        writer.line(f"Tile::fill(at, {tiling.steps}, copies);")
    with writer.block(head):
        batch = tiling.write_tile(kernel, "number")
        writer.line("Tile::Total total;")
        writer.line(f"Tile::multiply(total, at, {tiling.steps});")
        _write_slabs(kernel, tiling, batch)
    products = wgmma_text.wgmma_text(it.a.narrow.dtype, shape.columns, a.along_sum, b.along_sum)
    blocks = dims.minimum(tiles, machine.multiprocessors * shape.blocks)
    needs = (warp_groups_text(), products)
    return kernel.finish(name, blocks, shape.shared_nbytes(stages), shape.blocks, needs)


@contextmanager
def write_producer(kernel: Kernel, registers: tuple[int, int], head: str) -> Iterator[None]:
    """Write the thread that starts copies for each tile of a block; what is written within it is done for one. What is
    written after it is what the consumers do.

    registers: of each thread of the producer's group, and of each consumer. head: the loop over tiles.
    """
    writer, (give, take) = kernel.writer, registers
    writer.line("Tile::start();")
    writer.line("Tile::At at;")
    with writer.block("if (is_producer())"):
        writer.line(f"give_registers<{give}>();")
        writer.line("if (threadIdx.x != 0) return;")
        with writer.block(head):
            yield
        writer.line("return;")
    writer.line(f"take_registers<{take}>();")


@cache
def warp_groups_text() -> str:
    """Return what all kernels by warp groups use."""
    return WARPGROUPS.read_text(encoding="utf-8")


def tile_type(operand: BulkOperand, own: int) -> str:
    """Return the type of an operand's tiles in the kernel, of so many rows."""
    return f"BulkTile<{stored_type(operand.buffer.dtype)}, {own}, {str(operand.along_sum).lower()}>"


def write_bulk_copies(
    kernel: Kernel, operand: BulkOperand, tile: str, rows: int, base: str, own: str, k: str, batch: Mapping[str, str]
) -> None:
    """Write what starts the copies of a tile of an operand to a place, and has them tell the mbarrier `full`.

    tile: the name of its type, a `BulkTile` of so many rows. own, k: the texts of its first row and element of the sum.
    """
    writer = kernel.writer
    itemsize = dtypes.itemsize(operand.buffer.dtype)
    box = (DEPTH, rows if operand.along_sum else DEPTH, *(1 for _ in operand.batch))
    strides = tuple(step * itemsize for step in operand.steps[1:])
    name = kernel.map(WrittenMap(operand.buffer, operand.sizes, strides, box))
    own = f"{own} + rows"
    here = kernel.expressions(batch)
    others = [f"(int)({here.value(index)})" for index in operand.batch]
    place = ", ".join((*((k, own) if operand.along_sum else (own, k)), *others))
    with writer.block(f"{tile}::each_copy({base}, [&](unsigned place, int rows)"):
        writer.line(f"const int from[{len(box)}] = {{{place}}};")
        writer.line(f"bulk_copy(place, {name}, full, from);")
    writer.line(");")


def _write_slabs(kernel: Kernel, tiling: Tiling, batch: dict[str, str]) -> None:
    """Write the epilogue through shared memory, so that neighbours in memory belong to one thread."""
    it, writer = tiling.it, kernel.writer
    lanes = lanes_of(it.stage, it.b.own)
    across = SLAB_COLUMNS // lanes
    writer.line("#pragma unroll")
    with writer.block("for (int slab = 0; slab < Tile::DOWN * Tile::SLABS_ACROSS; ++slab)"):
        writer.line("const int down = slab / Tile::SLABS_ACROSS, right = slab % Tile::SLABS_ACROSS;")
        writer.line("Tile::Results::put(total[down], right);")
        writer.line("#pragma unroll")
        with writer.block(f"for (int part = 0; part < {across // 2}; ++part)"):
            writer.line("const int unit = part * WARP + threadIdx.x % WARP;")
            writer.line(f"const int row = unit / {across}, column = unit % {across} * {lanes};")
            writer.line(f"const long long b_own = b_start + right * {SLAB_COLUMNS} + column;")
            with writer.block(f"if ({tiling.write_row(kernel)})"):
                writer.line(f"const auto sums = Tile::Results::at<{lanes}>(row, column);")
                finish_sums(kernel, it, batch, lanes, "sums.at[{}]")
