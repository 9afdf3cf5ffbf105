"""Attention: products of queries and keys, a softmax over them, and the values weighted by it, in one kernel.

No score is stored: a block of threads has some rows of queries and goes through keys and values tile by tile, on tensor
cores. What is done to a product before the softmax (a scale, a bias, a mask) is done while it is in registers. Tiles
that a causal mask hides are skipped, and those that it does not reach are not masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.plugins.codegen_api import (
    Axis,
    Binary,
    ComputeBlock,
    Declined,
    Expr,
    IterVar,
    Load,
    Stage,
    Unary,
    element_at_zeros,
)
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import stored
from kernelyard_native_cuda.schedule.causal_mask import Mask, mask_of
from kernelyard_native_cuda.schedule.contraction import Contraction, Operand, contraction_of
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import finish_point
from kernelyard_native_cuda.schedule.rule import Schedule
from kernelyard_native_cuda.schedule.tile import Side, runs_along_sum, write_fill

WARPS = 4
ROWS = 16 * WARPS
COLUMNS = 64  # keys of a tile
MOST_DEPTH = 128  # elements of a query, and of a value
LEAST_ROWS = 16  # fewer queries are a matter of reading the keys
STAGES = 2
COUNT = 5  # stages of a function that are one kernel


@dataclass(frozen=True)
class Attention:
    """scores: of the products with what is done to them, an element of the tensor whose softmax is taken. power: an
    element of the softmax's numerator as the last stage reads it."""

    products: Contraction
    queries: Operand
    keys: Operand
    weighted: Contraction
    values: Operand
    score: Load
    power: Load
    largest: ComputeBlock
    total: ComputeBlock

    @property
    def column(self) -> IterVar:
        return self.keys.own[0]

    @property
    def dtype(self) -> str:
        return self.queries.narrow.dtype


def attention(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for five stages that are an attention."""
    found = _found(stages)
    if isinstance(found, Declined):
        return found
    reason = f"{ROWS} queries for each block, {COLUMNS} keys at a time, on tensor cores of {found.dtype}"
    return Schedule(COUNT, _write(found, name), reason)


# --- recognition ------------------------------------------------------------------------------------------------------
def _found(stages: Sequence[Stage]) -> Attention | Declined:
    if len(stages) < COUNT:
        return Declined(f"the group does not have the {COUNT} stages of an attention")
    first, largest, powers, total, last = stages[:COUNT]
    products, weighted = contraction_of(first), contraction_of(last)
    if products is None or weighted is None or not all(it.a.own and it.b.own for it in (products, weighted)):
        return Declined("the first and the last stage are not matmuls")
    score = element_at_zeros(first.blocks[-1])
    if not _is_softmax(score, largest, powers, total) or any(b.output not in first.inside for b in first.blocks[:-1]):
        return Declined("no softmax follows the first matmul")
    column = f"s{largest.first.loads[0].indices.index(Axis('r0'))}"
    keys, queries = (products.a, products.b) if products.a.own[0].name == column else (products.b, products.a)
    factors = _weight_and_values(weighted, powers)
    if factors is None:
        return Declined("the softmax is not an operand of the last matmul")
    power, values = factors
    if _is_used_elsewhere(stages):
        return Declined("an intermediate result has other users")
    found = Attention(products, queries, keys, weighted, values, score, power, largest.first, total.first)
    return _why_not(found) or found


def _weight_and_values(weighted: Contraction, powers: Stage) -> tuple[Load, Operand] | None:
    """Return the element of the softmax's numerator that is a factor of the last product, and the other factor."""
    for weight, values in ((weighted.a, weighted.b), (weighted.b, weighted.a)):
        if isinstance(weight.expr, Load) and weight.expr.buffer == powers.first.output:
            return weight.expr, values
    return None


def _is_used_elsewhere(stages: Sequence[Stage]) -> bool:
    """Return True when later stages, or callers, read what the stages of an attention hand on to one another."""
    between = {block.output for stage in stages[: COUNT - 1] for block in stage.blocks}
    read_later = {buffer for stage in stages[COUNT:] for block in stage.blocks for buffer in block.reads}
    return bool(between & read_later) or any(buffer.scope != "local" for buffer in between)


def _is_softmax(score: Load, largest: Stage, powers: Stage, total: Stage) -> bool:
    """Return True for the largest score of a row, the powers of what the others are less, and their sum."""
    if any(len(stage.blocks) != 1 or stage.first.init is not None for stage in (largest, powers, total)):
        return False
    if (largest.first.reducer, total.first.reducer, len(largest.reduce), len(total.reduce)) != ("max", "sum", 1, 1):
        return False
    found, summed = largest.first.body, total.first.body
    if not isinstance(found, Load) or not isinstance(summed, Load) or Axis("r0") not in found.indices:
        return False
    column = found.indices.index(Axis("r0"))
    rows = tuple(at for n, at in enumerate(score.indices) if n != column)
    across = (*rows[:column], Axis("r0"), *rows[column:])
    if (
        column != len(score.indices) - 1
        or found != Load(score.buffer, across)
        or element_at_zeros(largest.first).indices != rows
    ):
        return False
    power = Unary("exp", Binary("sub", score, Load(largest.first.output, rows)))
    return powers.first.body == power and summed == Load(powers.first.output, across)


def _why_not(it: Attention) -> Declined | None:
    if any(len(axes) != 1 for axes in (it.keys.own, it.values.own, it.products.reduce)):
        return Declined("keys or values have several axes")
    depths = (it.products.depth, it.values.extent)
    if not all(isinstance(depth, int) and depth <= MOST_DEPTH for depth in depths):
        return Declined(f"queries or values have more than {MOST_DEPTH} elements")
    if {it.queries.narrow.dtype, it.keys.narrow.dtype, it.values.narrow.dtype} not in ({"float16"}, {"bfloat16"}):
        return Declined("tensor cores do not support the dtypes")
    if isinstance(it.queries.extent, int) and it.queries.extent < LEAST_ROWS:
        return Declined(f"there are fewer than {LEAST_ROWS} queries")
    rows = it.power.indices[:-1]
    statistics = (it.largest.output, it.total.output)
    for block in it.weighted.stage.blocks[1:]:
        if any(load.buffer in statistics and load.indices != rows for load in block.loads):
            return Declined("a row's result depends on another row's scores")
    return Declined("the matmuls have initial accumulators") if it.products.stage.first.init else None


# --- the kernel -------------------------------------------------------------------------------------------------------
def _write(it: Attention, name: str) -> WrittenKernel:
    kernel = Kernel(it.weighted.stage.written, 32 * WARPS)
    writer, type_ = kernel.writer, stored(it.dtype)
    depth, wide = (_power_of_two(size) for size in (it.products.depth, it.values.extent))
    along = "true" if runs_along_sum(it.values, it.weighted) else "false"
    queries = Side("a", it.queries, it.queries.narrow, ROWS, depth, True, "Tile::Queries")
    keys = Side("b", it.keys, it.keys.narrow, COLUMNS, depth, True, "Tile::Keys")
    values = Side("v", it.values, it.values.narrow, wide, COLUMNS, along == "true", "Tile::Values")
    types = (f"{ROWS}, {depth}, true", f"{COLUMNS}, {depth}, true", f"{wide}, {COLUMNS}, {along}")
    tiles = ", ".join(f"SwizzledTile<{type_}, {each}>" for each in types)
    writer.line(f"typedef AttentionTile<{tiles}, {WARPS}> Tile;")
    rows = kernel.dim(queries.tiles)
    writer.line(f"const long long a_start = blockIdx.x % {rows} * {ROWS}, v_start = 0;")
    batch = kernel.axes_at(writer.define("long long", f"blockIdx.x / {rows}"), it.products.batch)
    with writer.block(""):
        writer.line("const long long k_start = 0;")
        write_fill(kernel, it.products, queries, "0", kernel.threads, batch)
    with writer.block("const auto fill = [&](int stage, long long step)"):
        writer.line("const unsigned base = Tile::Queries::BYTES + stage * Tile::STAGE;")
        with writer.block(""):
            writer.line(f"const long long b_start = step * {COLUMNS}, k_start = 0;")
            write_fill(kernel, it.products, keys, "base", kernel.threads, batch)
        with writer.block(""):
            writer.line(f"const long long k_start = step * {COLUMNS};")
            write_fill(
                kernel, it.weighted, values, "base + Tile::Keys::BYTES", kernel.threads, _batch_of_last(it, batch)
            )
    writer.line(";")
    _write_steps(kernel, it, batch)
    _write_results(kernel, it, batch)
    shared = 2 * (ROWS * depth + STAGES * COLUMNS * (depth + wide))
    return kernel.finish(name, queries.tiles * it.products.batches, shared)


def _power_of_two(size: dims.Dim) -> int:
    assert isinstance(size, int)
    return max(16, 1 << (size - 1).bit_length())


def _batch_of_last(it: Attention, axes: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the last stage's axes, given those of the products'."""
    pairs = zip(it.power.indices, it.score.indices, strict=True)
    known = {
        last.name: axes[first.name]
        for last, first in pairs
        if isinstance(last, Axis) and isinstance(first, Axis) and first.name in axes
    }
    return {**{axis.name: "0" for axis in it.weighted.stage.spatial if axis.extent == 1}, **known}


def _write_steps(kernel: Kernel, it: Attention, batch: Mapping[str, str]) -> None:
    writer = kernel.writer
    writer.line("Tile::Total all;")
    writer.line("Tile::start(all);")
    mask = mask_of(it.products.stage.blocks[-1], it.queries.own, it.column)
    with writer.block("const auto multiply = [&](int stage, long long step)"):
        _write_score(kernel, it, batch, "score", None)
        _write_score(kernel, it, batch, "whole", mask)
        last = f"step * {COLUMNS} + {COLUMNS - 1}"
        whole = [f"a_start + {ROWS} <= {kernel.dim(it.queries.extent)}", f"{last} < {kernel.dim(it.column.extent)}"]
        if mask is not None:
            whole.append(f"{last} <= a_start + {kernel.dim(mask.offset)}")
        writer.line(f"const bool is_whole = {' && '.join(whole)};")
        writer.line("Tile::step(all, 0, Tile::Queries::BYTES + stage * Tile::STAGE, score, whole, is_whole);")
    writer.line(";")
    steps = kernel.dim(dims.ceildiv(it.column.extent, COLUMNS))
    if mask is not None:  # tiles that no row of the block sees are neither read nor multiplied
        seen = writer.define("long long", f"a_start + {ROWS} + {kernel.dim(mask.offset)}")
        tiles = writer.define("long long", f"{seen} <= 0 ? 0 : ({seen} + {COLUMNS - 1}) / {COLUMNS}")
        steps = writer.define("long long", f"{tiles} < {steps} ? {tiles} : {steps}")
    writer.line(f"in_stages<{STAGES}>({steps}, fill, multiply);")


def _write_score(kernel: Kernel, it: Attention, batch: Mapping[str, str], name: str, mask: Mask | None) -> None:
    """Write what makes a score of a product: "score" where a key may be hidden, or not be there, else "whole"."""
    writer = kernel.writer
    with writer.block(f"const auto {name} = [&](float product, int in_row, int in_column)"):
        writer.line(f"const long long row = a_start + in_row, column = step * {COLUMNS} + in_column;")
        if name == "score":
            is_there = f"row < {kernel.dim(it.queries.extent)} && column < {kernel.dim(it.column.extent)}"
            writer.line(f"if (!({is_there})) return __int_as_float(0xff800000);")
        known: dict[Expr, str] = {mask.condition: "true"} if mask is not None else {}
        axes = {**batch, **kernel.axes_at("row", it.queries.own), it.column.name: "column"}
        here = kernel.expressions(axes, known)
        finish_point(
            kernel, here, it.products.stage, "product", lambda block, value: writer.line(f"return (float){value};")
        )
    writer.line(";")


def _write_results(kernel: Kernel, it: Attention, batch: Mapping[str, str]) -> None:
    writer, stage = kernel.writer, it.weighted.stage
    writer.line("const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;")
    writer.line("#pragma unroll")
    with writer.block("for (int j = 0; j < Tile::WIDE; ++j)"):
        writer.line("#pragma unroll")
        with writer.block("for (int i = 0; i < 4; ++i)"):
            writer.line("const long long row = a_start + warp * 16 + lane / 4 + i / 2 * 8;")
            writer.line("const long long value = j * 8 + lane % 4 * 2 + i % 2;")
            bounds = f"row < {kernel.dim(it.queries.extent)} && value < {kernel.dim(it.values.extent)}"
            with writer.block(f"if ({bounds})"):
                axes = _batch_of_last(it, {**batch, **kernel.axes_at("row", it.queries.own)})
                rows = it.power.indices[:-1]
                known: dict[Expr, str] = {
                    Load(it.largest.output, rows): "all.largest[i / 2]",
                    Load(it.total.output, rows): "all.total[i / 2]",
                }
                here = kernel.expressions({**axes, it.values.own[0].name: "value"}, known)
                finish_point(kernel, here, stage, writer.define("float", "all.weighted[j][i]"))
