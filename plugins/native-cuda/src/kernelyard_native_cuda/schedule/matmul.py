"""Matmul: sums of products of operands that are used again and again: matrix products and convolutions.

A block of threads makes a tile of the result. What the tile needs of both operands goes to shared memory piece by
piece, and each thread keeps some elements of the tile in registers. Operands are expressions: a convolution's padding
is a condition in one (implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.tir import Binary, ComputeBlock, Expr, IterVar, Load
from kernelyard.tir.primfunc import walk
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.expressions import Expressions
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import computed, literal
from kernelyard_native_cuda.schedule.points import finish_point
from kernelyard_native_cuda.schedule.rule import Schedule
from kernelyard_native_cuda.schedule.stage import Stage, axes_of, extent_of, step_along

SIDE = 16  # of the square of threads
THREADS = SIDE * SIDE
DEPTH = 16  # how much of the sum a piece has
MOST_PER_THREAD = 4  # elements along each side


@dataclass(frozen=True)
class Operand:
    """One factor: rows of it are picked by its `own` axes, which the other factor does not have.

    per_thread: how many of these a thread takes, `SIDE` apart.
    """

    expr: Expr
    own: tuple[IterVar, ...]
    per_thread: int
    tile_name: str

    @property
    def extent(self) -> Dim:
        return extent_of(self.own)

    @property
    def tile(self) -> int:
        """How many of its rows a block of threads takes."""
        return SIDE * self.per_thread

    @property
    def tiles(self) -> Dim:
        return dims.ceildiv(self.extent, self.tile)


@dataclass(frozen=True)
class Contraction:
    """`sum over reduce axes of a * b`; the batch axes pick from both, or from none."""

    a: Operand
    b: Operand
    batch: tuple[IterVar, ...]
    stage: Stage

    @property
    def depth(self) -> Dim:
        return extent_of(self.stage.reduce)

    @property
    def blocks(self) -> Dim:
        return self.a.tiles * self.b.tiles * extent_of(self.batch)


def matmul(stages: Sequence[Stage], name: str) -> Schedule | None:
    """A kernel for a first stage that contracts two operands."""
    found = contraction_of(stages[0])
    return None if found is None else Schedule(1, _write(found, name))


def contraction_of(stage: Stage) -> Contraction | None:
    """A stage as a contraction; None where it is none."""
    block = stage.first
    body = block.body
    if block.reducer != "sum" or not block.reduce_axes or not (isinstance(body, Binary) and body.op == "mul"):
        return None
    if not _loads(body.a) or not _loads(body.b) or block.output.dtype == "bool" or block.output in block.reads:
        return None
    of_a, of_b = axes_of(body.a), axes_of(body.b)
    spatial = [axis for axis in stage.spatial if axis.extent != 1]
    own_a = tuple(axis for axis in spatial if axis.name in of_a - of_b)
    own_b = tuple(axis for axis in spatial if axis.name in of_b - of_a)
    if not own_a or not own_b:
        return None
    batch = tuple(axis for axis in stage.spatial if axis not in (*own_a, *own_b))
    return Contraction(_operand(body.a, own_a, "a_tile"), _operand(body.b, own_b, "b_tile"), batch, stage)


def _operand(expr: Expr, own: tuple[IterVar, ...], tile_name: str) -> Operand:
    extent = extent_of(own)
    per_thread = MOST_PER_THREAD
    while isinstance(extent, int) and per_thread > 1 and extent <= SIDE * per_thread // 2:
        per_thread //= 2
    return Operand(expr, own, per_thread, tile_name)


def _loads(expr: Expr) -> bool:
    return any(isinstance(e, Load) for e in walk(expr))


def _write(it: Contraction, name: str) -> WrittenKernel:
    kernel = Kernel(it.stage.written, THREADS)
    writer = kernel.writer
    dtype = it.stage.first.output.dtype
    tiles_a, tiles_b = kernel.dim(it.a.tiles), kernel.dim(it.b.tiles)
    writer.line(f"const long long b_start = blockIdx.x % {tiles_b} * {it.b.tile};")
    writer.line(f"const long long a_start = blockIdx.x / {tiles_b} % {tiles_a} * {it.a.tile};")
    writer.line(f"const int a_thread = threadIdx.x / {SIDE}, b_thread = threadIdx.x % {SIDE};")
    batch = kernel.axes_at(writer.define("long long", f"blockIdx.x / ({tiles_a} * {tiles_b})"), it.batch)
    for operand in (it.a, it.b):  # a column more than is used: threads that write down a column meet different banks
        writer.line(f"SHARED({computed(dtype)}, {operand.tile_name}, {DEPTH * (operand.tile + 1)});")
    writer.line(f"{computed(dtype)} total[{it.a.per_thread}][{it.b.per_thread}] = {{}};")
    with writer.block(f"for (long long k_start = 0; k_start < {kernel.dim(it.depth)}; k_start += {DEPTH})"):
        for operand, start in ((it.a, "a_start"), (it.b, "b_start")):
            _fill(kernel, operand, start, it, batch)
        writer.line("__syncthreads();")
        _multiply(kernel, it)
        writer.line("__syncthreads();")
    _finish(kernel, it, batch)
    return kernel.finish(name, it.blocks)


def _fill(kernel: Kernel, operand: Operand, start: str, it: Contraction, batch: dict[str, str]) -> None:
    """Copy a piece of an operand into its tile; neighbouring threads take what are neighbours in memory."""
    writer, block = kernel.writer, it.stage.first
    dtype = computed(block.output.dtype)
    with writer.block(f"for (int i = threadIdx.x; i < {DEPTH * operand.tile}; i += {THREADS})"):
        if _runs_along_sum(operand, block):
            writer.line(f"const int row = i / {DEPTH}, column = i % {DEPTH};")
        else:
            writer.line(f"const int row = i % {operand.tile}, column = i / {operand.tile};")
        writer.line(f"const long long own = {start} + row, k = k_start + column;")
        writer.line(f"{dtype} element = {literal(0, block.output.dtype)};")
        with writer.block(f"if (own < {kernel.dim(operand.extent)} && k < {kernel.dim(it.depth)})"):
            axes = {**batch, **kernel.axes_at("own", operand.own), **kernel.axes_at("k", it.stage.reduce)}
            here = kernel.expressions(axes)
            here.expect(operand.expr)
            writer.line(f"element = {here.value(operand.expr)};")
        writer.line(f"{operand.tile_name}[column * {operand.tile + 1} + row] = element;")


def _runs_along_sum(operand: Operand, block: ComputeBlock) -> bool:
    """True when neighbours in memory are summed, not different rows."""
    extents = {axis.name: axis.extent for axis in block.axes}
    last = [axis.name for axis in block.reduce_axes if axis.extent != 1][-1:]
    loads = [e for e in walk(operand.expr) if isinstance(e, Load)]
    return any(step_along(load, name, extents) == 1 for load in loads for name in last)


def _multiply(kernel: Kernel, it: Contraction) -> None:
    writer, dtype = kernel.writer, it.stage.first.output.dtype
    with writer.block(f"for (int k = 0; k < {DEPTH}; ++k)"):
        for operand, thread in ((it.a, "a_thread"), (it.b, "b_thread")):
            values = f"{operand.tile_name}_values"
            writer.line(f"{computed(dtype)} {values}[{operand.per_thread}];")
            place = f"k * {operand.tile + 1} + {thread} + {SIDE} * i"
            writer.line("#pragma unroll")
            writer.line(f"for (int i = 0; i < {operand.per_thread}; ++i) {values}[i] = {operand.tile_name}[{place}];")
        product = operations.binary("mul", "a_tile_values[i]", "b_tile_values[j]", dtype)
        writer.line("#pragma unroll")
        with writer.block(f"for (int i = 0; i < {it.a.per_thread}; ++i)"):
            writer.line("#pragma unroll")
            total = operations.combined("sum", "total[i][j]", product, dtype)
            writer.line(f"for (int j = 0; j < {it.b.per_thread}; ++j) total[i][j] = {total};")


def _finish(kernel: Kernel, it: Contraction, batch: dict[str, str]) -> None:
    """What follows the sum, for each element that a thread has."""
    writer, block = kernel.writer, it.stage.first
    writer.line("#pragma unroll")
    with writer.block(f"for (int i = 0; i < {it.a.per_thread}; ++i)"):
        writer.line("#pragma unroll")
        with writer.block(f"for (int j = 0; j < {it.b.per_thread}; ++j)"):
            writer.line(f"const long long a_own = a_start + a_thread + {SIDE} * i;")
            writer.line(f"const long long b_own = b_start + b_thread + {SIDE} * j;")
            with writer.block(f"if (a_own < {kernel.dim(it.a.extent)} && b_own < {kernel.dim(it.b.extent)})"):
                own = {**kernel.axes_at("a_own", it.a.own), **kernel.axes_at("b_own", it.b.own)}
                here = kernel.expressions({**batch, **own})
                finish_point(kernel, here, it.stage, _total(here, block))


def _total(here: Expressions, block: ComputeBlock) -> str:
    if block.init is None:
        return here.writer.define(computed(block.output.dtype), "total[i][j]")
    start = here.value(block.init)
    return here.writer.define(
        computed(block.output.dtype), operations.combined("sum", start, "total[i][j]", block.output.dtype)
    )
