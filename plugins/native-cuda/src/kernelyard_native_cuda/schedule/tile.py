"""Code shared by tiled matmul kernels: each block's tile, copies of operands to shared memory, and the epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Expr, IterVar, step_along
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.expressions import to_stored
from kernelyard_native_cuda.codegen.kernel import Kernel
from kernelyard_native_cuda.codegen.types import computed_type, is_narrow_float, stored_type
from kernelyard_native_cuda.schedule.access import access_of, lanes_along, lanes_in
from kernelyard_native_cuda.schedule.contraction import Contraction, Operand, loads_of
from kernelyard_native_cuda.schedule.lanes import finish_lanes

PIECE = 16  # the most bytes that are copied at once
LEAST_PIECE = 4
MOST_UNROLLED = 8  # copies by a thread that are unrolled: each holds registers
BAND = 8  # tiles of a column that neighbouring blocks make, so that they find the same rows of b in the cache


@dataclass(frozen=True)
class Side:
    """An operand in tiles of `tile` rows and `depth` elements of the sum.

    expr: what the tile holds. along_sum: neighbours in a line of the tile are neighbours along the sum. type: the name
    of the tile's type in the kernel.
    """

    name: str
    operand: Operand
    expr: Expr
    tile: int
    depth: int
    along_sum: bool
    type: str

    @property
    def tiles(self) -> Dim:
        """The number of tiles along the rows."""
        return dims.ceildiv(self.operand.extent, self.tile)


def runs_along_sum(operand: Operand, it: Contraction) -> bool:
    """Return True where neighbours in memory are summed, not different rows."""

    def are_neighbours(axes: Sequence[IterVar]) -> bool:
        return any(step_along(load, axis.name) == 1 for load in loads_of(operand.expr) for axis in axes[-1:])

    return are_neighbours(it.reduce) and not are_neighbours(operand.own)


def extents_of(it: Contraction) -> dict[str, Dim]:
    """Return the extents of all axes by name."""
    return {axis.name: axis.extent for axis in it.stage.first.axes}


def write_place(kernel: Kernel, it: Contraction, a: Side, b: Side, number: str = "blockIdx.x") -> dict[str, str]:
    """Write the origin of the tile of a number, `a_start` and `b_start`; return the texts of the batch axes."""
    writer = kernel.writer
    tiles_a, tiles_b = kernel.dim(a.tiles), kernel.dim(b.tiles)
    writer.line(f"const long long tile = {number} % ({tiles_a} * {tiles_b}), band = tile / ({BAND} * {tiles_b});")
    writer.line(f"const long long high = {tiles_a} - band * {BAND} < {BAND} ? {tiles_a} - band * {BAND} : {BAND};")
    writer.line(f"const long long inside_band = tile - band * {BAND} * {tiles_b};")
    writer.line(f"const long long a_start = (band * {BAND} + inside_band % high) * {a.tile};")
    writer.line(f"const long long b_start = inside_band / high * {b.tile};")
    return kernel.axes_at(writer.define("long long", f"{number} / ({tiles_a} * {tiles_b})"), it.batch)


def write_fill(kernel: Kernel, it: Contraction, side: Side, base: str, threads: int, batch: Mapping[str, str]) -> None:
    """Start the copies of one step's part of an operand, `k_start` being the first element of the sum."""
    writer, operand = kernel.writer, side.operand
    lanes = lanes_of_copies(it, side)
    along = runs_along_sum(operand, it)
    units = side.tile * side.depth // max(lanes, 1)
    writer.line(f"#pragma unroll {min(-(-units // threads), MOST_UNROLLED)}")
    with writer.block(f"for (int j = 0; j < {-(-units // threads)}; ++j)"):
        writer.line(f"const int unit = threadIdx.x + j * {threads};")
        if units % threads:
            writer.line(f"if (unit >= {units}) break;")
        at, line_number = _unit(side, along, max(lanes, 1))
        row, column = (line_number, at) if along else (at, line_number)
        writer.line(f"const int row = {row}, column = {column};")
        writer.line(f"const long long own = {side.name}_start + row, k = k_start + column;")
        axes = {**batch, **kernel.axes_at("own", operand.own), **kernel.axes_at("k", it.reduce)}
        axes |= {axis.name: "0" for axis in it.stage.reduce if axis.extent == 1}
        conditions = [*inside(kernel, "own", operand.extent, side.tile), *inside(kernel, "k", it.depth, side.depth)]
        place = f"{base} + {side.type}::place(row, column)"
        if lanes:
            _write_copy(kernel, side.expr, axes, conditions, place, lanes)
        else:
            _write_elements(kernel, side.expr, axes, conditions, place)


def _unit(side: Side, along_sum: bool, lanes: int) -> tuple[str, str]:
    """Return the source of a unit's copy: the offset in a line of memory, and which line.

    Where the tile's lines run the other way, a warp takes 8 neighbours of 4 lines: whole sectors of memory, and places
    that lie in different banks.
    """
    line = side.depth if along_sum else side.tile
    if along_sum == side.along_sum:
        return f"unit % {line // lanes} * {lanes}", f"unit / {line // lanes}"
    eighths = line // 8
    return f"unit / 32 % {eighths} * 8 + unit % 8", f"unit / {32 * eighths} * 4 + unit / 8 % 4"


def inside(kernel: Kernel, name: str, extent: Dim, tile: int) -> list[str]:
    """Return the condition that something in a tile is there, where that is not always so."""
    return [] if isinstance(extent, int) and extent % tile == 0 else [f"{name} < {kernel.dim(extent)}"]


def lanes_of_copies(it: Contraction, side: Side) -> int:
    """Return the width of asynchronous copies in elements; 0 where copies are synchronous."""
    is_turned = runs_along_sum(side.operand, it) != side.along_sum
    return _count_copied_lanes(it, side.operand, side.expr, 1 if is_turned else lanes_in(side.expr.dtype, PIECE))


def copy_width(it: Contraction, operand: Operand) -> int:
    """Return the width of an operand's asynchronous copies to a tile whose lines run as memory does; 0 where copies are
    synchronous.
    """
    expr = operand.narrow
    return _count_copied_lanes(it, operand, expr, lanes_in(expr.dtype, PIECE)) * dtypes.itemsize(expr.dtype)


def _count_copied_lanes(it: Contraction, operand: Operand, expr: Expr, most: int) -> int:
    access = access_of(expr)
    if access is None:
        return 0
    least = max(LEAST_PIECE // dtypes.itemsize(access.load.dtype), 1)
    axes = it.reduce if runs_along_sum(operand, it) else operand.own
    lanes = max(lanes_along(access, axes, extents_of(it), most), 1)
    return lanes if lanes >= least else 0


def _write_copy(
    kernel: Kernel, expr: Expr, axes: Mapping[str, str], conditions: list[str], place: str, lanes: int
) -> None:
    access = access_of(expr)
    assert access is not None
    here = kernel.expressions(axes)
    if access.condition is not None:
        conditions = [*conditions, here.value(access.condition)]
    load = access.load
    is_inside = kernel.writer.define("bool", " && ".join(conditions) or "true")
    offset = kernel.writer.define("long long", here.offset(load.buffer, load.indices))
    nbytes = lanes * dtypes.itemsize(load.dtype)
    source = f"{kernel.tensor(load.buffer)}, {is_inside} ? {offset} : 0, {is_inside}"
    kernel.writer.line(f"cp_async<{nbytes}, {stored_type(load.dtype)}>({place}, {source});")


def _write_elements(kernel: Kernel, expr: Expr, axes: Mapping[str, str], conditions: list[str], place: str) -> None:
    writer, type_ = kernel.writer, stored_type(expr.dtype)
    writer.line(f"{type_} element = {{}};")
    with writer.block(f"if ({' && '.join(conditions) or 'true'})"):
        here = kernel.expressions(axes)
        here.expect(expr)
        text = here.value(expr)
        prefix = "value_of(" if is_narrow_float(expr.dtype) else ""
        if prefix and text.startswith(prefix) and text.endswith("]" + ")"):
            text = text[len(prefix) : -1]  # an element as it is
        else:
            text = to_stored(text, expr.dtype)
        writer.line(f"element = {text};")
    writer.line(f"put_shared<{type_}>({place}, element);")


# --- epilogues --------------------------------------------------------------------------------------------------------
def inside_condition(kernel: Kernel, it: Contraction, a: Side, b: Side) -> str:
    """Return the condition that a result of a tile is there, `a_own` and `b_own` being its rows of both operands."""
    conditions = [*inside(kernel, "a_own", it.a.extent, a.tile), *inside(kernel, "b_own", it.b.extent, b.tile)]
    return " && ".join(conditions) or "true"


def finish_sums(kernel: Kernel, it: Contraction, batch: dict[str, str], lanes: int, total: str) -> None:
    """Write the epilogue at neighbours along b's rows, from `a_own` and `b_own` on.

    total: the text of the sum, {} being the lane.
    """
    block = it.stage.first
    dtype = block.output.dtype
    axes = {**batch, **kernel.axes_at("a_own", it.a.own)}

    def first(lane: str) -> str:
        text = f"({computed_type(dtype)}){total.format(lane)}"
        if block.init is None:
            return text
        start = kernel.expressions({**axes, **kernel.axes_at(f"(b_own + {lane})", it.b.own)}).value(block.init)
        return operations.combine("sum", start, text, dtype)

    finish_lanes(kernel, it.stage, axes, it.b.own, "b_own", lanes, first)
