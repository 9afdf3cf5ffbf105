"""Rounds: loads of several turns of a loop are on their way before the first is used (`in_rounds` of the prelude)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard.plugins.codegen_api import Expr, Load
from kernelyard_native_cuda.codegen.expressions import Expressions, from_stored
from kernelyard_native_cuda.codegen.kernel import Kernel
from kernelyard_native_cuda.codegen.types import stored_type


def write_load(
    kernel: Kernel, loads: Sequence[Load], lanes: int, turn: str, at: Callable[[], Expressions]
) -> tuple[str, str]:
    """Write the function that loads `lanes` neighbours of each tensor in a turn; the type of its result, and its name.

    at: writes what a turn's number says of the axes.
    """
    writer = kernel.writer
    type_, name = writer.fresh("Loaded"), writer.fresh("load")
    members = (f"Pack<{stored_type(load.dtype)}, {lanes}> at{number};" for number, load in enumerate(loads))
    writer.line(f"struct {type_} {{ {' '.join(members)} }};")
    with writer.block(f"const auto {name} = [&](long long {turn})"):
        here = at()
        packs = [
            f"pack_at<{lanes}, {stored_type(load.dtype)}>({kernel.tensor(load.buffer)}, "
            f"{here.offset(load.buffer, load.indices)})"
            for load in loads
        ]
        writer.line(f"return {type_}{{{', '.join(packs)}}};")
    writer.line(";")
    return type_, name


def select_loaded(loads: Sequence[Load], lane: str) -> dict[Expr, str]:
    """Return the values of what was loaded, at a lane of `loaded`."""
    return {load: from_stored(f"loaded.at{number}.at[{lane}]", load.dtype) for number, load in enumerate(loads)}
