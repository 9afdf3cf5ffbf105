"""Convolution by warp groups of Hopper (sm_90a): implicit GEMM on boxes of a channels-last image that TMA copies.

The rows of a tile are a box of results, such as 8 x 8 pixels of 2 images. What they need of the image for an element of
the filter is a box, too, moved by that element's place; of what lies outside the image TMA makes zeros, which is what
padding is. Of an image that is read in strides, the place in a stride is an axis of the map. A step of the sum is 64
channels at one element of the filter. Elsewhere `conv` has the same contraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    Affine,
    Axis,
    Binary,
    Declined,
    Expr,
    IterVar,
    Load,
    Stage,
    affine_of,
    offset_of,
)
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenMap
from kernelyard_native_cuda.codegen.types import stored_type
from kernelyard_native_cuda.schedule.access import Access, access_of, conjuncts, is_multiple
from kernelyard_native_cuda.schedule.contraction import Contraction, Operand, contraction_of, merge_axes
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.matmul import usual
from kernelyard_native_cuda.schedule.rule import Schedule
from kernelyard_native_cuda.schedule.tile import Side, inside, write_place
from kernelyard_native_cuda.schedule.wgmma import (
    DEPTH,
    PIECE,
    SHAPES,
    GroupShape,
    why_not_by_warp_groups,
    write_kernel,
)

LEAST_CHANNELS = 32  # fewer leave most of a step to zeros
MOST_AXES = 5  # of a tensor map
MOST_OF_BOX = 256  # elements along an axis, as TMA limits them


@dataclass(frozen=True)
class ImageDim:
    """A dim of the image. tap: the first result's place along it, for an element of the filter. row: the axis of the
    results along it, each of which is `stride` places after the one before; None where there is none.

    A strided dim is two of the map: one of whole strides, which `row` moves by one, and the place in a stride.
    """

    size: Dim
    step: Dim
    tap: Affine
    row: IterVar | None
    stride: int

    @property
    def sizes(self) -> tuple[Dim, ...]:
        return (self.size,) if self.stride == 1 else (dims.floordiv(self.size, self.stride), self.stride)

    @property
    def steps(self) -> tuple[Dim, ...]:
        return (self.step,) if self.stride == 1 else (self.step * self.stride, self.step)

    @property
    def is_whole(self) -> bool:
        """Return True where it has a whole number of strides."""
        return self.stride == 1 or (is_multiple(self.size, self.stride) and isinstance(self.tap.constant, int))

    def starts(self, start: str, taps: Mapping[str, str]) -> tuple[str, ...]:
        """Return the texts of where a box begins. start: its first result, taps: the element of the filter."""
        factors = [(atom.name, factor) for atom, factor in self.tap.terms if isinstance(atom, Axis)]
        tap = " + ".join((*(f"{taps[name]} * {factor}" for name, factor in factors), str(self.tap.constant)))
        if self.stride == 1:
            return (f"(int)({start} + {tap})",)
        assert isinstance(self.tap.constant, int)
        before = max(-(self.tap.constant // self.stride), 0)  # strides: no quotient is negative
        place = f"({tap} + {before * self.stride})"
        return f"(int)({start} + {place} / {self.stride} - {before})", f"(int)({place} % {self.stride})"


@dataclass(frozen=True)
class Windows:
    """A channels-last image: its dims but the channels'."""

    load: Load
    dims: tuple[ImageDim, ...]

    @property
    def channels(self) -> Dim:
        return self.load.buffer.shape[-1]

    @property
    def map_sizes(self) -> tuple[Dim, ...]:
        """The sizes of the map's axes, those along memory last."""
        sizes = [size for each in self.dims for size in each.sizes]
        return (*sizes[:-1], sizes[-1] * self.channels) if self.is_strided else (*sizes, self.channels)

    @property
    def map_steps(self) -> tuple[Dim, ...]:
        """The steps of the map's axes but the last, in elements."""
        steps = [step for each in self.dims for step in each.steps]
        return tuple(steps[:-1] if self.is_strided else steps)

    @property
    def rows(self) -> tuple[IterVar, ...]:
        """The axes of the results."""
        return tuple(each.row for each in self.dims if each.row is not None)

    @property
    def is_aligned(self) -> bool:
        """Return True where TMA can copy it: no box begins or ends among the channels of a place in a stride."""
        is_whole = all(each.is_whole for each in self.dims) and (
            not self.is_strided or is_multiple(self.channels, DEPTH)
        )
        return is_whole and len(self.map_sizes) <= MOST_AXES and _are_aligned(self.load, self.map_steps)

    @property
    def is_strided(self) -> bool:
        """Return True for strided pixels: the place in a stride and the channels are one dim of the map."""
        return self.dims[-1].stride > 1


@dataclass(frozen=True)
class Filters:
    """Filters with their channels last: the extents of channels, taps and filters, and their steps in memory."""

    load: Load
    sizes: tuple[Dim, Dim, Dim]
    steps: tuple[Dim, Dim, Dim]


@dataclass(frozen=True)
class BoxSide(Side):
    """A side whose tiles are boxes. count: of tiles."""

    count: Dim = 0

    @property
    def tiles(self) -> Dim:
        return self.count


def wgmma_conv(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that multiplies filters and windows of a channels-last image, by TMA."""
    it = contraction_of(stages[0])
    if it is None or not it.a.own or not it.b.own:
        return Declined("the stage is not a contraction of two operands with data reuse")
    if not machine.has_wgmma_convolutions:
        return Declined("the target is not sm_90 alone, or the option wgmma_convolutions is off")
    declined = why_not_by_warp_groups(it, machine)
    if declined is not None:
        return declined
    windows, filters = windows_of(it.a, it), filters_of(it.b, it)
    if it.batches != 1 or windows is None or filters is None:
        return Declined("the operands are no filters, and windows of a channels-last image with zeros around it")
    if len(it.reduce) == 1 and all(each.stride == 1 for each in windows.dims):
        return Declined("no operand is read in windows")
    if usual(filters.sizes[0]) < LEAST_CHANNELS:
        return Declined(f"there are fewer than {LEAST_CHANNELS} channels")
    shape, box = choose(it, machine)
    tiling = WindowTiling(it, windows, filters, shape, box)
    if usual(tiling.a.tiles * tiling.b.tiles) * 2 <= machine.multiprocessors:
        return Declined("there are too few tiles of the size of a warp group's")
    count = shape.stages(machine)
    reason = (
        f"implicit GEMM by warp groups, boxes of {'x'.join(map(str, box))} by {shape.columns}, {count} stages by TMA"
    )
    return Schedule(1, write_kernel(tiling, shape, name, machine), reason)


def choose(it: Contraction, machine: Machine) -> tuple[GroupShape, tuple[int, ...]]:
    """Return the shape whose waves of tiles take least, and the box of its rows."""

    def tiles(shape: GroupShape, box: tuple[int, ...]) -> int:
        boxes = prod(-(-usual(axis.extent) // size) for axis, size in zip(it.a.own, box, strict=True))
        return boxes * -(-usual(it.b.extent) // shape.columns)

    def cost(choice: tuple[GroupShape, tuple[int, ...]]) -> tuple[int, int, int]:
        shape, box = choice
        number = tiles(shape, box)
        return -(-number // machine.multiprocessors) * shape.step_time, number * shape.step_time, -box[-1]

    return min(((shape, box) for shape in SHAPES for box in boxes_of(it.a.own, shape.rows)), key=cost)


def boxes_of(axes: Sequence[IterVar], rows: int) -> Iterator[tuple[int, ...]]:
    """Return the boxes of powers of two that have so many rows; along an axis of unknown extent they have one.

    Example:
        >>> list(boxes_of([IterVar("n", dims.symbol("n")), IterVar("h", 8), IterVar("w", 8)], 4))
        [(1, 1, 4), (1, 2, 2), (1, 4, 1)]
    """
    first, rest = axes[0], axes[1:]
    if not rest:
        if rows <= MOST_OF_BOX and (isinstance(first.extent, int) or rows == 1):
            yield (rows,)
        return
    size = 1
    while size <= rows and (size == 1 or isinstance(first.extent, int)):
        for others in boxes_of(rest, rows // size):
            yield (size, *others)
        size *= 2


# --- operands ---------------------------------------------------------------------------------------------------------
def windows_of(operand: Operand, it: Contraction) -> Windows | None:
    """Return an operand as windows of a channels-last image around which there are zeros; None where it is none."""
    access = access_of(operand.narrow)
    if access is None or access.load.indices[-1:] != (it.reduce[-1].axis,):
        return None
    buffer, places = access.load.buffer, [affine_of(each) for each in access.load.indices[:-1]]
    sides = list(zip(places, buffer.shape[:-1], buffer.strides[:-1], strict=True))
    found = (_image_dim(place, size, step, operand.own) for place, size, step in sides)
    windows = Windows(access.load, tuple(each for each in found if each is not None))
    is_whole = len(windows.dims) == len(sides) and windows.rows == operand.own
    is_apart = all(place.coefficient(it.reduce[-1].name) == 0 for place in places)
    if not is_whole or not is_apart or not _has_zeros_around(access, [side[:2] for side in sides]):
        return None
    return windows if windows.is_aligned else None


def _image_dim(place: Affine, size: Dim, step: Dim, rows: Sequence[IterVar]) -> ImageDim | None:
    """Return a dim of an image by the index along it: one axis of the results at most, moved by axes of the sum."""
    factors = {atom: factor for atom, factor in place.terms if isinstance(factor, int) and factor > 0}
    if len(factors) < len(place.terms) or not all(isinstance(atom, Axis) for atom in factors):
        return None
    moved = [(axis, factors[axis.axis]) for axis in rows if axis.axis in factors]
    axis, stride = moved[0] if moved else (None, 1)
    tap = place if axis is None else place.plus(Affine(((axis.axis, 1),), 0), -stride)
    return ImageDim(size, step, tap, axis, stride) if len(moved) < 2 else None


def _has_zeros_around(access: Access, limits: Sequence[tuple[Affine, Dim]]) -> bool:
    """Return True where all conditions are that an index is in an image: there is one wherever it might not be."""
    return access.condition is None or all(_is_limit(each, limits) for each in conjuncts(access.condition))


def _is_limit(condition: Expr, limits: Sequence[tuple[Affine, Dim]]) -> bool:
    """Return True for a condition that an index is not before a dim's first element, or not behind its last one."""
    if not isinstance(condition, Binary):
        return False
    distance = affine_of(condition.a).plus(affine_of(condition.b), -1)
    if condition.op == "ge":
        return any(_are_equal(distance, place) for place, _ in limits)
    ends = (place.plus(Affine((), size), -1) for place, size in limits)
    return condition.op == "lt" and any(_are_equal(distance, end) for end in ends)


def _are_equal(one: Affine, other: Affine) -> bool:
    return dict(one.terms) == dict(other.terms) and one.constant == other.constant


def filters_of(operand: Operand, it: Contraction) -> Filters | None:
    """Return an operand as filters with their channels last; None where it is none."""
    load = operand.narrow
    if not isinstance(load, Load):
        return None
    offset = offset_of(load.buffer, load.indices)
    channels, rows = merge_axes(it.reduce[-1:], offset), merge_axes(operand.own, offset)
    taps = merge_axes(it.reduce[:-1], offset) if len(it.reduce) > 1 else rows and (1, rows[1])
    if channels is None or taps is None or rows is None or channels[1] != 1 or offset.constant != 0:
        return None
    sizes, steps = zip(channels, taps, rows, strict=True)
    return Filters(load, sizes, steps) if _are_aligned(load, steps[1:]) else None


def _are_aligned(load: Load, steps: Sequence[Dim]) -> bool:
    return all(is_multiple(step * dtypes.itemsize(load.dtype), PIECE) for step in steps)


# --- the kernel -------------------------------------------------------------------------------------------------------
class WindowTiling:
    """Tiles of a convolution: see `wgmma.Tiling`. box: results along each axis of the rows of a tile."""

    def __init__(
        self, it: Contraction, windows: Windows, filters: Filters, shape: GroupShape, box: tuple[int, ...]
    ) -> None:
        self.it = it
        self.windows = windows
        self.filters = filters
        self.box = box
        self.counts = [dims.ceildiv(axis.extent, size) for axis, size in zip(it.a.own, box, strict=True)]
        dtype = filters.load.dtype
        a_type, b_type = (f"BulkTile<{stored_type(dtype)}, {own}, true>" for own in (shape.rows, shape.columns))
        count = dims.product(self.counts)
        self.a: Side = BoxSide("a", it.a, it.a.narrow, shape.rows, DEPTH, True, a_type, count)
        self.b = Side("b", it.b, it.b.narrow, shape.columns, DEPTH, True, b_type)

    @property
    def blocks(self) -> Dim:
        """The number of steps at one element of a filter."""
        return dims.ceildiv(self.filters.sizes[0], DEPTH)

    @property
    def steps(self) -> Dim:
        return self.filters.sizes[1] * self.blocks

    def write_tile(self, kernel: Kernel, number: str) -> dict[str, str]:
        """See `wgmma.Tiling`: `start0`, `start1`, ... are the first results of a box along each axis."""
        batch = write_place(kernel, self.it, self.a, self.b, number)
        kernel.writer.line(f"const long long box = a_start / {self.a.tile};")
        for place, (count, size) in enumerate(zip(self.counts, self.box, strict=True)):
            later = kernel.dim(dims.product(self.counts[place + 1 :]))
            kernel.writer.line(f"const int start{place} = (int)(box / {later} % {kernel.dim(count)}) * {size};")
        return batch

    def write_copies(self, kernel: Kernel, batch: Mapping[str, str]) -> None:
        """See `wgmma.Tiling`."""
        writer, windows, filters = kernel.writer, self.windows, self.filters
        nbytes = dtypes.itemsize(windows.load.dtype)
        box = self._image_box()
        strides = tuple(step * nbytes for step in reversed(windows.map_steps))
        of_image = kernel.map(WrittenMap(windows.load.buffer, tuple(reversed(windows.map_sizes)), strides, box))
        filter_strides = tuple(step * nbytes for step in filters.steps[1:])
        filter_box = (DEPTH, 1, self.b.tile)
        of_filters = kernel.map(WrittenMap(filters.load.buffer, filters.sizes, filter_strides, filter_box))
        with writer.block("const auto copies = [&](unsigned base, unsigned full, int step)"):
            writer.line(f"const int tap = step / {self.blocks}, channel = step % {self.blocks} * {DEPTH};")
            taps = kernel.axes_at("tap", self.it.reduce[:-1])
            places = [text for each in windows.dims for text in each.starts(self._start(each), taps)]
            channel = f"{places.pop()} * {kernel.dim(windows.channels)} + channel" if windows.is_strided else "channel"
            writer.line(f"const int from[{len(box)}] = {{{', '.join((f'(int)({channel})', *reversed(places)))}}};")
            writer.line(f"bulk_copy(base, {of_image}, full, from);")
            writer.line("const int of_filters[3] = {channel, tap, (int)b_start};")
            writer.line(f"bulk_copy(base + Tile::A::BYTES, {of_filters}, full, of_filters);")
        writer.line(";")

    def _image_box(self) -> tuple[int, ...]:
        """Return the box of the image's map, its axis along memory first."""
        sizes = dict(zip(self.it.a.own, self.box, strict=True))
        extents: list[int] = []
        for each in self.windows.dims:
            extents.append(sizes[each.row] if each.row is not None else 1)
            extents += [1] * (len(each.sizes) - 1)
        return (DEPTH, *reversed(extents[:-1] if self.windows.is_strided else extents))

    def _start(self, dim: ImageDim) -> str:
        """Return the text of the first result of the box along a dim of the image."""
        return f"start{self.it.a.own.index(dim.row)}" if dim.row is not None else "0"

    def write_row(self, kernel: Kernel) -> str:
        """See `wgmma.Tiling`."""
        writer, conditions, terms = kernel.writer, list[str](), list[str]()
        writer.line("const int in_box = Tile::row_of(down, row);")
        for number, (axis, size) in enumerate(zip(self.it.a.own, self.box, strict=True)):
            later = prod(self.box[number + 1 :])
            name = writer.define("long long", f"start{number} + in_box / {later} % {size}")
            conditions += inside(kernel, name, axis.extent, size)
            step = dims.product(each.extent for each in self.it.a.own[number + 1 :])
            terms.append(f"{name} * {kernel.dim(step)}")
        writer.line(f"const long long a_own = {' + '.join(terms)};")
        return " && ".join((*conditions, *inside(kernel, "b_own", self.it.b.extent, self.b.tile))) or "true"
