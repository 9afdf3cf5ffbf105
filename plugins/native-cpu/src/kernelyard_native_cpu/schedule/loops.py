"""A stage's loops as rules see them: axes that are walked as one are one, and each has a price as the vector axis."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Affine, Buffer, Stage, offset_of, used_as_values
from kernelyard.runtime.api import record
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.schedule.collapse import Access, collapse
from kernelyard_native_cpu.schedule.plan import Plan, size_of

# Elements so far apart are loaded with those in between; farther ones are gathered.
MOST_STRIDE = 4
_GATHER_COST = 1.5  # per lane, in vector loads
_UNKNOWN_WASTE = 1.1  # of lanes, where the extent of an axis is not known


@record
class Loops:
    """spatial, reduce: axes inside of the rows that the stage shares with others, outermost first; extents: of these.

    in_rows: other stages run in the same loop over rows.
    """

    stage: Stage
    machine: Machine
    spatial: tuple[str, ...]
    reduce: tuple[str, ...]
    extents: dict[str, Dim] = field(hash=False)
    accesses: tuple[Access, ...]
    in_rows: bool

    @property
    def in_order(self) -> bool:
        """True where no element may be computed twice, or before another."""
        return self.stage.is_ordered or self.stage.reads_itself

    @property
    def finds_place(self) -> bool:
        return self.stage.first.reducer in ("argmax", "argmin")

    def scalar(self) -> Plan:
        """Return scalar loops."""
        return Plan(self.spatial, self.reduce, self.extents)

    @property
    def full_lanes(self) -> int:
        widest = max((access.itemsize for access in self.accesses), default=4)
        return self.machine.vector_bits // (64 if widest == 8 else 32)

    def lanes(self, axis: str) -> int:
        """Lanes of a full vector, fewer where the axis is shorter: the next power of two, masked or below."""
        extent, lanes = self.extents[axis], self.full_lanes
        while isinstance(extent, int) and lanes > max(extent, 1):
            if self.machine.has_masks and lanes // 2 < extent:
                break
            lanes //= 2
        return lanes

    def is_masked(self, axis: str) -> bool:
        """Return True where the axis is shorter than a vector of it."""
        extent = self.extents[axis]
        return isinstance(extent, int) and extent < self.lanes(axis)

    @cached_property
    def vector(self) -> str | None:
        """The axis that costs least along lanes; None where no axis has two."""
        reduced = self.reduce if len(self.reduce) == 1 or not self.finds_place else ()
        candidates = [name for name in reversed((*self.spatial, *reduced)) if self.lanes(name) > 1]
        return min(candidates, key=self.cost, default=None)

    def cost(self, axis: str) -> float:
        """Instructions per element, roughly; an extent that is not known wastes no lanes."""
        lanes, known = self.lanes(axis), self.extents[axis]
        extent = known if isinstance(known, int) else max(size_of(known), lanes)
        waste = -(-extent // lanes) * lanes / extent if isinstance(known, int) else _UNKNOWN_WASTE
        total = 1.0
        reduced = dims.product(self.extents[name] for name in self.reduce) if self.stage.reduce else 1
        for access in self.accesses:
            cost = _cost_of_step(access.offset.coefficient(axis), lanes)
            if access.is_store:
                cost = 0.0 if axis in self.reduce else cost * 1.5
            total += cost if access.is_inner else cost / size_of(reduced)
        if axis in self.reduce:
            total += 4.0 * lanes / extent
        return total * waste / lanes

    def vectors(self, axis: str) -> int:
        """Return the number of vectors along an axis."""
        return -(-size_of(self.extents[axis]) // self.lanes(axis))

    def others(self, vector: str) -> list[str]:
        """Return the spatial axes other than the vector axis."""
        return [name for name in self.spatial if name != vector and self.extents[name] != 1]

    def reuse(self, axis: str, vector: str) -> int:
        """Count the loads that are invariant along an axis; loads of whole vectors count more."""
        score = 0
        for access in self.accesses:
            if access.is_inner and not access.is_store and access.offset.coefficient(axis) == 0:
                score += 3 if access.offset.coefficient(vector) != 0 else 1
        return score


def loops_of(stage: Stage, outer: frozenset[str], private: dict[Buffer, int], machine: Machine) -> Loops:
    """Return the loops of a stage inside loops over the `outer` axes."""
    accesses = _accesses(stage, private)
    extents: dict[str, Dim] = {axis.name: axis.extent for axis in (*stage.spatial, *stage.reduce)}
    spatial = [axis.name for axis in stage.spatial if axis.name not in outer]
    reduce = [axis.name for axis in stage.reduce]
    if not (stage.is_ordered or stage.reads_itself):
        values = [e for b in stage.blocks for e in (b.body, b.init, b.arg) if e is not None]
        fixed = used_as_values(values)
        spatial, extents = collapse(spatial, extents, accesses, fixed)
        reduce, extents = collapse(reduce, extents, accesses, fixed)
        spatial = [name for name in spatial if extents[name] != 1] or spatial[-1:]
    return Loops(stage, machine, tuple(spatial), tuple(reduce), extents, tuple(accesses), bool(outer))


def _accesses(stage: Stage, private: dict[Buffer, int]) -> list[Access]:
    found: list[Access] = []
    written = stage.outputs
    for block in stage.blocks:
        # What a stage hands on in registers needs no access; its store has the same form.
        for load in (load for load in block.loads if load.buffer not in written):
            offset = offset_of(load.buffer, load.indices, private.get(load.buffer, 0))
            found.append(Access(offset, dtypes.itemsize(load.dtype), is_inner=block is stage.first))
        offset = offset_of(block.output, block.indices, private.get(block.output, 0))
        found.append(Access(offset, dtypes.itemsize(block.output.dtype), is_store=True, is_inner=not stage.reduce))
    return found


def is_transposed(offset: Affine, vector: str, neighbours: str) -> bool:
    """Return True for a load that would be gathered along one axis and is contiguous along another."""
    step = offset.coefficient(vector)
    far = step is not None and (not isinstance(step, int) or abs(step) > MOST_STRIDE)
    return far and offset.coefficient(neighbours) == 1


def is_near(step: Dim | None) -> bool:
    """Return True where neighbouring lanes are loaded together."""
    return isinstance(step, int) and abs(step) <= MOST_STRIDE


def _cost_of_step(step: Dim | None, lanes: int) -> float:
    if step == 0:
        return 0.3
    if step in (1, -1):
        return 1.0
    return 2.0 * step if isinstance(step, int) and 2 <= step <= MOST_STRIDE else _GATHER_COST * lanes


def even_parts(count: int, most: int) -> int:
    """Return the largest number up to `most` that wastes least when `count` vectors are taken so many at a time."""
    return min(range(1, most + 1), key=lambda n: (-(-count // n) * n, -n))
