"""The code of Winograd's transforms: of pixels, of weights, and of products to results; vectors are of channels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from kernelyard.records import NamedTuple
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.module import module_text
from kernelyard_llvm.values import Operand, Value, registers
from kernelyard_llvm.winograd import algorithm
from kernelyard_llvm.winograd.epilogue import Stage, finish
from kernelyard_llvm.winograd.matrix import along_both, transform_by_columns, transform_by_rows
from kernelyard_llvm.winograd.record import RECORD, Field, address, number, strides_of

SOURCE, RESULT, OPERANDS = 0, 1, 2


class Pixel(NamedTuple):
    """The address of a pixel of a tensor, and the strides to the next row and pixel."""

    address: Value
    down: Value
    across: Value

    def move_by(self, f: FunctionEmitter, rows: Operand, columns: Operand) -> Value:
        """Return the address of the pixel so many rows and columns from this one."""
        return f.element(f.element(self.address, f.mul(rows, self.down)), f.mul(columns, self.across))


def data_transform(m: int, lanes: int, is_volume: bool) -> str:
    """`transform_data(record, data, copy, tile)`: one tile, all channels; of a volume, of all planes of the window.

    A tile that reaches out of its image is copied first, with zeros around the image.
    """
    (data, copy), (tile,) = registers("ptr", "data", "copy"), registers("i64", "tile")
    f = FunctionEmitter((RECORD, data, copy, tile))
    image, row, column = _first_result(f, tile, m)
    if not is_volume:
        _transform_plane(f, m, lanes, (image, row, column), data, copy)
        return module_text([f.finish("transform_data")], f.declarations, 32 * lanes)
    size, stride, channels = algorithm.size_of_tile(m), number(f, Field.DATA_STRIDE), number(f, Field.CHANNELS)
    depth, planes = number(f, Field.DEPTH), number(f, Field.RESULT_DEPTH)
    volume, first = f.binary("udiv", image, planes), f.binary("urem", image, planes)
    with f.loop(0, number(f, Field.PLANES)) as (plane, _):
        place, made = (
            f.sub(f.add(first, plane), number(f, Field.PADDING_FRONT)),
            f.element(data, f.mul(plane, channels)),
        )
        is_inside = f.compare("ult", place, depth)
        with f.when(is_inside):
            position = f.add(f.mul(volume, depth), place), row, column
            _transform_plane(f, m, lanes, position, made, copy)
        with f.when(f.binary("xor", is_inside, 1)), f.loop(0, channels, step=lanes) as (c, _):
            zeros = [[Value("zeroinitializer", "float", lanes)] * size] * size
            _store_grid(f, zeros, Pixel(made, f.mul(stride, size), stride), c)
    return module_text([f.finish("transform_data")], f.declarations, 32 * lanes)


def _transform_plane(
    f: FunctionEmitter, m: int, lanes: int, position: tuple[Value, Value, Value], data: Value, copy: Value
) -> None:
    """Emit the transform of one tile of an image; position: the image, and its result's first row and column."""
    size, (image, row, column) = algorithm.size_of_tile(m), position
    top, left = f.sub(row, number(f, Field.PADDING_TOP)), f.sub(column, number(f, Field.PADDING_LEFT))
    height, width, channels = (number(f, field) for field in (Field.HEIGHT, Field.WIDTH, Field.CHANNELS))
    source = _pixel(f, Field.SOURCE, SOURCE, image, top, left)
    padded = number(f, Field.PADDED_CHANNELS)
    copied = Pixel(copy, f.mul(padded, size), padded)
    # As unsigned numbers, those below zero are large.
    fits = [f.compare("ule", f.add(first, size), last) for first, last in ((top, height), (left, width))]
    is_inside = _all(f, *fits, *(f.compare("sge", first, 0) for first in (top, left)))
    with f.when(f.binary("xor", is_inside, 1)), f.loop(0, size) as (i, _), f.loop(0, size) as (j, _):
        y, x = f.add(top, i), f.add(left, j)
        is_pixel = _all(f, f.compare("ult", y, height), f.compare("ult", x, width))
        end = f.select(is_pixel, channels, 0)
        pixel, place = f.select(is_pixel, source.move_by(f, i, j), copy), copied.move_by(f, i, j)
        with f.loop(0, padded, step=lanes) as (c, _):
            mask = f.lanes_below(lanes, f.sub(end, c))
            f.store(f.load(f.element(pixel, c), lanes, mask), f.element(place, c))
    chosen = Pixel(*(f.select(is_inside, a, b) for a, b in zip(source, copied, strict=True)))
    stride = number(f, Field.DATA_STRIDE)
    made = Pixel(data, f.mul(stride, size), stride)
    with f.loop(0, channels, step=lanes) as (c, _):
        mask = f.lanes_below(lanes, f.sub(channels, c))
        pixels = [[f.load(place, lanes, mask) for place in line] for line in _grid(f, chosen, c, size)]
        _store_grid(f, along_both(f, transform_by_rows, algorithm.data_transform(m), pixels), made, c)


def weight_transform(m: int, lanes: int) -> str:
    """`transform_weights(weights, panel, channels, filters, first, count, stride)`: one panel, for every place.

    weights: (3, 3, channels, filters). panel: (channels, count), `stride` floats from one place's to the next's; its
    columns are the filters from `first`, and zeros behind the last.
    """
    weights, panel = addresses = registers("ptr", "weights", "panel")
    channels, filters, first, count, stride = sizes = registers(
        "i64", "channels", "filters", "first", "count", "stride"
    )
    f = FunctionEmitter((*addresses, *sizes))
    window = f.mul(channels, filters)
    tile = Pixel(weights, f.mul(window, algorithm.WINDOW), window)
    made = Pixel(panel, f.mul(stride, algorithm.size_of_tile(m)), stride)
    with f.loop(0, channels) as (c, _), f.loop(0, count, step=lanes) as (column, _):
        begin = f.add(first, column)
        mask = f.lanes_below(lanes, f.sub(filters, begin))
        places = _grid(f, tile, f.add(f.mul(c, filters), begin), algorithm.WINDOW)
        numbers = [[f.load(place, lanes, mask) for place in line] for line in places]
        rows = along_both(f, transform_by_rows, algorithm.weight_transform(m), numbers)
        _store_grid(f, rows, made, f.add(f.mul(c, count), column))
    return module_text([f.finish("transform_weights")], f.declarations, 32 * lanes)


def result_transform(m: int, lanes: int, has_bias: bool, stages: Sequence[Stage]) -> str:
    """`transform_result(record, products, tile)`: one tile, all filters, with bias and post-ops.

    Results outside of the image are left out.
    """
    size, products, tile = algorithm.size_of_tile(m), Value("%products", "ptr"), Value("%tile", "i64")
    f = FunctionEmitter((RECORD, products, tile))
    image, row, column = _first_result(f, tile, m)
    rows, columns = f.sub(number(f, Field.RESULT_HEIGHT), row), f.sub(number(f, Field.RESULT_WIDTH), column)
    result = _pixel(f, Field.RESULT, RESULT, image, row, column)
    operands = {
        stage.operand: _pixel(f, Field.OPERANDS + stage.operand, OPERANDS + stage.operand, image, row, column)
        for stage in stages
        if stage.operand is not None
    }
    filters, stride, bias = number(f, Field.FILTERS), number(f, Field.PRODUCTS_STRIDE), address(f, Field.BIAS)
    made = Pixel(products, f.mul(stride, size), stride)
    with f.loop(0, filters, step=lanes) as (c, _):
        mask = f.lanes_below(lanes, f.sub(filters, c))
        sums = [[f.load(place, lanes) for place in line] for line in _grid(f, made, c, size)]
        results = along_both(f, transform_by_columns, algorithm.result_transform(m), sums)
        addend = f.load(f.element(bias, c), lanes, mask) if has_bias else None
        for i, line in enumerate(results):
            for j, value in enumerate(line):
                with f.when(_all(f, f.compare("sgt", rows, i), f.compare("sgt", columns, j))):
                    places = {key: operand.move_by(f, i, j) for key, operand in operands.items()}
                    total = value if addend is None else f.add(value, addend)
                    finished = finish(f, stages, total, places, c, mask)
                    f.store(finished, f.element(result.move_by(f, i, j), c), mask)
    return module_text([f.finish("transform_result")], f.declarations, 32 * lanes)


def _all(f: FunctionEmitter, *conditions: Value) -> Value:
    return reduce(lambda a, b: f.binary("and", a, b), conditions)


def _first_result(f: FunctionEmitter, tile: Value, m: int) -> tuple[Value, Value, Value]:
    """Image, row and column of a tile's first result."""
    across, down = number(f, Field.TILES_ACROSS), number(f, Field.TILES_DOWN)
    line, column = f.binary("udiv", tile, across), f.binary("urem", tile, across)
    image, row = f.binary("udiv", line, down), f.binary("urem", line, down)
    return image, f.mul(row, m), f.mul(column, m)


def _pixel(f: FunctionEmitter, field: int, tensor: int, image: Value, row: Value, column: Value) -> Pixel:
    strides = [number(f, place) for place in strides_of(tensor)]
    steps = [f.mul(index, stride) for index, stride in zip((image, row, column), strides, strict=True)]
    return Pixel(reduce(f.element, steps, address(f, field)), strides[1], strides[2])


def _grid(f: FunctionEmitter, first: Pixel, channel: Value, size: int) -> list[list[Value]]:
    """Return the addresses of size x size pixels of one channel."""
    row, grid = f.element(first.address, channel), []
    for _ in range(size):
        line = [row]
        for _ in range(size - 1):
            line.append(f.element(line[-1], first.across))
        grid.append(line)
        row = f.element(row, first.down)
    return grid


def _store_grid(f: FunctionEmitter, values: Sequence[Sequence[Value]], first: Pixel, channel: Value) -> None:
    """Write one channel of as many pixels down as across."""
    for line, places in zip(values, _grid(f, first, channel, len(values)), strict=True):
        for value, place in zip(line, places, strict=True):
            f.store(value, place)
