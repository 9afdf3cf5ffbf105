"""The code between the transforms: matmuls, and how threads share a convolution."""

from __future__ import annotations

from kernelyard.runtime.jit.thread_pool import ALONE_IF_CONTENDED
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.module import module_text
from kernelyard_llvm.values import Value, registers
from kernelyard_llvm.winograd.choice import FEW_ROWS, ROWS, panel_width
from kernelyard_llvm.winograd.record import RECORD, Field, address, number

LINE = 16  # floats that one prefetch brings
# Fetched in each step. A panel has up to four lines for each: two groups of rows fetch the next one.
LINES_AHEAD = 2

# Threads that share a block meet at barriers.
_RUN = f"""
define i32 @run(ptr %record, ptr %unused, i32 %threads, ptr %also_unused) #0 {{
  %is_alone = icmp eq i32 %threads, 1
  br i1 %is_alone, label %alone, label %team
alone:
  call void @work(ptr %record, i64 0, i64 1)
  ret i32 0
team:
  %is_shared.at = getelementptr i64, ptr %record, i64 {int(Field.IS_SHARED)}
  %is_shared = load i64, ptr %is_shared.at
  %meets = icmp ne i64 %is_shared, 0
  %flags = select i1 %meets, i32 {ALONE_IF_CONTENDED}, i32 0
  call void @GOMP_parallel(ptr @member, ptr %record, i32 %threads, i32 %flags)
  ret i32 0
}}
declare void @GOMP_parallel(ptr, ptr, i32, i32)"""


def products(lanes: int) -> str:
    """`run(record, _, threads, _)`: the whole convolution, by a team of so many threads."""
    shapes = [(rows, vectors) for rows in (ROWS, FEW_ROWS) for vectors in range(1, panel_width(lanes) + 1)]
    used: dict[str, str] = {}
    kernels = [_panel_product(rows, vectors, lanes, used) for rows, vectors in shapes]
    return module_text([*kernels, _multiply(lanes, used), _work(used), _member(used), _RUN], used, 32 * lanes)


def _panel_product(rows: int, vectors: int, lanes: int, used: dict[str, str]) -> str:
    """Emit the product of some rows of data and one panel; sums stay in registers over all channels, `ahead` is
    prefetched.
    """
    data, panel, out, ahead = addresses = registers("ptr", "data", "panel", "out", "ahead")
    data_stride, out_stride, channels = sizes = registers("i64", "data_stride", "out_stride", "channels")
    f = FunctionEmitter((*addresses, *sizes), used)
    starts = [data]
    for _ in range(rows - 1):
        starts.append(f.element(starts[-1], data_stride))
    zeros = [Value("zeroinitializer", "float", lanes)] * (rows * vectors)
    with f.loop(0, channels, zeros) as (channel, sums):
        first = f.element(panel, f.mul(channel, vectors * lanes))
        weights = [f.load(f.element(first, column * lanes), lanes) for column in range(vectors)]
        fetched = f.element(ahead, f.mul(channel, LINES_AHEAD * LINE))
        for line in range(LINES_AHEAD):
            f.prefetch(f.element(fetched, line * LINE), 2)
        for row in range(rows):
            factor = f.load(f.element(starts[row], channel))
            for place, weight in enumerate(weights, row * vectors):
                sums[place] = f.fma(factor, weight, sums[place])
    for row in range(rows):
        for column in range(vectors):
            f.store(sums[row * vectors + column], f.element(out, column * lanes))
        out = f.element(out, out_stride)
    return f.finish(f"product_{rows}_{vectors}", is_internal=True)


def _multiply(lanes: int, used: dict[str, str]) -> str:
    """`multiply(record, data, products, tiles, first, last)`: panels from first to last, counted through all places."""
    (data, results), (tiles, first, last) = (
        registers("ptr", "data", "products"),
        registers("i64", "tiles", "first", "last"),
    )
    f = FunctionEmitter((RECORD, data, results, tiles, first, last), used)
    channels, filters = number(f, Field.REDUCED), number(f, Field.PADDED_FILTERS)
    weights, panels = address(f, Field.WEIGHTS), number(f, Field.PANELS)
    data_stride, products_stride = number(f, Field.DATA_STRIDE), number(f, Field.PRODUCTS_STRIDE)
    row_of_data, width = number(f, Field.PADDED_REDUCED), panel_width(lanes) * lanes
    with f.loop(first, last) as (item, _):
        place, column = f.binary("udiv", item, panels), f.mul(f.binary("urem", item, panels), width)
        columns = f.intrinsic("smin", f.sub(filters, column), width)
        panel = f.element(weights, f.mul(f.add(f.mul(place, filters), column), channels))
        following = f.element(panel, f.mul(columns, channels))
        rows_of_data = f.element(data, f.mul(place, data_stride))
        rows_of_results = f.element(f.element(results, f.mul(place, products_stride)), column)
        with f.loop(0, tiles, step=ROWS) as (row, _):
            # The next panel is fetched while this one is used: a part of it by each group of rows.
            ahead = f.mul(f.binary("udiv", row, ROWS), f.mul(channels, LINES_AHEAD * LINE))
            given = f.element(rows_of_data, f.mul(row, row_of_data))
            out = f.element(rows_of_results, f.mul(row, filters))
            arguments = given, panel, out, f.element(following, ahead), row_of_data, filters, channels
            is_few = f.compare("sle", f.sub(tiles, row), FEW_ROWS)
            for rows, condition in ((FEW_ROWS, is_few), (ROWS, f.binary("xor", is_few, 1))):
                for vectors in range(1, panel_width(lanes) + 1):
                    with f.when(f.binary("and", condition, f.compare("eq", columns, vectors * lanes))):
                        _call(f, f"@product_{rows}_{vectors}", *arguments)
    return f.finish("multiply", is_internal=True)


def _call(f: FunctionEmitter, function: str, *arguments: Value) -> None:
    """Call a function of this module, or one at an address."""
    f.line(f"call void {function}({', '.join(each.typed for each in arguments)})")


def _share(f: FunctionEmitter, count: Value, rank: Value, size: Value) -> tuple[Value, Value]:
    """First and last of what one of a team does."""
    first, last = (f.binary("udiv", f.mul(count, part), size) for part in (rank, f.add(rank, 1)))
    return first, last


def _work(used: dict[str, str]) -> str:
    """`work(record, thread, team)`: what one thread of a team does."""
    thread, team = registers("i64", "thread", "team")
    f = FunctionEmitter((RECORD, thread, team), used)
    is_shared = f.compare("ne", number(f, Field.IS_SHARED), 0)
    blocks, block = number(f, Field.BLOCKS), number(f, Field.BLOCK)
    own_first, own_last = _share(f, blocks, thread, team)
    first, last = f.select(is_shared, 0, own_first), f.select(is_shared, blocks, own_last)
    rank, size = f.select(is_shared, thread, 0), f.select(is_shared, team, 1)
    scratch, copies = address(f, Field.SCRATCH), f.mul(thread, number(f, Field.COPY_STRIDE))
    before = f.mul(f.select(is_shared, 0, thread), number(f, Field.BLOCK_STRIDE))
    data, copy = f.element(scratch, before), f.element(f.element(scratch, number(f, Field.COPY)), copies)
    results = f.element(data, number(f, Field.PRODUCTS))
    row_of_data, row_of_products = number(f, Field.PADDED_REDUCED), number(f, Field.PADDED_FILTERS)
    transform_data, transform_result = address(f, Field.TRANSFORM_DATA), address(f, Field.TRANSFORM_RESULT)
    panels = _share(f, f.mul(number(f, Field.PLACES), number(f, Field.PANELS)), rank, size)
    has_others = f.binary("and", is_shared, f.compare("ugt", team, 1))
    with f.loop(first, last) as (current, _):
        begin = f.mul(current, block)
        tiles = f.intrinsic("smin", f.sub(number(f, Field.TILES), begin), block)
        share = _share(f, tiles, rank, size)
        with f.loop(*share) as (tile, _):
            place = f.element(data, f.mul(tile, row_of_data))
            _call(f, transform_data.ref, RECORD, place, copy, f.add(begin, tile))
        _meet(f, has_others)
        _call(f, "@multiply", RECORD, data, results, tiles, *panels)
        _meet(f, has_others)
        with f.loop(*share) as (tile, _):
            place = f.element(results, f.mul(tile, row_of_products))
            _call(f, transform_result.ref, RECORD, place, f.add(begin, tile))
    return f.finish("work", is_internal=True)


def _meet(f: FunctionEmitter, has_others: Value) -> None:
    """Emit a barrier between the threads that share a block."""
    with f.when(has_others):
        f.line(f.call("GOMP_barrier", "void"))


def _member(used: dict[str, str]) -> str:
    """`member(record)`: what each thread of a parallel region calls."""
    f = FunctionEmitter([RECORD], used)
    numbers = [f.here(f.call(f"omp_get_{what}", "i32"), "i32") for what in ("thread_num", "num_threads")]
    _call(f, "@work", RECORD, *(f.convert("zext", each, "i64") for each in numbers))
    return f.finish("member", is_internal=True)
