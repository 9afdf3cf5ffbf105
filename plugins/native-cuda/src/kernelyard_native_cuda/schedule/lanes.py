"""Lanes: what follows a stage's first block, at several neighbours along memory at once: vector loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernelyard.plugins.codegen_api import (
    ComputeBlock,
    Expr,
    IterVar,
    Load,
    Stage,
    element_at_zeros,
    unconditional_loads,
)
from kernelyard_native_cuda.codegen.expressions import from_stored, to_stored
from kernelyard_native_cuda.codegen.kernel import Kernel
from kernelyard_native_cuda.codegen.types import stored_type
from kernelyard_native_cuda.schedule.access import access_of, is_multiple, lanes_along, lanes_in
from kernelyard_native_cuda.schedule.points import finish_point

PIECE = 16  # bytes of the widest load
MOST_LANES = 8


def lanes_of(stage: Stage, along: Sequence[IterVar]) -> int:
    """Return the width of vectorized stores along axes; 1 where they must be scalar."""
    extents = {axis.name: axis.extent for axis in stage.first.axes}
    lanes = MOST_LANES
    for block in stage.blocks:
        if block.output in stage.inside:
            continue
        access = access_of(element_at_zeros(block))
        most = lanes_in(block.output.dtype, PIECE)
        lanes = min(lanes, most, max(lanes_along(access, along, extents, most), 1) if access else 1)
    return lanes


def finish_lanes(
    kernel: Kernel,
    stage: Stage,
    axes: Mapping[str, str],
    along: Sequence[IterVar],
    start: str,
    lanes: int,
    first: Callable[[str], str] | None = None,
    known: Mapping[Expr, str] | None = None,
) -> None:
    """Compute the stage's elementwise blocks at `lanes` neighbours from point `start` of `along` on, and store them.

    axes: texts of the other axes. first: the text of the first block's value at a lane, where it is known. known: texts
    of expressions that are the same at all lanes.
    """
    writer = kernel.writer
    at_start = {**axes, **kernel.axes_at(start, along)}
    if lanes == 1:
        here = kernel.expressions(at_start, known)
        finish_point(kernel, here, stage, None if first is None else _value(kernel, first("0")))
        return
    outside = kernel.expressions(at_start)
    packs: dict[Load, str] = {}
    for load in _wide_loads(stage, along, lanes, is_first_known=first is not None):
        if load in (known or {}):
            continue
        type_ = stored_type(load.dtype)
        offset = outside.offset(load.buffer, load.indices)
        text = f"pack_at<{lanes}, {type_}>({kernel.tensor(load.buffer)}, {offset})"
        packs[load] = writer.define(f"Pack<{type_}, {lanes}>", text)
    results = {block.output: writer.fresh("results") for block in stage.blocks if block.output not in stage.inside}
    for buffer, name in results.items():
        writer.line(f"Pack<{stored_type(buffer.dtype)}, {lanes}> {name};")
    writer.line("#pragma unroll")
    with writer.block(f"for (int lane = 0; lane < {lanes}; ++lane)"):
        at_lane = {load: from_stored(f"{pack}.at[lane]", load.dtype) for load, pack in packs.items()}
        here = kernel.expressions(_at_lane(kernel, at_start, along, start, lanes), {**(known or {}), **at_lane})

        def store(block: ComputeBlock, value: str) -> None:
            writer.line(f"{results[block.output]}.at[lane] = {to_stored(value, block.output.dtype)};")

        finish_point(kernel, here, stage, None if first is None else _value(kernel, first("lane")), store)
    for block in stage.blocks:
        if block.output in results:
            offset = outside.offset(block.output, block.indices)
            type_ = stored_type(block.output.dtype)
            results_text = results[block.output]
            writer.line(f"put_pack<{lanes}, {type_}>({kernel.tensor(block.output)}, {offset}, {results_text});")


def _value(kernel: Kernel, text: str) -> str:
    return text if text.isidentifier() else kernel.writer.define("auto", text)


def _at_lane(
    kernel: Kernel, at_start: Mapping[str, str], along: Sequence[IterVar], start: str, lanes: int
) -> dict[str, str]:
    last = [axis for axis in along if axis.extent != 1][-1]
    if is_multiple(last.extent, lanes):  # the others stay
        return {**at_start, last.name: kernel.writer.define("long long", f"{at_start[last.name]} + lane")}
    return {**at_start, **kernel.axes_at(kernel.writer.define("long long", f"{start} + lane"), along)}


def _wide_loads(stage: Stage, along: Sequence[IterVar], lanes: int, is_first_known: bool) -> list[Load]:
    """Return the unconditional loads that are contiguous along the lanes."""
    extents = {axis.name: axis.extent for axis in stage.first.axes}
    blocks = stage.blocks[1:] if is_first_known else stage.blocks
    found: list[Load] = []
    for load in dict.fromkeys(load for block in blocks for load in unconditional_loads(block.body, in_indices=True)):
        access = access_of(load)
        if access and load.buffer not in stage.outputs and lanes_along(access, along, extents, lanes) == lanes:
            found.append(load)
    return found
