"""Attention: products of queries and keys, a softmax over them, and the values weighted by it, in one kernel.

No score is stored: a block of threads has some rows of queries and goes through keys and values tile by tile, on tensor
cores. What is done to a product before the softmax (a scale, a bias, a mask) is done while it is in registers. Tiles
that a causal mask hides are skipped, and those that it does not reach are not masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelyard import dims
from kernelyard.plugins.codegen_api import Declined, Expr, Load, Stage
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import stored_type
from kernelyard_native_cuda.schedule.attention_stages import COUNT, Attention, attention_of, batch_of_last, write_score
from kernelyard_native_cuda.schedule.causal_mask import Mask, mask_of
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.points import finish_point
from kernelyard_native_cuda.schedule.rule import Schedule
from kernelyard_native_cuda.schedule.tile import Side, runs_along_sum, write_fill

WARPS = 4
ROWS = 16 * WARPS
COLUMNS = 64  # keys of a tile
STAGES = 2


def attention(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for five stages that are an attention."""
    found = attention_of(stages)
    if isinstance(found, Declined):
        return found
    reason = f"{ROWS} queries for each block, {COLUMNS} keys at a time, on tensor cores of {found.dtype}"
    return Schedule(COUNT, _write(found, name), reason)


# --- the kernel -------------------------------------------------------------------------------------------------------
def _write(it: Attention, name: str) -> WrittenKernel:
    kernel = Kernel(it.weighted.stage.written, 32 * WARPS)
    writer, type_ = kernel.writer, stored_type(it.dtype)
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
                kernel, it.weighted, values, "base + Tile::Keys::BYTES", kernel.threads, batch_of_last(it, batch)
            )
    writer.line(";")
    _write_steps(kernel, it, batch)
    _write_results(kernel, it, batch)
    shared = 2 * (ROWS * depth + STAGES * COLUMNS * (depth + wide))
    return kernel.finish(name, queries.tiles * it.products.batches, shared)


def _power_of_two(size: dims.Dim) -> int:
    assert isinstance(size, int)
    return max(16, 1 << (size - 1).bit_length())


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
        write_score(kernel, it, batch, mask)
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
                axes = batch_of_last(it, {**batch, **kernel.axes_at("row", it.queries.own)})
                rows = it.power.indices[:-1]
                known: dict[Expr, str] = {
                    Load(it.largest.output, rows): "all.largest[i / 2]",
                    Load(it.total.output, rows): "all.total[i / 2]",
                }
                here = kernel.expressions({**axes, it.values.own[0].name: "value"}, known)
                finish_point(kernel, here, stage, writer.define("float", "all.weighted[j][i]"))
