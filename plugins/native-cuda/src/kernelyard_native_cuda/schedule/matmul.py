"""Matmul: contractions of two operands with data reuse: matmuls and convolutions.

A block of threads makes a tile of the result: on tensor cores where they have the operands' dtype, else on CUDA cores.
What the tile needs of both operands is copied to shared memory step by step, ahead of use. Operands are expressions: a
convolution's padding is a condition in one (implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.errors import ShapeError
from kernelyard.plugins.codegen_api import Declined, Stage
from kernelyard_native_cuda.codegen.kernel import MOST_INT, Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import computed_type, stored_type
from kernelyard_native_cuda.schedule.contraction import Contraction, contraction_of
from kernelyard_native_cuda.schedule.lanes import lanes_of
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.rule import Schedule
from kernelyard_native_cuda.schedule.tile import (
    Side,
    finish_sums,
    inside_condition,
    runs_along_sum,
    write_fill,
    write_place,
)
from kernelyard_native_cuda.schedule.window_copies import window_copies

WARP = 32
REGISTERS = 1 << 16  # of a multiprocessor
MOST_STAGES = 4
STAGES_OF_FEW_ROWS = 8  # memory, not work, is what a tile of the fewest rows waits for
FEWEST = 16  # rows, or columns, of a tile on tensor cores
USUAL = 256  # what a size is taken to be that is not known


@dataclass(frozen=True)
class TensorShape:
    """A tile on tensor cores: rows and columns, and how many warps share each out."""

    rows: int
    columns: int
    warps_down: int
    warps_across: int

    @property
    def threads(self) -> int:
        return WARP * self.warps_down * self.warps_across

    @property
    def efficiency(self) -> float:
        """Relative efficiency of the work on an element: it grows with how often a warp uses what it loads."""
        return _reuse(self.rows // self.warps_down, self.columns // self.warps_across) / 32


@dataclass(frozen=True)
class PlainShape:
    """A tile on CUDA cores: rows and columns, and how many of each a thread has."""

    rows: int
    columns: int
    each_down: int
    each_across: int

    @property
    def threads(self) -> int:
        return self.rows // self.each_down * (self.columns // self.each_across)

    @property
    def efficiency(self) -> float:
        """See `TensorShape.efficiency`."""
        return _reuse(self.each_down, self.each_across) / 4


def _reuse(rows: int, columns: int) -> float:
    return rows * columns / (rows + columns)


Shape = TypeVar("Shape", TensorShape, PlainShape)
TENSOR_SHAPES = (
    TensorShape(128, 128, 2, 2),
    TensorShape(128, 64, 2, 2),
    TensorShape(64, 128, 2, 2),
    TensorShape(64, 64, 2, 2),
    TensorShape(32, 128, 1, 4),
    TensorShape(128, 32, 4, 1),
    TensorShape(32, 32, 2, 2),
    TensorShape(16, 128, 1, 4),
    TensorShape(128, 16, 4, 1),
    TensorShape(16, 64, 1, 4),
    TensorShape(64, 16, 4, 1),
)
FEW_ROWS = tuple(shape for shape in TENSOR_SHAPES if shape.rows == FEWEST)
PLAIN_SHAPES = (
    PlainShape(128, 128, 8, 8),
    PlainShape(128, 64, 8, 4),
    PlainShape(64, 128, 4, 8),
    PlainShape(64, 64, 4, 4),
    PlainShape(32, 64, 2, 4),
    PlainShape(64, 32, 4, 2),
    PlainShape(32, 32, 2, 2),
    PlainShape(16, 64, 1, 4),
    PlainShape(64, 16, 4, 1),
    PlainShape(16, 16, 1, 1),
)


def matmul(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that contracts two operands."""
    it = contraction_of(stages[0])
    if it is None:
        return Declined("the stage is not a contraction of two operands")
    if not it.a.own or not it.b.own:
        return Declined("an operand has no axis of its own, so that there is no data reuse")
    return write_contraction(it, name, machine)


def write_contraction(it: Contraction, name: str, machine: Machine, has_few_rows: bool = False) -> Schedule:
    """Return the kernel of a contraction.

    has_few_rows: whether the first operand has no more than the smallest tile, and there are tensor cores for it.
    """
    dtype = tensor_dtype(it, machine)
    if dtype is None:
        plain = _choose(it, PLAIN_SHAPES, machine)
        return Schedule(1, _write_plain(it, plain, name, machine), f"CUDA cores, tiles of {plain.rows}x{plain.columns}")
    tensor = _choose_tensor(it, machine, has_few_rows)
    reason = f"tensor cores of {dtype}, tiles of {tensor.rows}x{tensor.columns}"
    return Schedule(1, _write_tensor(it, tensor, name, machine), reason)


def tensor_dtype(it: Contraction, machine: Machine) -> str | None:
    """Return the dtype of both operands, where tensor cores multiply it and sum up as the contraction does."""
    a, b, total = it.a.narrow.dtype, it.b.narrow.dtype, it.stage.first.output.dtype
    if a != b:
        return None
    if a in ("float16", "bfloat16") and total == "float32":
        return a
    if a == "int8" and total in ("int8", "int32"):  # a sum that wraps may wrap at its end
        return a
    return "tf32" if a == total == "float32" and machine.allows_tf32 else None


def tiles_of(it: Contraction, machine: Machine, has_few_rows: bool = False) -> int:
    """Estimate how many thread blocks the contraction occupies. has_few_rows: as of `write_contraction`."""
    is_plain = tensor_dtype(it, machine) is None
    shape = _choose(it, PLAIN_SHAPES, machine) if is_plain else _choose_tensor(it, machine, has_few_rows)
    return -(-usual(it.a.extent) // shape.rows) * -(-usual(it.b.extent) // shape.columns) * usual(it.batches)


def usual(dim: Dim) -> int:
    """Return a size as tiles are chosen for it."""
    try:
        return max(1, dims.evaluate(dim, dict.fromkeys(dims.symbols_of(dim), USUAL)))
    except ShapeError:  # where an open size meets a fixed one, the usual one need not broadcast with it
        return USUAL


def _choose_tensor(it: Contraction, machine: Machine, has_few_rows: bool) -> TensorShape:
    return _choose(it, FEW_ROWS, machine, FEWEST) if has_few_rows else _choose(it, TENSOR_SHAPES, machine)


def _choose(it: Contraction, shapes: Sequence[Shape], machine: Machine, most_rows: int = MOST_INT) -> Shape:
    """Return the shape whose waves of tiles take least: a multiprocessor makes one tile at a time."""
    rows, columns, batches = min(usual(it.a.extent), most_rows), usual(it.b.extent), usual(it.batches)
    wide = dtypes.itemsize(it.stage.first.output.dtype) > 4

    def cost(shape: Shape) -> float:
        tiles = -(-rows // shape.rows) * -(-columns // shape.columns) * batches
        return -(-tiles // machine.multiprocessors) * shape.rows * shape.columns / shape.efficiency

    fitting = [shape for shape in shapes if not wide or shape.rows * shape.columns <= 64 * 64]
    return min(fitting, key=cost)


def _stages(stage_nbytes: int, machine: Machine, most: int = MOST_STAGES) -> int:
    return max(2, min(most, machine.shared_for_half // stage_nbytes))


# --- tensor cores -----------------------------------------------------------------------------------------------------
def _write_tensor(it: Contraction, shape: TensorShape, name: str, machine: Machine) -> WrittenKernel:
    dtype = it.a.narrow.dtype
    line = 128 if 3 * 128 * (shape.rows + shape.columns) <= machine.shared_for_half else 64
    if usual(it.depth) * dtypes.itemsize(dtype) <= 64:
        line = 64
    depth = line // dtypes.itemsize(dtype)
    most = STAGES_OF_FEW_ROWS if FEWEST in (shape.rows, shape.columns) else MOST_STAGES
    stages = _stages(line * (shape.rows + shape.columns), machine, most)
    total_nbytes = 16 * shape.warps_down * (shape.columns + 8) * 4
    kernel = Kernel(it.stage.written, shape.threads)
    sides: list[Side] = []
    for side, operand, own in (("a", it.a, shape.rows), ("b", it.b, shape.columns)):
        along = dtypes.itemsize(dtype) != 2 or runs_along_sum(operand, it)
        type_ = f"SwizzledTile<{stored_type(dtype)}, {own}, {depth}, {'true' if along else 'false'}>"
        sides.append(Side(side, operand, operand.narrow, own, depth, along, type_))
    a, b = sides
    writer = kernel.writer
    writer.line(f"typedef TensorTile<{a.type}, {b.type}, {shape.warps_down}, {shape.warps_across}> Tile;")
    batch = write_place(kernel, it, a, b)
    _write_sum(kernel, it, a, b, stages, batch)
    _write_slabs(kernel, it, a, b, batch)
    shared = max(stages * line * (shape.rows + shape.columns), total_nbytes)
    return kernel.finish(name, a.tiles * b.tiles * it.batches, shared, 2 if shared <= machine.shared_for_half else 0)


def _write_sum(kernel: Kernel, it: Contraction, a: Side, b: Side, stages: int, batch: dict[str, str]) -> None:
    writer = kernel.writer
    writer.line("Tile::Total total = {};")
    copies = [window_copies(it, side, kernel.threads) for side in (a, b)]
    for each in copies:
        if each is not None:
            each.write_rows(kernel, batch)
    with writer.block("const auto fill = [&](int stage, long long step)"):
        writer.line(f"const long long k_start = step * {a.depth};")
        bases = ("stage * Tile::STAGE", "stage * Tile::STAGE + Tile::A::BYTES")
        for side, base, each in zip((a, b), bases, copies, strict=True):
            with writer.block(""):
                if each is not None:
                    each.write_step(kernel, base)
                else:
                    write_fill(kernel, it, side, base, kernel.threads, batch)
    writer.line(";")
    steps = kernel.dim(dims.ceildiv(it.depth, a.depth))
    multiply = "[&](int stage, long long) { Tile::multiply(total, stage * Tile::STAGE); }"
    writer.line(f"in_stages<{stages}>({steps}, fill, {multiply});")


def _write_slabs(kernel: Kernel, it: Contraction, a: Side, b: Side, batch: dict[str, str]) -> None:
    """Write the epilogue through shared memory, so that neighbours in memory belong to one thread."""
    writer, lanes = kernel.writer, lanes_of(it.stage, it.b.own)
    writer.line("#pragma unroll")
    with writer.block("for (int slab = 0; slab < Tile::DOWN; ++slab)"):
        writer.line("Tile::put_slab(total[slab]);")
        writer.line("__syncthreads();")
        head = f"for (int unit = threadIdx.x; unit < Tile::SLAB_ROWS * {b.tile // lanes}; unit += {kernel.threads})"
        with writer.block(head):
            writer.line(f"const int row = unit / {b.tile // lanes}, column = unit % {b.tile // lanes} * {lanes};")
            writer.line("const long long a_own = a_start + Tile::row_of(slab, row), b_own = b_start + column;")
            with writer.block(f"if ({inside_condition(kernel, it, a, b)})"):
                writer.line(f"const auto sums = Tile::slab_at<{lanes}>(row, column);")
                finish_sums(kernel, it, batch, lanes, "sums.at[{}]")
        writer.line("__syncthreads();")


# --- CUDA cores -------------------------------------------------------------------------------------------------------
def _write_plain(it: Contraction, shape: PlainShape, name: str, machine: Machine) -> WrittenKernel:
    dtype = it.stage.first.output.dtype
    size = 4 if dtypes.is_float(dtype) and dtype != "float64" else dtypes.itemsize(dtype)
    depth = 64 // max(size, 4)
    kernel = Kernel(it.stage.written, shape.threads)
    sides: list[Side] = []
    stage_nbytes = 0
    for side, operand, own in (("a", it.a, shape.rows), ("b", it.b, shape.columns)):
        stage_nbytes += (own * size + 16) * depth
        type_ = f"PlainTile<{computed_type(dtype)}, {own}, {depth}>"
        sides.append(Side(side, operand, operand.expr, own, depth, False, type_))
    a, b = sides
    stages = min(_stages(stage_nbytes, machine), 3)
    writer = kernel.writer
    writer.line(f"typedef PlainTiles<{a.type}, {b.type}, {shape.each_down}, {shape.each_across}> Tile;")
    batch = write_place(kernel, it, a, b)
    _write_sum(kernel, it, a, b, stages, batch)
    pack = min(shape.each_across, 16 // size)
    lanes = min(lanes_of(it.stage, it.b.own), pack)
    writer.line("#pragma unroll")
    with writer.block(f"for (int i = 0; i < {shape.each_down}; ++i)"):
        writer.line("#pragma unroll")
        with writer.block(f"for (int j = 0; j < {shape.each_across}; j += {lanes})"):
            writer.line("const long long a_own = a_start + Tile::row_of(i), b_own = b_start + Tile::column_of(j);")
            with writer.block(f"if ({inside_condition(kernel, it, a, b)})"):
                finish_sums(kernel, it, batch, lanes, "total[i][j + {}]")
    room = 2 if shape.threads * 128 * 2 <= REGISTERS else 0
    return kernel.finish(name, a.tiles * b.tiles * it.batches, stages * stage_nbytes, room)
