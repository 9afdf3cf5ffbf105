"""RowLoop: what a block's threads do with each element of a row, 16 bytes at a time, wherever the row begins.

Rows of 50257 elements begin at no multiple of 16 bytes: the elements before the first such place in memory, and those
behind the last, are taken one by one. Loads of several rounds are on their way before the first is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    Buffer,
    ComputeBlock,
    Expr,
    IterVar,
    Load,
    element_at_zeros,
    extent_of,
    is_index,
    unconditional_loads,
)
from kernelyard_native_cuda.codegen.expressions import Expressions, from_stored, to_stored
from kernelyard_native_cuda.codegen.kernel import Kernel
from kernelyard_native_cuda.codegen.types import computed_type, stored_type
from kernelyard_native_cuda.schedule.access import is_multiple, lanes_in, offset_of
from kernelyard_native_cuda.schedule.lanes import MOST_LANES, PIECE
from kernelyard_native_cuda.schedule.points import Store
from kernelyard_native_cuda.schedule.register_row import place_of
from kernelyard_native_cuda.schedule.rounds import select_loaded, write_load

LEAST_EXTENT = 512  # of a row that is worth it
MOST_AHEAD = 4  # loads of a thread that are on their way at once

# `body(here, place, store)`: writes what is done with the element at a place; store: what takes results, None: memory.
Body = Callable[[Expressions, str, Store | None], None]


@dataclass(frozen=True)
class WideRow:
    """Elements of a row that are read and written `lanes` at a time: all lie equally far from a multiple of that.

    start: the first of one of them, at place 0 of the axis.
    """

    axis: IterVar
    lanes: int
    loads: tuple[Load, ...]
    results: tuple[ComputeBlock, ...]
    start: Load
    is_aligned: bool

    @property
    def ahead(self) -> int:
        """The rounds whose loads are on their way at once."""
        return max(MOST_AHEAD // max(len(self.loads), 1), 1)


def emit_element_loop(
    kernel: Kernel,
    outer: Expressions,
    axes: Sequence[IterVar],
    blocks: Sequence[ComputeBlock],
    body: Body,
    results: Sequence[ComputeBlock] = (),
) -> None:
    """Write a loop over the points of axes that distributes them over the threads.

    blocks: what the body computes. results: those of them that it writes to memory, along the axes.
    """
    row = _wide_row(outer, axes, blocks, results)
    if row is not None:
        _write_wide(kernel, outer, axes, row, body)
        return
    count = kernel.dim(extent_of(axes))
    with kernel.writer.block(f"for (long long k = threadIdx.x; k < {count}; k += {kernel.threads})"):
        point = kernel.axes_at(kernel.define_point(axes, "k"), axes)
        body(kernel.expressions({**outer.axes, **point}, outer.known, outer.kept), "k", None)


def _wide_row(
    outer: Expressions, axes: Sequence[IterVar], blocks: Sequence[ComputeBlock], results: Sequence[ComputeBlock]
) -> WideRow | None:
    axis = _long_axis(axes)
    if axis is None:
        return None
    read = _read_along(outer, axis, blocks)
    elements = [*(each for each in map(element_at_zeros, results) if _runs_along(each, axis)), *read]
    if not elements:
        return None
    extents = {each.name: each.extent for block in blocks for each in block.axes}
    lanes = min(MOST_LANES, lanes_in(elements[0].dtype, PIECE))
    alike = {each for each in elements if _lie_alike(each, elements[0], axis, extents, lanes)}
    together = tuple(block for block in results if element_at_zeros(block) in alike)
    is_aligned = is_multiple(_start(elements[0], axis, extents), lanes)
    return WideRow(axis, lanes, tuple(load for load in read if load in alike), together, elements[0], is_aligned)


def _long_axis(axes: Sequence[IterVar]) -> IterVar | None:
    long = [axis for axis in axes if axis.extent != 1]
    if len(long) != 1 or (isinstance(long[0].extent, int) and long[0].extent < LEAST_EXTENT):
        return None
    return long[0]


def _read_along(outer: Expressions, axis: IterVar, blocks: Sequence[ComputeBlock]) -> list[Load]:
    """Return what blocks read of memory along an axis, whatever conditions hold, and do not write themselves."""
    written = {block.output for block in blocks}
    loads = dict.fromkeys(load for block in blocks for load in unconditional_loads(block.body, in_indices=True))
    at_hand = {*outer.known, *(load for load in loads if load.buffer in written or load.buffer in outer.kept)}
    return [load for load in loads if load not in at_hand and _runs_along(load, axis)]


def _runs_along(element: Load, axis: IterVar) -> bool:
    return place_of(element, axis.name) is not None and element.buffer.strides[-1] == 1


def _lie_alike(one: Load, other: Load, axis: IterVar, extents: Mapping[str, Dim], lanes: int) -> bool:
    """Return True where two rows are known to begin equally far from a multiple of `lanes`."""
    starts = [_start(each, axis, extents) for each in (one, other)]
    if all(is_multiple(start, lanes) for start in starts):
        return True
    # What rows are gathered by is not known to be the same.
    is_known = all(is_index(index) for each in (one, other) for index in each.indices)
    return one == other or (is_known and is_multiple(starts[0] - starts[1], lanes))


def _start(element: Load, axis: IterVar, extents: Mapping[str, Dim]) -> Dim:
    return offset_of(element.buffer, element.indices, extents, [axis.name])


def _write_wide(kernel: Kernel, outer: Expressions, axes: Sequence[IterVar], row: WideRow, body: Body) -> None:
    writer, count, lanes = kernel.writer, kernel.dim(row.axis.extent), row.lanes
    zeros = {**outer.axes, **{axis.name: "0" for axis in axes}}

    def at(place: str, known: Mapping[Expr, str] | None = None) -> Expressions:
        return kernel.expressions({**zeros, row.axis.name: place}, {**outer.known, **(known or {})}, outer.kept)

    start = at("0").offset(row.start.buffer, row.start.indices)
    head = "0ll" if row.is_aligned else f"least<long long>({count}, ({lanes} - ({start}) % {lanes}) % {lanes})"
    head = writer.define("long long", head)
    packs = writer.define("long long", f"({count} - {head}) / {lanes}")
    point = _write_point(kernel, row, at, body)

    def at_pack() -> Expressions:
        return at(writer.define("long long", f"{head} + pack * {lanes}"))

    type_, load = write_load(kernel, row.loads, lanes, "pack", at_pack)
    use = writer.fresh("use")
    with writer.block(f"const auto {use} = [&](long long pack, const {type_}& loaded)"):
        writer.line(f"const long long start = {head} + pack * {lanes};")
        for number, block in enumerate(row.results):
            writer.line(f"Pack<{stored_type(block.output.dtype)}, {lanes}> result{number};")
        writer.line("#pragma unroll")
        values = list(select_loaded(row.loads, "lane").values())
        taken = [f"result{number}.at[lane]" for number in range(len(row.results))]
        writer.line(f"for (int lane = 0; lane < {lanes}; ++lane) {_call(point, 'start + lane', values, taken)};")
        for number, block in enumerate(row.results):
            where = f"{kernel.tensor(block.output)}, {at('start').offset(block.output, block.indices)}"
            writer.line(f"put_pack<{lanes}, {stored_type(block.output.dtype)}>({where}, result{number});")
    writer.line(";")
    writer.line(f"in_rounds<{row.ahead}, {type_}>(threadIdx.x, {packs}, {kernel.threads}, {load}, {use});")
    writer.line("#pragma unroll 1")
    head_and_rest = f"for (long long edge = threadIdx.x; edge < {count} - {packs} * {lanes}; edge += {kernel.threads})"
    with writer.block(head_and_rest):
        place = writer.define("long long", f"edge < {head} ? edge : edge + {packs} * {lanes}")
        here = at(place)
        for number, block in enumerate(row.results):
            writer.line(f"{stored_type(block.output.dtype)} result{number};")
        values = [from_stored(here.element(load.buffer, load.indices), load.dtype) for load in row.loads]
        writer.line(f"{_call(point, place, values, [f'result{n}' for n in range(len(row.results))])};")
        for number, block in enumerate(row.results):
            writer.line(f"{here.element(block.output, block.indices)} = result{number};")


def _call(point: str, place: str, values: Sequence[str], results: Sequence[str]) -> str:
    return f"{point}({', '.join((place, *values, *results))})"


def _write_point(kernel: Kernel, row: WideRow, at: Callable[..., Expressions], body: Body) -> str:
    """Write the function for one element, of what is read of it; the name of it."""
    name = kernel.writer.fresh("point")
    params = ["long long k", *(f"{computed_type(load.dtype)} value{n}" for n, load in enumerate(row.loads))]
    params += [f"{stored_type(block.output.dtype)}& result{n}" for n, block in enumerate(row.results)]
    numbers: dict[Buffer, int] = {block.output: number for number, block in enumerate(row.results)}
    with kernel.writer.block(f"const auto {name} = [&]({', '.join(params)})"):
        here = at("k", {load: f"value{number}" for number, load in enumerate(row.loads)})

        def store(block: ComputeBlock, value: str) -> None:
            if block.output in numbers:
                kernel.writer.line(f"result{numbers[block.output]} = {to_stored(value, block.output.dtype)};")
            else:
                here.store(block.output, block.indices, value)

        body(here, "k", store)
    kernel.writer.line(";")
    return name
