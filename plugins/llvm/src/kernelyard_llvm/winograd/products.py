"""The code between the transforms: products of matrices, and how threads share a convolution."""

from __future__ import annotations

from kernelyard_llvm.winograd.emitter import Emitter, module
from kernelyard_llvm.winograd.record import RECORD, Field, address, number

# Tiles whose sums are kept in registers at once: with the vectors of a panel, 24 of 32 registers, or 12 of 16.
ROWS = 6
FEW_ROWS = 4  # what is left of a block does less needlessly
LINE = 16  # floats that one prefetch brings
# Fetched in each step. A panel has up to four lines for each: two groups of rows fetch the next one.
LINES_AHEAD = 2

_RUN = """
define i32 @run(ptr %record, ptr %unused, i32 %threads, ptr %also_unused) #0 {
  %is_alone = icmp eq i32 %threads, 1
  br i1 %is_alone, label %alone, label %team
alone:
  call void @work(ptr %record, i64 0, i64 1)
  ret i32 0
team:
  call void @GOMP_parallel(ptr @member, ptr %record, i32 %threads, i32 0)
  ret i32 0
}
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare void @GOMP_barrier()
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()"""


def panel_width(lanes: int) -> int:
    """Vectors in a panel of weights, at most: what registers hold beside each other."""
    return 4 if lanes == 16 else 2


def products(lanes: int) -> str:
    """`run(record, _, threads, _)`: the whole convolution, by a team of so many threads."""
    widths = range(1, panel_width(lanes) + 1)
    kernels = [_panel_product(rows, vectors, lanes) for rows in (ROWS, FEW_ROWS) for vectors in widths]
    return module([*kernels, _multiply(lanes), _work(lanes), _member(lanes), _RUN], lanes)


def _panel_product(rows: int, vectors: int, lanes: int) -> str:
    """Some rows of data times one panel; sums stay in registers over all channels, `ahead` is fetched on the way."""
    addresses = [f"ptr %{name}" for name in ("data", "panel", "out", "ahead")]
    sizes = [f"i64 %{name}" for name in ("data_stride", "out_stride", "channels")]
    f = Emitter(f"product_{rows}_{vectors}", [*addresses, *sizes], lanes, "internal ")
    places = [(row, column) for row in range(rows) for column in range(vectors)]
    starts = ["%data"]
    for _ in range(rows - 1):
        starts.append(f.at(starts[-1], "%data_stride"))
    with f.sums("%channels", [f"{row}.{column}" for row, column in places]) as (channel, sums):
        panel = f.at("%panel", f.integer("mul", channel, str(vectors * lanes)))
        weights = [f.load(f.at(panel, str(column * lanes))) for column in range(vectors)]
        ahead = f.at("%ahead", f.integer("mul", channel, str(LINES_AHEAD * LINE)))
        for line in range(LINES_AHEAD):
            f.prefetch(f.at(ahead, str(line * LINE)))
        for row in range(rows):
            factor = f.broadcast(f.value(f"load float, ptr {f.at(starts[row], channel)}, align 4"))
            for column in range(vectors):
                name = f"{row}.{column}"
                sums[name] = f.fma(factor, weights[column], sums[name])
    out = "%out"
    for row in range(rows):
        for column in range(vectors):
            f.store(sums[f"{row}.{column}"], f.at(out, str(column * lanes)))
        out = f.at(out, "%out_stride")
    return f.text()


def _multiply(lanes: int) -> str:
    """`multiply(record, data, products, tiles, first, last)`: panels from first to last, counted through all places."""
    sizes = [f"i64 %{name}" for name in ("tiles", "first", "last")]
    f = Emitter("multiply", [RECORD, "ptr %data", "ptr %products", *sizes], lanes, "internal ")
    channels, filters = number(f, Field.CHANNELS), number(f, Field.PADDED_FILTERS)
    weights, panels = address(f, Field.WEIGHTS), number(f, Field.PANELS)
    data_stride, products_stride = number(f, Field.DATA_STRIDE), number(f, Field.PRODUCTS_STRIDE)
    width = str(panel_width(lanes) * lanes)
    with f.loop("%first", "%last") as item:
        place, column = f.integer("udiv", item, panels), f.integer("mul", f.integer("urem", item, panels), width)
        columns = f.least(f.integer("sub", filters, column), width)
        before = f.integer("add", f.integer("mul", place, filters), column)
        panel = f.at(weights, f.integer("mul", before, channels))
        following = f.at(panel, f.integer("mul", columns, channels))
        data = f.at("%data", f.integer("mul", place, data_stride))
        out = f.at("%products", f.integer("mul", place, products_stride), column)
        with f.loop("0", "%tiles", str(ROWS)) as row:
            # The next panel is fetched while this one is used: a part of it by each group of rows.
            length = f.integer("mul", channels, str(LINES_AHEAD * LINE))
            part = f.integer("mul", f.integer("udiv", row, str(ROWS)), length)
            row_of_data = f.at(data, f.integer("mul", row, number(f, Field.PADDED_CHANNELS)))
            row_of_out = f.at(out, f.integer("mul", row, filters))
            addresses = [f"ptr {each}" for each in (row_of_data, panel, row_of_out, f.at(following, part))]
            strides = [f"i64 {each}" for each in (number(f, Field.PADDED_CHANNELS), filters, channels)]
            is_few = f.compare("sle", f.integer("sub", "%tiles", row), str(FEW_ROWS))
            for rows, condition in ((FEW_ROWS, is_few), (ROWS, f.negated(is_few))):
                for vectors in range(1, panel_width(lanes) + 1):
                    is_it = f.compare("eq", columns, str(vectors * lanes))
                    with f.when(f.all_of(condition, is_it)):
                        f.call(f"@product_{rows}_{vectors}", *addresses, *strides)
    return f.text()


def _share(f: Emitter, count: str, rank: str, size: str) -> tuple[str, str]:
    """First and last of what one of a team does."""
    first, last = (
        f.integer("udiv", f.integer("mul", count, part), size) for part in (rank, f.integer("add", rank, "1"))
    )
    return first, last


def _work(lanes: int) -> str:
    """`work(record, thread, team)`: what one thread of a team does."""
    f = Emitter("work", [RECORD, "i64 %thread", "i64 %team"], lanes, "internal ")
    is_shared = f.compare("ne", number(f, Field.IS_SHARED), "0")
    blocks, block = number(f, Field.BLOCKS), number(f, Field.BLOCK)
    own_first, own_last = _share(f, blocks, "%thread", "%team")
    first, last = f.either(is_shared, "0", own_first), f.either(is_shared, blocks, own_last)
    rank, size = f.either(is_shared, "%thread", "0"), f.either(is_shared, "%team", "1")
    scratch, copies = address(f, Field.SCRATCH), f.integer("mul", "%thread", number(f, Field.COPY_STRIDE))
    before = f.integer("mul", f.either(is_shared, "0", "%thread"), number(f, Field.BLOCK_STRIDE))
    data, copy = f.at(scratch, before), f.at(scratch, number(f, Field.COPY), copies)
    results = f.at(data, number(f, Field.PRODUCTS))
    row_of_data, row_of_products = number(f, Field.PADDED_CHANNELS), number(f, Field.PADDED_FILTERS)
    transform_data, transform_result = address(f, Field.TRANSFORM_DATA), address(f, Field.TRANSFORM_RESULT)
    panels = _share(f, f.integer("mul", number(f, Field.PLACES), number(f, Field.PANELS)), rank, size)
    with f.loop(first, last) as current:
        begin = f.integer("mul", current, block)
        tiles = f.least(f.integer("sub", number(f, Field.TILES), begin), block)
        share = _share(f, tiles, rank, size)
        with f.loop(*share) as tile:
            place = f.at(data, f.integer("mul", tile, row_of_data))
            tile = f.integer("add", begin, tile)
            f.call(transform_data, "ptr %record", f"ptr {place}", f"ptr {copy}", f"i64 {tile}")
        _meet(f, is_shared)
        bounds = [f"i64 {each}" for each in (tiles, *panels)]
        f.call("@multiply", "ptr %record", f"ptr {data}", f"ptr {results}", *bounds)
        _meet(f, is_shared)
        with f.loop(*share) as tile:
            place = f.at(results, f.integer("mul", tile, row_of_products))
            f.call(transform_result, "ptr %record", f"ptr {place}", f"i64 {f.integer('add', begin, tile)}")
    return f.text()


def _meet(f: Emitter, is_shared: str) -> None:
    """Those who share a block wait for each other."""
    with f.when(f.all_of(is_shared, f.compare("ugt", "%team", "1"))):
        f.call("@GOMP_barrier")


def _member(lanes: int) -> str:
    """`member(record)`: what each thread of a parallel region calls."""
    f = Emitter("member", [RECORD], lanes, "internal ")
    numbers = [f.value(f"call i32 @omp_get_{what}()") for what in ("thread_num", "num_threads")]
    f.call("@work", "ptr %record", *(f"i64 {f.value(f'zext i32 {each} to i64')}" for each in numbers))
    return f.text()
