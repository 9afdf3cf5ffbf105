"""Copies of windows: what is the same in each step of a sum is computed before its first.

The place of an element is a part that depends on its row, and one that depends on the sum, which all copies of a thread
share. Padding depends on the row and on one axis of the sum at a time, the rows of a filter or its columns: it is a bit
for each of their elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import Affine, Axis, Expr, IterVar, axes_of, offset_of
from kernelyard_native_cuda.codegen.kernel import MOST_INT, Kernel
from kernelyard_native_cuda.codegen.types import stored_type
from kernelyard_native_cuda.schedule.access import Access, access_of, conjuncts
from kernelyard_native_cuda.schedule.contraction import Contraction, merge_axes, names_of
from kernelyard_native_cuda.schedule.tile import Side, inside, lanes_of_copies, runs_along_sum

BITS = 32  # of the mask of a row
MOST_COPIES = 16  # of a thread in a step: each keeps two registers


@dataclass(frozen=True)
class Taps:
    """Conditions that depend on an axis of the sum: bits from `start` on, one for each of its elements."""

    axis: IterVar
    start: int
    conditions: tuple[Expr, ...]


@dataclass(frozen=True)
class WindowCopies:
    """The copies of an operand that each thread of a block starts in every step.

    lanes: elements of a copy. offset: of an element in memory. row_conditions: those that depend on no axis of the sum.
    """

    it: Contraction
    side: Side
    threads: int
    access: Access
    lanes: int
    offset: Affine
    row_conditions: tuple[Expr, ...]
    taps: tuple[Taps, ...]

    @property
    def count(self) -> int:
        """The number of copies by a thread."""
        return self.side.tile * self.side.depth // (self.lanes * self.threads)

    @property
    def row_step(self) -> int:
        """The rows between two copies of a thread, which are of the same elements of the sum."""
        return self.threads * self.lanes // self.side.depth

    def write_rows(self, kernel: Kernel, batch: Mapping[str, str]) -> None:
        """Write where the rows of a thread's copies begin, `a_from`, and which elements of filters meet no padding."""
        writer, side, it = kernel.writer, self.side, self.it
        pieces = side.depth // self.lanes
        writer.line(f"const int {side.name}_row = threadIdx.x / {pieces};")
        writer.line(f"const int {side.name}_column = threadIdx.x % {pieces} * {self.lanes};")
        writer.line(f"{self._index_type} {side.name}_from[{self.count}];")
        writer.line(f"unsigned {side.name}_inside[{self.count}];")
        writer.line("#pragma unroll")
        with writer.block(f"for (int j = 0; j < {self.count}; ++j)"):
            writer.line(f"const long long own = {side.name}_start + {side.name}_row + j * {self.row_step};")
            axes = {**batch, **kernel.axes_at("own", side.operand.own)}
            groups = (it.batch, side.operand.own)
            places = [self._part(kernel, group, axes, "own" if group is side.operand.own else "") for group in groups]
            constant = kernel.dim(self.offset.constant)
            writer.line(f"{side.name}_from[j] = ({self._index_type})({' + '.join((constant, *places))});")
            here = kernel.expressions(axes)
            conditions = [*inside(kernel, "own", side.operand.extent, side.tile), *map(here.value, self.row_conditions)]
            writer.line(f"unsigned inside = {0 if self.taps else 1};")
            for taps in self.taps:
                writer.line("#pragma unroll")
                with writer.block(f"for (int tap = 0; tap < {taps.axis.extent}; ++tap)"):
                    at_tap = kernel.expressions({**axes, taps.axis.name: "(long long)tap"})
                    text = " && ".join(map(at_tap.value, taps.conditions))
                    writer.line(f"inside |= (unsigned)({text}) << (tap + {taps.start});")
            writer.line(f"{side.name}_inside[j] = {' && '.join(conditions) or 'true'} ? inside : 0u;")

    def write_step(self, kernel: Kernel, base: str) -> None:
        """Start the copies of a step, `k_start` being the first element of the sum."""
        writer, side, it = kernel.writer, self.side, self.it
        writer.line(f"const long long k = k_start + {side.name}_column;")
        axes = kernel.axes_at("k", it.reduce)
        at_sum = self._part(kernel, it.reduce, axes, "k")
        writer.line(f"const {self._index_type} of_sum = ({self._index_type})({at_sum});")
        bits = " | ".join(f"1u << ({axes[taps.axis.name]} + {taps.start} & {BITS - 1})" for taps in self.taps)
        writer.line(f"const unsigned wanted = {bits or '1u'};")
        is_summed = [*inside(kernel, "k", it.depth, side.depth)]
        writer.line("#pragma unroll")
        with writer.block(f"for (int j = 0; j < {self.count}; ++j)"):
            conditions = [*is_summed, f"({side.name}_inside[j] & wanted) == wanted"]
            writer.line(f"const bool inside = {' && '.join(conditions)};")
            place = f"{base} + {side.type}::place({side.name}_row + j * {self.row_step}, {side.name}_column)"
            load = self.access.load
            nbytes = self.lanes * dtypes.itemsize(load.dtype)
            source = f"{kernel.tensor(load.buffer)}, {side.name}_from[j] + of_sum, inside"
            writer.line(f"cp_async<{nbytes}, {stored_type(load.dtype)}>({place}, {source});")

    @property
    def _index_type(self) -> str:
        size = self.access.load.buffer.numel
        return "int" if isinstance(size, int) and size <= MOST_INT // 2 else "long long"

    def _part(self, kernel: Kernel, axes: Sequence[IterVar], texts: Mapping[str, str], point: str) -> str:
        """Return the text of the part of the offset that depends on some axes, at a point of them."""
        merged = merge_axes(axes, self.offset) if point else None
        if merged is not None:
            return f"{point} * {kernel.dim(merged[1])}"
        here, names = kernel.expressions(texts), names_of(axes)
        terms = [(atom, factor) for atom, factor in self.offset.terms if axes_of(atom) & names]
        return " + ".join(f"{here.value(atom)} * {kernel.dim(factor)}" for atom, factor in terms) or "0"


def window_copies(it: Contraction, side: Side, threads: int) -> WindowCopies | None:
    """Return the copies of an operand; None where those of a step have too little in common."""
    access, lanes = access_of(side.expr), lanes_of_copies(it, side)
    if access is None or not lanes or not (side.along_sum and runs_along_sum(side.operand, it)):
        return None
    step = threads * lanes
    if step % side.depth or side.tile * side.depth % step or side.tile * side.depth > MOST_COPIES * step:
        return None
    offset, summed = offset_of(access.load.buffer, access.load.indices), names_of(it.reduce)
    if any(axes_of(atom) & summed and not isinstance(atom, Axis) for atom, _ in offset.terms):
        return None
    conditions = list(conjuncts(access.condition)) if access.condition is not None else []
    taps = _taps_of(conditions, it.reduce)
    if taps is None:
        return None
    of_rows = tuple(each for each in conditions if not axes_of(each) & summed)
    return WindowCopies(it, side, threads, access, lanes, offset, of_rows, taps)


def _taps_of(conditions: Sequence[Expr], summed: Sequence[IterVar]) -> tuple[Taps, ...] | None:
    """Return conditions by the axis of the sum on which they depend; None where one needs several, or too many bits."""
    names, found, start = names_of(summed), list[Taps](), 0
    if any(len(axes_of(each) & names) > 1 for each in conditions):
        return None
    for axis in summed:
        own = tuple(each for each in conditions if axis.name in axes_of(each))
        if not own:
            continue
        if not isinstance(axis.extent, int) or start + axis.extent > BITS:
            return None
        found.append(Taps(axis, start, own))
        start += axis.extent
    return tuple(found)
