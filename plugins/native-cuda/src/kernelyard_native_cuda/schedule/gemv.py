"""GEMV: a vector times a matrix, which is read once: what counts is that it is read as fast as memory gives it.

Where the matrix runs along the sum, some lanes of a warp make a result, each with neighbours at a time. Where it runs
along the results, tensor cores take tiles of a few rows of it, copied ahead of use; without them each thread makes
neighbouring results, the warps of a block share out the sum, and put it together through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Declined, Expr, IterVar, Load, Stage, unconditional_loads
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.expressions import Expressions, from_stored
from kernelyard_native_cuda.codegen.kernel import Kernel, WrittenKernel
from kernelyard_native_cuda.codegen.types import computed_type, stored_type
from kernelyard_native_cuda.schedule.access import access_of, lanes_along, lanes_in
from kernelyard_native_cuda.schedule.contraction import Contraction, Operand, contraction_of, loads_of
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.matmul import FEWEST, tensor_dtype, tiles_of, write_contraction
from kernelyard_native_cuda.schedule.points import finish_point
from kernelyard_native_cuda.schedule.rounds import select_loaded, write_load
from kernelyard_native_cuda.schedule.rule import Schedule
from kernelyard_native_cuda.schedule.tile import LEAST_PIECE, PIECE, copy_width

WARP = 32
THREADS = 256
BLOCKS = 4  # that a multiprocessor needs to read as fast as memory gives
LINE = 128  # bytes of a line of memory
AHEAD = 4  # loads of a thread that are on their way at once
ROOM = 2  # blocks of a multiprocessor: told of it, the compiler has registers for what is on its way
LEAST_DEPTH = 32
MOST_VECTORS = 8  # more of them are worth a tile
MOST_ALONG_SUM = (
    4  # vectors: read again for each piece of a matrix that runs along the sum, more take longer than a tile
)


@dataclass(frozen=True)
class Product:
    """few: the operand with `count` vectors, or any number up to it. many: the matrix.

    lanes: neighbours that a thread takes at once, along the sum or along the results. in_tiles: whether tensor cores
    take it as a matrix of `FEWEST` rows.
    """

    it: Contraction
    few: Operand
    many: Operand
    count: int
    along_sum: bool = False
    lanes: int = 1
    in_tiles: bool = False

    @property
    def description(self) -> str:
        along = "sum" if self.along_sum else "results"
        if self.in_tiles:
            return f"the matrix is contiguous along the {along}, tiles of {FEWEST} rows on tensor cores"
        return f"the matrix is contiguous along the {along}, {self.lanes} elements per load"


def gemv(stages: Sequence[Stage], name: str, machine: Machine) -> Schedule | Declined:
    """Return a kernel for a first stage that multiplies a vector by a matrix."""
    it = contraction_of(stages[0])
    if it is None or it.a.own:
        return Declined("the stage is not a product of one vector and a matrix")
    product = product_in(it, machine)
    if isinstance(product, Declined):
        return product
    return Schedule(1, write_product(product, name, machine), product.description)


def product_of(it: Product, machine: Machine) -> Product | Declined:
    """Match a matrix-vector product; decline where the matrix cannot be read coalesced."""
    depth = it.it.depth
    if isinstance(depth, int) and depth < LEAST_DEPTH:
        return Declined(f"the reduced axis is shorter than {LEAST_DEPTH}")
    extents = {axis.name: axis.extent for axis in it.it.stage.first.axes}
    for axes, along_sum in ((it.it.reduce, True), (it.many.own, False)):
        lanes = 0
        for load in unconditional_loads(it.many.expr, in_indices=True):
            access = access_of(load)
            if access is not None:
                lanes = max(lanes, lanes_along(access, axes, extents, lanes_in(load.dtype, PIECE)))
        if lanes:
            found = replace(it, along_sum=along_sum, lanes=lanes)
            return replace(found, in_tiles=_suits_tiles(found, machine))
    return Declined("the matrix is contiguous neither along the sum nor along the results")


def _suits_tiles(it: Product, machine: Machine) -> bool:
    """Return True where tensor cores multiply: a matrix along whose rows the results lie, or one along the sum by more
    than a few vectors, where both operands are copied to shared memory as they are.
    """
    is_narrow = tensor_dtype(it.it, machine) in ("float16", "bfloat16")
    are_few = it.few.extent != it.count or it.count <= MOST_ALONG_SUM
    if (it.along_sum and are_few) or it.many is not it.it.b or not is_narrow:
        return False
    widths = (copy_width(it.it, operand) for operand in (it.it.a, it.it.b))
    return all(width >= least for width, least in zip(widths, (LEAST_PIECE, PIECE), strict=True))


def product_in(it: Contraction, machine: Machine) -> Product | Declined:
    """Return a contraction as a product of at most a few vectors and a matrix."""
    if not it.a.own:
        return product_of(Product(it, it.a, it.b, 1), machine)
    for few, many in ((it.a, it.b), (it.b, it.a)):
        count = few.extent
        is_less = isinstance(count, int) and (not isinstance(many.extent, int) or many.extent > count)
        if isinstance(count, int) and count <= MOST_VECTORS and is_less:
            return product_of(Product(it, few, many, count), machine)
    return Declined(f"there are more than {MOST_VECTORS} vectors")


def blocks_of(it: Product, machine: Machine) -> Dim:
    """Return the number of thread blocks."""
    if it.in_tiles:
        return tiles_of(it.it, machine, has_few_rows=True)
    a_block = THREADS // _group(it, machine) if it.along_sum else _threads_across(it, machine) * it.lanes
    return dims.ceildiv(it.many.extent, a_block) * it.it.batches


def write_product(it: Product, name: str, machine: Machine) -> WrittenKernel:
    """Return the kernel."""
    if it.in_tiles:
        return write_contraction(it.it, name, machine, has_few_rows=True).kernel
    return _write_along_sum(it, name, machine) if it.along_sum else _write_along_results(it, name, machine)


# --- along the sum ----------------------------------------------------------------------------------------------------
def _group(it: Product, machine: Machine) -> int:
    """Return the number of threads per result: enough to be busy, and a whole block where results are few and sums are
    long.
    """
    depth = it.it.depth
    results = it.many.extent * it.it.batches
    if not isinstance(depth, int):
        return WARP
    if isinstance(results, int) and results < machine.multiprocessors * 4 and depth >= THREADS * it.lanes * 2:
        return THREADS
    threads = WARP
    while threads > 4 and threads * it.lanes >= 2 * depth:
        threads //= 2
    return threads


def _write_along_sum(it: Product, name: str, machine: Machine) -> WrittenKernel:
    stage, group = it.it.stage, _group(it, machine)
    kernel = Kernel(stage.written, THREADS)
    writer, type_ = kernel.writer, computed_type(stage.first.output.dtype)
    groups = dims.ceildiv(it.many.extent, THREADS // group)
    writer.line(f"const int lane = threadIdx.x % {group};")
    writer.line(
        f"const long long own = blockIdx.x % {kernel.dim(groups)} * {THREADS // group} + threadIdx.x / {group};"
    )
    batch = kernel.axes_at(writer.define("long long", f"blockIdx.x / {kernel.dim(groups)}"), it.it.batch)
    writer.line(f"{type_} total[{it.count}] = {{}};")
    axes = {**batch, **kernel.axes_at("own", it.many.own)}
    is_there = f"own < {kernel.dim(it.many.extent)}"
    head = (
        f"for (long long k = lane * {it.lanes}; {is_there} && k < {kernel.dim(it.it.depth)}; k += {group * it.lanes})"
    )
    writer.line("#pragma unroll 4")
    with writer.block(head):
        at_k = {**axes, **kernel.axes_at("k", it.it.reduce)}
        matrix = _packs(kernel, it, it.many, at_k, it.it.reduce)
        with _vectors(kernel, it):
            here = {**at_k, **kernel.axes_at("vector", it.few.own)}
            packs = {**matrix, **_packs(kernel, it, it.few, here, it.it.reduce)}
            writer.line("#pragma unroll")
            with writer.block(f"for (int i = 0; i < {it.lanes}; ++i)"):
                moved = here if it.lanes == 1 else {**here, **kernel.axes_at("(k + i)", it.it.reduce)}
                _add(kernel, it, moved, packs, "total[vector]")
    reduced = f"block_reduced<Sum, {THREADS}>" if group == THREADS else f"lanes_reduced<Sum, {group}>"
    writer.line("#pragma unroll")
    writer.line(f"for (int vector = 0; vector < {it.count}; ++vector) total[vector] = {reduced}(total[vector]);")
    with writer.block(f"if (lane == 0 && own < {kernel.dim(it.many.extent)})"), _vectors(kernel, it):
        _finish(kernel, it, {**axes, **kernel.axes_at("vector", it.few.own)}, "total[vector]")
    return kernel.finish(name, groups * it.it.batches)


# --- along the results ------------------------------------------------------------------------------------------------
def _write_along_results(it: Product, name: str, machine: Machine) -> WrittenKernel:
    across, lanes = _threads_across(it, machine), it.lanes
    stage, warps, columns = it.it.stage, THREADS // WARP, across * lanes
    kernel = Kernel(stage.written, THREADS)
    writer, type_ = kernel.writer, computed_type(stage.first.output.dtype)
    blocks = dims.ceildiv(it.many.extent, columns)
    writer.line(f"const int group = threadIdx.x / {across}, first = threadIdx.x % {across} * {lanes};")
    writer.line(f"const long long start = blockIdx.x % {kernel.dim(blocks)} * {columns}, own = start + first;")
    batch = kernel.axes_at(writer.define("long long", f"blockIdx.x / {kernel.dim(blocks)}"), it.it.batch)
    writer.line(f"{type_} total[{it.count}][{lanes}] = {{}};")
    _write_sums(kernel, it, batch, THREADS // across)
    writer.line(f"SHARED({type_}, partial, {warps * columns});")
    with _vectors(kernel, it):
        writer.line("#pragma unroll")
        with writer.block(f"for (int i = 0; i < {lanes}; ++i)"):
            writer.line(f"const {type_} value = groups_reduced<Sum, {across}>(total[vector][i]);")
            place = f"threadIdx.x / {WARP} * {columns} + first + i"
            writer.line(f"if (threadIdx.x % {WARP} < {across}) partial[{place}] = value;")
        writer.line("__syncthreads();")
        with writer.block(f"for (int at = threadIdx.x; at < {columns}; at += {THREADS})"):
            writer.line("const long long result = start + at;")
            with writer.block(f"if (result < {kernel.dim(it.many.extent)})"):
                writer.line(f"{type_} sum = partial[at];")
                added = operations.combine(
                    "sum", "sum", f"({type_})partial[one * {columns} + at]", stage.first.output.dtype
                )
                writer.line(f"for (int one = 1; one < {warps}; ++one) sum = {added};")
                axes = {**batch, **kernel.axes_at("vector", it.few.own), **kernel.axes_at("result", it.many.own)}
                _finish(kernel, it, axes, "sum")
        writer.line("__syncthreads();")
    return kernel.finish(name, blocks * it.it.batches, room_for=ROOM)


def _write_sums(kernel: Kernel, it: Product, batch: Mapping[str, str], groups: int) -> None:
    """Write each thread's part of the sums: groups of threads take turns at rows of the matrix."""
    writer = kernel.writer
    loads = _load_packed(it, it.many, it.many.own)

    def at_iteration() -> Expressions:
        return kernel.expressions({**batch, **kernel.axes_at("k", it.it.reduce), **kernel.axes_at("own", it.many.own)})

    type_, load = write_load(kernel, loads, it.lanes, "k", at_iteration)
    with writer.block(f"const auto use = [&](long long k, const {type_}& loaded)"):
        at_k = {**batch, **kernel.axes_at("k", it.it.reduce)}
        with _vectors(kernel, it):
            vector = kernel.axes_at("vector", it.few.own)
            writer.line("#pragma unroll")
            with writer.block(f"for (int i = 0; i < {it.lanes}; ++i)"):
                here = {**at_k, **kernel.axes_at("(own + i)", it.many.own), **vector}
                _add(kernel, it, here, select_loaded(loads, "i"), "total[vector][i]")
    writer.line(";")
    end = f"own < {kernel.dim(it.many.extent)} ? {kernel.dim(it.it.depth)} : 0ll"
    writer.line(f"in_rounds<{AHEAD}, {type_}>(group, {end}, {groups}, {load}, use);")


def _threads_across(it: Product, machine: Machine) -> int:
    """Return how many threads share a row of the matrix: whole lines of memory, and so few that blocks are many."""
    nbytes = it.lanes * dtypes.itemsize(loads_of(it.many.expr)[0].dtype)
    results: Dim = it.many.extent * it.it.batches
    wanted, across = machine.multiprocessors * BLOCKS, WARP
    while across * nbytes > LINE and isinstance(results, int) and results < wanted * across * it.lanes:
        across //= 2
    return across


# --- both -------------------------------------------------------------------------------------------------------------
@contextmanager
def _vectors(kernel: Kernel, it: Product) -> Iterator[None]:
    kernel.writer.line("#pragma unroll")
    with kernel.writer.block(f"for (int vector = 0; vector < {it.count}; ++vector)"):
        if it.few.extent == it.count:
            yield
        else:  # the same for all threads
            with kernel.writer.block(f"if (vector < {kernel.dim(it.few.extent)})"):
                yield


def _packs(
    kernel: Kernel, it: Product, operand: Operand, axes: Mapping[str, str], along: Sequence[IterVar]
) -> dict[Expr, str]:
    """Return vector loads of an operand's neighbouring elements: the text of each load at lane `i`."""
    here = kernel.expressions(axes)
    found: dict[Expr, str] = {}
    for load in _load_packed(it, operand, along) if it.lanes > 1 else ():
        type_ = stored_type(load.dtype)
        text = f"pack_at<{it.lanes}, {type_}>({kernel.tensor(load.buffer)}, {here.offset(load.buffer, load.indices)})"
        pack = kernel.writer.define(f"Pack<{type_}, {it.lanes}>", text)
        found[load] = from_stored(f"{pack}.at[i]", load.dtype)
    return found


def _load_packed(it: Product, operand: Operand, along: Sequence[IterVar]) -> list[Load]:
    """Return what an operand reads with `lanes` neighbours at a time."""
    extents = {axis.name: axis.extent for axis in it.it.stage.first.axes}
    accesses = map(access_of, unconditional_loads(operand.expr, in_indices=True))
    return [each.load for each in accesses if each and lanes_along(each, along, extents, it.lanes) >= it.lanes]


def _add(kernel: Kernel, it: Product, axes: Mapping[str, str], known: dict[Expr, str], total: str) -> None:
    block = it.it.stage.first
    here = kernel.expressions(axes, known)
    here.expect(block.body)
    kernel.writer.line(f"{total} = {operations.combine('sum', total, here.value(block.body), block.output.dtype)};")


def _finish(kernel: Kernel, it: Product, axes: Mapping[str, str], total: str) -> None:
    block = it.it.stage.first
    here = kernel.expressions(axes)
    if block.init is not None:
        total = operations.combine("sum", here.value(block.init), total, block.output.dtype)
    finish_point(kernel, here, it.it.stage, kernel.writer.define(computed_type(block.output.dtype), total))
