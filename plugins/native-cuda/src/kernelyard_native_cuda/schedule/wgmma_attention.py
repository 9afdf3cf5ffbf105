"""Attention by warp groups of Hopper (sm_90a): one copies queries, keys and values, the others have 64 queries each.

A block of threads goes through several tiles of queries (it is persistent). Elsewhere `attention` has the same stages.
Source: J. Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision" (2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelyard import dims
from kernelyard.plugins.codegen_api import Binary, Const, Declined, Expr, Load, Select, Stage, element_at_zeros
from kernelyard_native_cuda.codegen import wgmma_text
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.schedule.attention_stages import COUNT, Attention, attention_of, batch_of_last, write_score
from kernelyard_native_cuda.schedule.causal_mask import Mask, mask_of
from kernelyard_native_cuda.schedule.lanes import finish_lanes, lanes_of
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.matmul import usual
from kernelyard_native_cuda.schedule.rule import Schedule
from kernelyard_native_cuda.schedule.wgmma import (
    DEPTH,
    GROUP,
    SLAB_COLUMNS,
    SLAB_NBYTES,
    BulkOperand,
    bulk_operand,
    tile_type,
    warp_groups_text,
    write_bulk_copies,
    write_producer,
)

ATTENTION = Path(wgmma_text.__file__).with_name("warpgroup_attention.cuh")
CONSUMERS = 2
ROWS = 64 * CONSUMERS
COLUMNS = 128  # keys of a tile
LEAST = 64  # queries: fewer waste half of a tile
MOST_STAGES = 4  # tiles of keys or of values
REGISTERS = (24, 240)  # of each thread that starts copies, and of each that multiplies


@dataclass(frozen=True)
class Plan:
    """An attention with its operands as TMA copies them. depth, wide: elements of a query and of a value in a tile.

    scale: what products are scaled by to be scores, where that is all that is done to them; else None.
    """

    it: Attention
    queries: BulkOperand
    keys: BulkOperand
    values: BulkOperand
    depth: int
    wide: int
    mask: Mask | None
    scale: float | None

    @property
    def stage_nbytes(self) -> int:
        return COLUMNS * max(self.depth, self.wide) * 2

    def shared_nbytes(self, stages: int) -> int:
        """See `WarpGroupAttention`."""
        barriers = -(-16 * (stages + 1) // 128) * 128
        return stages * self.stage_nbytes + ROWS * self.depth * 2 + barriers + 4 * CONSUMERS * SLAB_NBYTES

    def stages(self, machine: Machine) -> int:
        """Return the number of stages that shared memory has room for."""
        return min(MOST_STAGES, (machine.shared_for_block - self.shared_nbytes(0) - 128) // self.stage_nbytes)


def wgmma_attention(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for five stages that are an attention whose operands TMA can copy."""
    if not machine.has_wgmma:
        return Declined("the target is not sm_90 alone, or the option wgmma is off")
    it = attention_of(stages)
    if isinstance(it, Declined):
        return it
    if usual(it.queries.extent) < LEAST:
        return Declined(f"there are fewer than {LEAST} queries")
    operands: list[BulkOperand] = []
    for operand, products in ((it.queries, it.products), (it.keys, it.products), (it.values, it.weighted)):
        found = bulk_operand(operand, products)
        if isinstance(found, Declined):
            return found
        operands.append(found)
    queries, keys, values = operands
    depth, wide = (-(-usual(size) // DEPTH) * DEPTH for size in (it.products.depth, it.values.extent))
    mask = mask_of(it.products.stage.blocks[-1], it.queries.own, it.column)
    plan = Plan(it, queries, keys, values, depth, wide, mask, _scale(it, mask))
    count = plan.stages(machine)
    reason = f"warp groups on {it.dtype}, {ROWS} queries, {COLUMNS} keys at a time, {count} stages by TMA"
    return Schedule(COUNT, _write(plan, count, name, machine), reason)


def _scale(it: Attention, mask: Mask | None) -> float | None:
    """Return the positive number that a product is multiplied by to be a score, where nothing else is done to it."""
    first, *rest = it.products.stage.blocks
    if len(rest) > 1:
        return None
    product = element_at_zeros(first)
    body = rest[0].body if rest else product
    if mask is not None and isinstance(body, Select):
        body = body.a
    if body == product:
        return 1.0
    match body:
        case (
            Binary(op="mul", a=a, b=Const(value=float() as scale))
            | Binary(op="mul", a=Const(value=float() as scale), b=a)
        ) if a == product and scale > 0:
            return scale
    return None


# --- the kernel -------------------------------------------------------------------------------------------------------
def _write(plan: Plan, stages: int, name: str, machine: Machine) -> WrittenKernel:
    it = plan.it
    kernel = Kernel(it.weighted.stage.written, GROUP * (CONSUMERS + 1))
    writer = kernel.writer
    types = ((plan.queries, ROWS), (plan.keys, COLUMNS), (plan.values, plan.wide))
    tiles = ", ".join(tile_type(operand, own) for operand, own in types)
    writer.line(f"typedef WarpGroupAttention<{tiles}, {plan.depth // DEPTH}, {CONSUMERS}, {stages}> Tile;")
    rows = dims.ceildiv(it.queries.extent, ROWS)
    count = rows * it.products.batches
    head = f"for (long long number = blockIdx.x; number < {kernel.dim(count)}; number += gridDim.x)"
    with write_producer(kernel, REGISTERS, head):
        batch = _write_place(kernel, plan)
        _write_copies(kernel, plan, batch)
        writer.line("Tile::fill(at, steps, copy_queries, copy_keys, copy_values);")
    with writer.block(head):
        batch = _write_place(kernel, plan)
        factor = _write_scores(kernel, plan, batch)
        writer.line("Tile::Sums all;")
        writer.line(f"Tile::attend(all, at, steps, whole, last, {factor}, score);")
        _write_results(kernel, plan, batch)
    layouts = [operand.along_sum for operand in (plan.queries, plan.keys, plan.values)]
    texts = (
        warp_groups_text(),
        _attention_text(),
        wgmma_text.wgmma_text(it.dtype, COLUMNS, layouts[0], layouts[1]),
        wgmma_text.wgmma_text(it.dtype, plan.wide, None, layouts[2]),
    )
    return kernel.finish(name, dims.minimum(count, machine.multiprocessors), plan.shared_nbytes(stages), 1, texts)


@cache
def _attention_text() -> str:
    return ATTENTION.read_text(encoding="utf-8")


def _write_place(kernel: Kernel, plan: Plan) -> dict[str, str]:
    """Write the first row of the tile of a number, and how many steps it takes; return the texts of the batch axes.

    Tiles of one matrix of keys come one after another. With a mask those come first that see most, so that the blocks
    that go on longest have the short ones at their end.
    """
    writer, it = kernel.writer, plan.it
    rows, batches = kernel.dim(dims.ceildiv(it.queries.extent, ROWS)), kernel.dim(it.products.batches)
    tile, matrix = f"number % {rows}", f"number / {rows}"
    if plan.mask is not None:
        tile, matrix = f"{rows} - 1 - number / {batches}", f"number % {batches}"
    writer.line(f"const long long a_start = ({tile}) * {ROWS};")
    batch = kernel.axes_at(writer.define("long long", matrix), it.products.batch)
    seen = kernel.dim(it.column.extent)
    if plan.mask is not None:
        last = writer.define("long long", f"a_start + {ROWS} + {kernel.dim(plan.mask.offset)}")
        seen = writer.define("long long", f"{last} < {seen} ? {last} : {seen}")
    writer.line(f"const int steps = {seen} <= {COLUMNS} ? 1 : (int)(({seen} + {COLUMNS - 1}) / {COLUMNS});")
    return batch


def _write_copies(kernel: Kernel, plan: Plan, batch: Mapping[str, str]) -> None:
    writer, values = kernel.writer, batch_of_last(plan.it, batch)
    with writer.block("const auto copy_queries = [&](unsigned base, unsigned full)"):
        _write_parts(kernel, plan.queries, "Queries", ROWS, plan.depth // DEPTH, "(int)a_start", "part * 64", batch)
    writer.line(";")
    with writer.block("const auto copy_keys = [&](unsigned base, unsigned full, int step)"):
        own = f"step * {COLUMNS}"
        _write_parts(kernel, plan.keys, "Keys", COLUMNS, plan.depth // DEPTH, own, "part * 64", batch)
    writer.line(";")
    with writer.block("const auto copy_values = [&](unsigned base, unsigned full, int step)"):
        k = f"step * {COLUMNS} + part * 64"
        _write_parts(kernel, plan.values, "Values", plan.wide, COLUMNS // DEPTH, "0", k, values)
    writer.line(";")


def _write_parts(
    kernel: Kernel, operand: BulkOperand, tile: str, rows: int, parts: int, own: str, k: str, batch: Mapping[str, str]
) -> None:
    """Write what starts the copies of an operand, in parts of 64 elements of the sum."""
    with kernel.writer.block(f"for (int part = 0; part < {parts}; ++part)"):
        base = f"base + part * Tile::{tile}::BYTES"
        write_bulk_copies(kernel, operand, f"Tile::{tile}", rows, base, own, k, batch)


def _write_scores(kernel: Kernel, plan: Plan, batch: Mapping[str, str]) -> str:
    """Write which columns the thread's rows see, and what makes a score of a product; return the text of the factor."""
    writer, it = kernel.writer, plan.it
    queries, keys = kernel.dim(it.queries.extent), kernel.dim(it.column.extent)
    writer.line("const long long first_row = a_start + Tile::row_of(threadIdx.x % WARP / 4);")
    writer.line("const long long group_start = a_start + Tile::consumer() * 64;")
    whole = keys
    if plan.mask is not None:
        seen = writer.define("long long", f"group_start + 1 + {kernel.dim(plan.mask.offset)}")
        whole = writer.define("long long", f"{seen} < {whole} ? {seen} : {whole}")
    reads = plan.scale is None  # a score may be made of what is in memory, where its row and column are
    condition = f"{whole} > 0" + (f" && group_start + 64 <= {queries}" if reads else "")
    writer.line(f"const int whole = {condition} ? (int)({whole} / {COLUMNS}) : 0;")
    writer.line("int last[2];")
    with writer.block("for (int half = 0; half < 2; ++half)"):
        writer.line("const long long row = first_row + half * 8;")
        end = f"{keys} - 1"
        if plan.mask is not None:
            seen = writer.define("long long", f"row + {kernel.dim(plan.mask.offset)}")
            end = f"({seen} < {end} ? {seen} : {end})"
        writer.line(f"last[half] = (int)({f'row < {queries} ? {end} : -1' if reads else end});")
    with writer.block("const auto score = [&](float product, int half, long long column)"):
        if plan.scale is not None:
            writer.line("return product;")
        else:
            writer.line("const long long row = first_row + half * 8;")
            write_score(kernel, it, batch, plan.mask)
    writer.line(";")
    return f"{plan.scale or 1.0!r}f * LOG2_E"


def _write_results(kernel: Kernel, plan: Plan, batch: Mapping[str, str]) -> None:
    """Write the results through shared memory, so that neighbours in memory belong to one thread."""
    writer, it = kernel.writer, plan.it
    stage = it.weighted.stage
    lanes = lanes_of(stage, it.values.own)
    across = SLAB_COLUMNS // lanes
    rows = it.power.indices[:-1]
    known: dict[Expr, str] = {Load(it.largest.output, rows): "largest", Load(it.total.output, rows): "total"}
    writer.line("#pragma unroll")
    with writer.block(f"for (int slab = 0; slab < {plan.wide // SLAB_COLUMNS}; ++slab)"):
        writer.line("Tile::Results::put(all.weighted, slab);")
        writer.line("#pragma unroll")
        with writer.block(f"for (int part = 0; part < {across // 2}; ++part)"):
            writer.line("const int unit = part * WARP + threadIdx.x % WARP;")
            writer.line(f"const int in_slab = unit / {across}, column = unit % {across} * {lanes};")
            writer.line(
                f"const long long row = a_start + Tile::row_of(in_slab), value = slab * {SLAB_COLUMNS} + column;"
            )
            writer.line("const float total = Tile::of_row(all.total, in_slab);")
            writer.line(f"const float largest = Tile::of_row(all.largest, in_slab) * {plan.scale or 1.0!r}f;")
            with writer.block(f"if (row < {kernel.dim(it.queries.extent)} && value < {kernel.dim(it.values.extent)})"):
                writer.line(f"const auto sums = Tile::Results::at<{lanes}>(in_slab, column);")
                axes = batch_of_last(it, {**batch, **kernel.axes_at("row", it.queries.own)})
                finish_lanes(kernel, stage, axes, it.values.own, "value", lanes, lambda lane: f"sums.at[{lane}]", known)
