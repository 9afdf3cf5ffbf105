"""The operation of a Winograd convolution: its record, its code, and the memory that it works in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelyard.records import NamedTuple
from kernelyard_llvm.winograd import algorithm, code
from kernelyard_llvm.winograd.choice import FLOAT, ROWS, Shape, pad_to_vectors, panel_width
from kernelyard_llvm.winograd.epilogue import Stage
from kernelyard_llvm.winograd.record import Field, strides_of

# Tiles of a block, about: enough that a panel of weights, once fetched, serves some groups of rows, and so few that
# what is made of them stays in the second-level cache.
BLOCK = 4 * ROWS
GAP = 16  # floats between matrices: the columns of one tile would else meet in the same lines of the first-level cache


class Layout(NamedTuple):
    """The layout of a float tensor (images, channels, height, width) in memory; strides count floats."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Kernel(NamedTuple):
    """A C function `int32_t f(int64_t* record, _, int32_t threads, _)`, and the record of one convolution.

    record: by `Field`; addresses of tensors and scratch memory are 0 until they are known. flops: additions and
    multiplications. keep: what must live as long as the function is called.
    """

    implementation: str
    function: int
    record: tuple[int, ...]
    scratch_nbytes: int
    flops: int
    keep: object


class Depth(NamedTuple):
    """Planes of each volume, of its result, and of the padding before the first; a plane is an image."""

    source: int = 1
    result: int = 1
    padding: int = 0


class Convolution(NamedTuple):
    """A convolution at known shapes: F(m x m, 3 x 3) of channels-last tensors.

    padding: rows above and columns to the left of the image. operands: layouts of the post-ops' operands by number.
    depth: of volumes, whose planes follow each other in every tensor as images do.
    """

    m: int
    shape: Shape
    source: Layout
    result: Layout
    padding: tuple[int, int]
    has_bias: bool
    stages: tuple[Stage, ...]
    operands: Mapping[int, Layout]
    depth: Depth = Depth()

    @property
    def is_of_volumes(self) -> bool:
        """True where a plane of the result is made of others than the one plane of the same number."""
        return self.shape.planes > 1 or self.depth.padding != 0 or self.depth.source != self.depth.result


def convolution_kernel(convolution: Convolution, lanes: int, threads: int, team: code.Team) -> Kernel:
    """Return the kernel of a convolution, for so many threads of a team."""
    m, has_bias, stages = convolution.m, convolution.has_bias, convolution.stages
    functions = (
        code.run(lanes, team),
        code.transform_data(m, lanes, convolution.is_of_volumes),
        code.transform_result(m, lanes, has_bias, stages),
    )
    run, transform_data, transform_result = (next(iter(each.addresses.values())) for each in functions)
    shape, memory = convolution.shape, _memory(convolution, lanes, threads)
    numbers = {
        **_sizes(convolution, lanes),
        **memory,
        **_strides([convolution.source, convolution.result]),
        Field.TRANSFORM_DATA: transform_data,
        Field.TRANSFORM_RESULT: transform_result,
    }
    for number, layout in convolution.operands.items():
        numbers |= _strides([layout], 2 + number)
    record = [0] * Field.LENGTH
    for place, value in numbers.items():
        record[place] = value
    return Kernel(
        implementation=f"winograd:{m}x{m}",
        function=run,
        record=tuple(record),
        scratch_nbytes=FLOAT * (memory[Field.COPY] + threads * memory[Field.COPY_STRIDE]),
        flops=2 * algorithm.size_of_tile(m) ** 2 * numbers[Field.TILES] * shape.reduced * shape.filters,
        keep=functions,
    )


def _sizes(convolution: Convolution, lanes: int) -> dict[int, int]:
    shape, m = convolution.shape, convolution.m
    down, across = shape.tiles(m)
    columns = pad_to_vectors(shape.filters, lanes)
    return {
        Field.CHANNELS: shape.channels,
        Field.FILTERS: shape.filters,
        Field.PADDED_CHANNELS: pad_to_vectors(shape.channels, lanes),
        Field.REDUCED: shape.reduced,
        Field.PADDED_REDUCED: _row_of_data(shape, lanes),
        Field.PLANES: shape.planes,
        Field.DEPTH: convolution.depth.source,
        Field.RESULT_DEPTH: convolution.depth.result,
        Field.PADDING_FRONT: convolution.depth.padding,
        Field.PADDED_FILTERS: columns,
        Field.HEIGHT: convolution.source.shape[2],
        Field.WIDTH: convolution.source.shape[3],
        Field.RESULT_HEIGHT: shape.height,
        Field.RESULT_WIDTH: shape.width,
        Field.PADDING_TOP: convolution.padding[0],
        Field.PADDING_LEFT: convolution.padding[1],
        Field.TILES_DOWN: down,
        Field.TILES_ACROSS: across,
        Field.TILES: shape.images * down * across,
        Field.PLACES: algorithm.size_of_tile(m) ** 2,
        Field.PANELS: -(-columns // (panel_width(lanes) * lanes)),
    }


def _row_of_data(shape: Shape, lanes: int) -> int:
    """Return the floats of a row: planes one after another, whole vectors at the end alone."""
    return (shape.planes - 1) * shape.channels + pad_to_vectors(shape.channels, lanes)


def _memory(convolution: Convolution, lanes: int, threads: int) -> dict[int, int]:
    """Return the partition of tiles among threads, and each thread's offset in scratch memory."""
    shape, places = convolution.shape, algorithm.size_of_tile(convolution.m) ** 2
    down, across = shape.tiles(convolution.m)
    tiles = shape.images * down * across
    is_shared = threads > 1 and tiles < threads * BLOCK
    teams = 1 if is_shared else threads
    blocks = teams * max(1, round(tiles / (teams * BLOCK)))
    block = -(-tiles // blocks)
    rows = -(-block // ROWS) * ROWS
    data = rows * _row_of_data(shape, lanes) + GAP
    products = rows * pad_to_vectors(shape.filters, lanes) + GAP
    stride = places * (data + products)
    return {
        Field.BLOCK: block,
        Field.BLOCKS: -(-tiles // block),
        Field.IS_SHARED: int(is_shared),
        Field.DATA_STRIDE: data,
        Field.PRODUCTS_STRIDE: products,
        Field.PRODUCTS: places * data,
        Field.BLOCK_STRIDE: stride,
        Field.COPY: teams * stride,
        Field.COPY_STRIDE: places * pad_to_vectors(shape.channels, lanes),
    }


def _strides(layouts: Sequence[Layout], first: int = 0) -> dict[int, int]:
    """Return the strides of all axes but the channels; 0 along axes of size 1."""
    numbers: dict[int, int] = {}
    for tensor, layout in enumerate(layouts, first):
        axes = zip((0, 2, 3), strides_of(tensor), strict=True)
        numbers |= {place: 0 if layout.shape[axis] == 1 else layout.strides[axis] for axis, place in axes}
    return numbers
