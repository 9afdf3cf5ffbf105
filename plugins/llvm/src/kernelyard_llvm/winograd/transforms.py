"""The code of Winograd's transforms: of pixels, of weights, and of products to results; vectors are of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernelyard_llvm.winograd import algorithm
from kernelyard_llvm.winograd.emitter import Emitter
from kernelyard_llvm.winograd.epilogue import Stage, finish
from kernelyard_llvm.winograd.matrix import transformed, transformed_by_columns
from kernelyard_llvm.winograd.record import RECORD, Field, address, number, strides_of

SOURCE, RESULT, OPERANDS = 0, 1, 2


class Pixel(NamedTuple):
    """The address of a pixel of a tensor, and the strides to the next row and pixel."""

    address: str
    down: str
    across: str

    def moved(self, f: Emitter, rows: str, columns: str) -> str:
        """The address of the pixel so many rows and columns from this one."""
        return f.at(self.address, f.integer("mul", rows, self.down), f.integer("mul", columns, self.across))


def data_transform(m: int, lanes: int) -> str:
    """`transform_data(record, data, copy, tile)`: one tile, all channels.

    A tile that reaches out of its image is copied first, with zeros around the image.
    """
    size = algorithm.size_of_tile(m)
    f = Emitter("transform_data", [RECORD, "ptr %data", "ptr %copy", "i64 %tile"], lanes)
    image, row, column = _first_result(f, m)
    top = f.integer("sub", row, number(f, Field.PADDING_TOP))
    left = f.integer("sub", column, number(f, Field.PADDING_LEFT))
    height, width, channels = (number(f, field) for field in (Field.HEIGHT, Field.WIDTH, Field.CHANNELS))
    source = _pixel(f, Field.SOURCE, SOURCE, image, top, left)
    padded = number(f, Field.PADDED_CHANNELS)
    copied = Pixel("%copy", f.integer("mul", padded, str(size)), padded)
    # As unsigned numbers, those below zero are large.
    fits = [
        f.compare("ule", f.integer("add", first, str(size)), last) for first, last in ((top, height), (left, width))
    ]
    begins = [f.compare("sge", first, "0") for first in (top, left)]
    is_inside = f.all_of(*fits, *begins)
    with f.when(f.negated(is_inside)), f.loop("0", str(size)) as i, f.loop("0", str(size)) as j:
        y, x = f.integer("add", top, i), f.integer("add", left, j)
        is_pixel = f.all_of(f.compare("ult", y, height), f.compare("ult", x, width))
        end = f.either(is_pixel, channels, "0")
        pixel = f.either(is_pixel, source.moved(f, i, j), "%copy", "ptr")
        place = copied.moved(f, i, j)
        with f.loop("0", padded, str(lanes)) as c:
            f.store(f.load_lanes(f.at(pixel, c), f.lanes_before(c, end)), f.at(place, c))
    tile = Pixel(*(f.either(is_inside, a, b, t) for a, b, t in zip(source, copied, ("ptr", "i64", "i64"), strict=True)))
    stride = number(f, Field.DATA_STRIDE)
    with f.loop("0", channels, str(lanes)) as c:
        mask = f.lanes_before(c, channels)
        pixels = [[f.load_lanes(place, mask) for place in line] for line in _grid(f, tile, c, size)]
        columns = [transformed(f, algorithm.data_transform(m), line) for line in zip(*pixels, strict=True)]
        rows = [transformed(f, algorithm.data_transform(m), line) for line in zip(*columns, strict=True)]
        f.store_along(rows, f.at("%data", c), stride)
    return f.module()


def weight_transform(m: int, lanes: int) -> str:
    """`transform_weights(weights, panel, channels, filters, first, count, stride)`: one panel, for every place.

    weights: (3, 3, channels, filters). panel: (channels, count), `stride` floats from one place's to the next's; its
    columns are the filters from `first`, and zeros behind the last.
    """
    sizes = [f"i64 %{name}" for name in ("channels", "filters", "first", "count", "stride")]
    f = Emitter("transform_weights", ["ptr %weights", "ptr %panel", *sizes], lanes)
    window = f.integer("mul", "%channels", "%filters")
    tile = Pixel("%weights", f.integer("mul", window, str(algorithm.WINDOW)), window)
    with f.loop("0", "%channels") as c, f.loop("0", "%count", str(lanes)) as column:
        begin = f.integer("add", "%first", column)
        mask = f.lanes_before(begin, "%filters")
        places = _grid(f, tile, f.integer("add", f.integer("mul", c, "%filters"), begin), algorithm.WINDOW)
        numbers = [[f.load_lanes(place, mask) for place in line] for line in places]
        columns = [transformed(f, algorithm.weight_transform(m), line) for line in zip(*numbers, strict=True)]
        rows = [transformed(f, algorithm.weight_transform(m), line) for line in zip(*columns, strict=True)]
        f.store_along(rows, f.at("%panel", f.integer("mul", c, "%count"), column), "%stride")
    return f.module()


def result_transform(m: int, lanes: int, has_bias: bool, stages: Sequence[Stage]) -> str:
    """`transform_result(record, products, tile)`: one tile, all filters, with bias and post-ops.

    Results outside of the image are left out.
    """
    f = Emitter("transform_result", [RECORD, "ptr %products", "i64 %tile"], lanes)
    image, row, column = _first_result(f, m)
    rows = f.integer("sub", number(f, Field.RESULT_HEIGHT), row)
    columns = f.integer("sub", number(f, Field.RESULT_WIDTH), column)
    result = _pixel(f, Field.RESULT, RESULT, image, row, column)
    operands = {
        stage.operand: _pixel(f, Field.OPERANDS + stage.operand, OPERANDS + stage.operand, image, row, column)
        for stage in stages
        if stage.operand is not None
    }
    filters, stride, bias = number(f, Field.FILTERS), number(f, Field.PRODUCTS_STRIDE), address(f, Field.BIAS)
    with f.loop("0", filters, str(lanes)) as c:
        mask = f.lanes_before(c, filters)
        products = f.load_along(f.at("%products", c), stride, algorithm.size_of_tile(m))
        across = [
            transformed_by_columns(f, algorithm.result_transform(m), line) for line in zip(*products, strict=True)
        ]
        results = [transformed_by_columns(f, algorithm.result_transform(m), line) for line in zip(*across, strict=True)]
        addend = f.load_lanes(f.at(bias, c), mask) if has_bias else None
        for i, line in enumerate(results):
            for j, value in enumerate(line):
                with f.when(f.all_of(f.compare("sgt", rows, str(i)), f.compare("sgt", columns, str(j)))):
                    places = {key: operand.moved(f, str(i), str(j)) for key, operand in operands.items()}
                    total = value if addend is None else f.add(value, addend)
                    finished = finish(f, stages, total, places, c, mask)
                    f.store_lanes(finished, f.at(result.moved(f, str(i), str(j)), c), mask)
    return f.module()


def _first_result(f: Emitter, m: int) -> tuple[str, str, str]:
    """Image, row and column of a tile's first result."""
    across, down = number(f, Field.TILES_ACROSS), number(f, Field.TILES_DOWN)
    line, column = f.integer("udiv", "%tile", across), f.integer("urem", "%tile", across)
    image, row = f.integer("udiv", line, down), f.integer("urem", line, down)
    return image, f.integer("mul", row, str(m)), f.integer("mul", column, str(m))


def _pixel(f: Emitter, field: int, tensor: int, image: str, row: str, column: str) -> Pixel:
    strides = [number(f, place) for place in strides_of(tensor)]
    steps = [f.integer("mul", index, stride) for index, stride in zip((image, row, column), strides, strict=True)]
    return Pixel(f.at(address(f, field), *steps), strides[1], strides[2])


def _grid(f: Emitter, first: Pixel, channel: str, size: int) -> list[list[str]]:
    """Addresses of one channel of size x size pixels."""
    row, grid = f.at(first.address, channel), []
    for _ in range(size):
        place, line = row, []
        for _ in range(size):
            line.append(place)
            place = f.at(place, first.across)
        grid.append(line)
        row = f.at(row, first.down)
    return grid
