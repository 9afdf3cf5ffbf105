"""How one stage is run: which axis lies along vector lanes, and which tile of the output stays in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.errors import ShapeError
from kernelyard.tir import Buffer, Load
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.schedule.affine import (
    Access,
    Affine,
    collapse,
    offset_of,
    unconditional_loads,
    used_as_values,
)
from kernelyard_native_cpu.schedule.stages import Stage

# What a symbolic extent is taken to be where choices need a number.
TYPICAL_EXTENT = 224
# Lanes of the narrower versions of a loop whose length is not known.
NARROW_LANES = (4, 1)
# Rows of a tile by its width in vectors, such that accumulators and operands fit into so many registers.
TILE_HEIGHTS = {32: {1: 16, 2: 8, 3: 6}, 16: {1: 8, 2: 4}}
# A panel is packed when at least so many tiles read it, of at least so many rows, so many elements apart.
LEAST_TILES = 4
LEAST_ROWS = 32
LEAST_DISTANCE = 128
# Tiles that one task computes from a panel: more share the cost of packing, fewer are better shared among threads.
TILES_PER_PANEL = 16
# Elements so far apart are loaded with those in between; farther ones are gathered.
MOST_STRIDE = 4
_GATHER_COST = 1.5  # per lane, in vector loads


@dataclass(frozen=True)
class Panel:
    """An operand of a contraction, copied for one step of the vector axis, so that its rows lie side by side.

    load: what is copied; buffer: rows of the reduced axis, each as long as the step.
    """

    load: Load
    buffer: Buffer


@dataclass(frozen=True)
class Plan:
    """spatial, reduce: axes to loop over, outermost first; extents: of these (other axes of the stage stand at 0).

    vector: the axis along lanes, None for scalar code; lanes: how many; unroll: vectors of it per step.
    masked: lanes beyond the end of the axis are left out; without it, the last step is moved back to end there.
    turned: an axis along which loads have neighbours; squares of it and the vector axis are transposed in registers.
    panel: what is packed before a tile axis is walked.
    tiles: axes of which several values are computed at once, with how many.
    """

    spatial: tuple[str, ...]
    reduce: tuple[str, ...]
    extents: dict[str, Dim] = field(hash=False)
    vector: str | None = None
    lanes: int = 1
    unroll: int = 1
    tiles: tuple[tuple[str, int], ...] = ()
    masked: bool = False
    turned: str | None = None
    panel: Panel | None = None

    def narrowed(self, lanes: int) -> Plan:
        """The same loops with fewer lanes; scalar code has no tiles either."""
        if lanes == 1:
            return replace(self, vector=None, lanes=1, unroll=1, tiles=(), panel=None)
        return replace(self, lanes=lanes, unroll=1, panel=None)

    def versions(self, machine: Machine) -> tuple[Plan, ...]:
        """This plan, and others for when a symbolic vector axis turns out to be shorter than a step of it."""
        if self.vector is None or isinstance(self.extents[self.vector], int):
            return (self,)
        if machine.has_masks:
            return (self, replace(self, unroll=1, masked=True, panel=None))
        wanted = NARROW_LANES if self.reduce else NARROW_LANES[-1:]
        narrow = [self.narrowed(lanes) for lanes in wanted if lanes < self.lanes]
        single = [self.narrowed(self.lanes)] if self.least() > self.lanes else []
        return (self, *single, *narrow)

    def least(self) -> int:
        """How long a symbolic vector axis must be for this plan: a shorter one would be computed several times."""
        if self.vector is None or self.masked or isinstance(self.extents[self.vector], int):
            return 0
        return self.lanes * self.unroll if self.reduce and not self.vector_is_reduced else self.lanes

    @property
    def vector_is_reduced(self) -> bool:
        return self.vector in self.reduce


def make_plan(stage: Stage, outer: frozenset[str], private: dict[Buffer, int], machine: Machine) -> Plan:
    """The plan of a stage inside loops over the `outer` axes."""
    accesses = _accesses(stage, private)
    extents: dict[str, Dim] = {axis.name: axis.extent for axis in (*stage.spatial, *stage.reduce)}
    spatial = [axis.name for axis in stage.spatial if axis.name not in outer]
    reduce = [axis.name for axis in stage.reduce]
    if stage.is_ordered or stage.reads_itself:
        return _in_place_plan(Plan(tuple(spatial), tuple(reduce), extents), accesses, machine)
    values = [e for b in stage.blocks for e in (b.body, b.init, b.arg) if e is not None]
    fixed = used_as_values(values)
    spatial, extents = collapse(spatial, extents, accesses, fixed)
    reduce, extents = collapse(reduce, extents, accesses, fixed)
    spatial = [name for name in spatial if extents[name] != 1] or spatial[-1:]
    return _Chooser(stage, spatial, reduce, extents, accesses, machine).plan()


def _in_place_plan(scalar: Plan, accesses: Sequence[Access], machine: Machine) -> Plan:
    """Vectors along an axis that they divide: no element may be computed twice, or out of order."""
    widest = max(access.itemsize for access in accesses)
    for name in scalar.spatial:
        extent, lanes = scalar.extents[name], machine.vector_bits // (64 if widest == 8 else 32)
        while lanes > 1 and not (isinstance(extent, int) and extent % lanes == 0):
            lanes //= 2
        if lanes > 1 and all(access.offset.coefficient(name) in (0, 1) for access in accesses):
            return replace(scalar, vector=name, lanes=lanes)
    return scalar


def _accesses(stage: Stage, private: dict[Buffer, int]) -> list[Access]:
    found: list[Access] = []
    written = {block.output for block in stage.blocks}
    for block in stage.blocks:
        # What a stage hands on in registers needs no access; its store has the same form.
        for load in (load for load in block.loads if load.buffer not in written):
            offset = offset_of(load.buffer, load.indices, private.get(load.buffer, 0))
            found.append(Access(offset, dtypes.itemsize(load.dtype), is_inner=block is stage.first))
        offset = offset_of(block.output, block.indices, private.get(block.output, 0))
        found.append(Access(offset, dtypes.itemsize(block.output.dtype), is_store=True, is_inner=not stage.reduce))
    return found


def size_of(dim: Dim) -> int:
    """A number to reckon with, at least 1: symbols count as `TYPICAL_EXTENT`."""
    try:
        return max(1, dims.evaluate(dim, dict.fromkeys(dims.symbols_of(dim), TYPICAL_EXTENT)))
    except ShapeError:  # where an open size meets a fixed one, the typical extent need not broadcast with it
        return TYPICAL_EXTENT


class _Chooser:
    def __init__(
        self,
        stage: Stage,
        spatial: Sequence[str],
        reduce: Sequence[str],
        extents: dict[str, Dim],
        accesses: Sequence[Access],
        machine: Machine,
    ) -> None:
        self.stage = stage
        self.spatial = tuple(spatial)
        self.reduce = tuple(reduce)
        self.extents = extents
        self.accesses = accesses
        self.machine = machine
        widest = max((access.itemsize for access in accesses), default=4)
        self.full_lanes = machine.vector_bits // (64 if widest == 8 else 32)

    def plan(self) -> Plan:
        scalar = Plan(self.spatial, self.reduce, self.extents)
        finds_place = self.stage.first.reducer in ("argmax", "argmin")
        reduced = self.reduce if len(self.reduce) == 1 or not finds_place else ()
        candidates = [*self.spatial, *reduced]
        costs = {name: self._cost(name) for name in reversed(candidates) if self._lanes(name) > 1}
        if not costs:
            return scalar
        vector = min(costs, key=lambda name: costs[name])
        lanes, extent = self._lanes(vector), self.extents[vector]
        masked = isinstance(extent, int) and extent < lanes
        turned = None if masked else self._turned(vector, lanes)
        tiles, unroll = (((turned, lanes),), 1) if turned else self._tiles(vector, lanes)
        panel = None if masked else self._panel(vector, lanes * unroll, tiles)
        return Plan(self.spatial, self.reduce, self.extents, vector, lanes, unroll, tiles, masked, turned, panel)

    def _panel(self, vector: str, width: int, tiles: tuple[tuple[str, int], ...]) -> Panel | None:
        """The operand that every tile reads again, row by row, where its rows are far apart in memory."""
        if not self.stage.is_contraction or len(tiles) != 1 or len(self.reduce) != 1 or vector in self.reduce:
            return None
        (tile, height), (reduced,) = tiles[0], self.reduce
        if size_of(self.extents[tile]) < LEAST_TILES * height or size_of(self.extents[reduced]) < LEAST_ROWS:
            return None
        for load in unconditional_loads(self.stage.first.body):
            offset = offset_of(load.buffer, load.indices)
            far = offset.coefficient(reduced)
            is_far = far is not None and (not isinstance(far, int) or far >= LEAST_DISTANCE)
            if is_far and offset.coefficient(vector) == 1 and offset.coefficient(tile) == 0:
                shape = (self.extents[reduced], width)
                return Panel(load, Buffer(f"panel of {self.stage.first.name}", shape, load.dtype, "local"))
        return None

    def _turned(self, vector: str, lanes: int) -> str | None:
        """An axis whose neighbours lie side by side where those of the vector axis are far apart."""
        if self.stage.reduce or lanes < 4 or not isinstance(self.extents[vector], int):
            return None
        loads = [access.offset for access in self.accesses if not access.is_store]
        sized = [(name, self.extents[name]) for name in self.spatial if name != vector]
        long_enough = [name for name, extent in sized if isinstance(extent, int) and extent >= lanes]
        return next((name for name in long_enough if any(is_turned(load, vector, name) for load in loads)), None)

    def _lanes(self, axis: str) -> int:
        """Lanes of a full vector, fewer where the axis is shorter: the next power of two, masked or below."""
        extent, lanes = self.extents[axis], self.full_lanes
        while isinstance(extent, int) and lanes > max(extent, 1):
            if self.machine.has_masks and lanes // 2 < extent:
                break
            lanes //= 2
        return lanes

    def _cost(self, axis: str) -> float:
        """Instructions per element, roughly; an extent that is not known wastes no lanes."""
        lanes, known = self._lanes(axis), self.extents[axis]
        extent = known if isinstance(known, int) else max(size_of(known), lanes)
        waste = -(-extent // lanes) * lanes / extent if isinstance(known, int) else 1.0
        total = 1.0
        reduced = dims.product(self.extents[name] for name in self.reduce) if self.stage.reduce else 1
        for access in self.accesses:
            step = access.offset.coefficient(axis)
            cost = _cost_of_step(step, lanes)
            if access.is_store:
                cost = 0.0 if axis in self.reduce else cost * 1.5
            total += cost if access.is_inner else cost / size_of(reduced)
        if axis in self.reduce:
            total += 4.0 * lanes / extent
        return total * waste / lanes

    def _tiles(self, vector: str, lanes: int) -> tuple[tuple[tuple[str, int], ...], int]:
        vectors = -(-size_of(self.extents[vector]) // lanes)
        if not self.stage.reduce:
            return (), _even(vectors, 2)
        others = [name for name in self.spatial if name != vector and self.extents[name] != 1]
        if self.stage.first.reducer in ("argmax", "argmin"):
            return (), 1
        if not self.stage.is_contraction:
            full = size_of(self.extents[vector]) // lanes
            return (), max(1, min(4, full)) if vector in self.reduce else _even(vectors, 4)
        reuse = {name: self._reuse(name, vector) for name in others}
        best = sorted((name for name in others if reuse[name]), key=lambda name: (-reuse[name], others.index(name)))
        if vector in self.reduce:
            return self._dot_tiles(best), 1
        rows = best[:1]
        heights = TILE_HEIGHTS[self.machine.vector_registers]
        width = _tile_width(vectors, max(heights)) if rows else _even(vectors, 4)
        return tuple((name, _even(size_of(self.extents[name]), heights[width])) for name in rows), width

    def _dot_tiles(self, axes: Sequence[str]) -> tuple[tuple[str, int], ...]:
        side = 4 if self.machine.vector_registers == 32 else 3
        return tuple((name, min(side, size_of(self.extents[name]))) for name in axes[:2])

    def _reuse(self, axis: str, vector: str) -> int:
        """How many loads are the same for every value of an axis; loads of whole vectors count more."""
        score = 0
        for access in self.accesses:
            if access.is_inner and not access.is_store and access.offset.coefficient(axis) == 0:
                score += 3 if access.offset.coefficient(vector) != 0 else 1
        return score


def is_turned(offset: Affine, vector: str, neighbours: str) -> bool:
    """True for a load that would be gathered along one axis and lies side by side along another."""
    step = offset.coefficient(vector)
    far = step is not None and (not isinstance(step, int) or abs(step) > MOST_STRIDE)
    return far and offset.coefficient(neighbours) == 1


def _cost_of_step(step: Dim | None, lanes: int) -> float:
    if step == 0:
        return 0.3
    if step in (1, -1):
        return 1.0
    return 2.0 * step if isinstance(step, int) and 2 <= step <= MOST_STRIDE else _GATHER_COST * lanes


def _tile_width(vectors: int, most: int) -> int:
    """Vectors per row of a tile: waste in the last step against the scalar loads that narrow tiles repeat."""
    return min(range(most, 0, -1), key=lambda n: -(-vectors // n) * n * (1 + 0.35 / n))


def _even(count: int, most: int) -> int:
    """The largest number up to `most` that wastes least when `count` vectors are taken so many at a time."""
    return min(range(1, most + 1), key=lambda n: (-(-count // n) * n, -n))
