"""Depthwise convolutions of bytes by AVX-512 VNNI: 32-bit sums, scaled and stored as bytes again.

Channels are innermost. Four pixels of a window are interleaved, so that one instruction multiplies them by four weights
of each channel and adds up. The two rounds of interleaving leave channels in the order that the two rounds of packing
32 bits to 8 put right again.

A pixel of the result is computed from the addresses of its window's pixels, which move along with it; what lies outside
the image is the address of zeros, so that strides, dilation and padding are numbers, and the code is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, auto

from kernelyard.records import NamedTuple
from kernelyard.runtime.jit.linking import Code, compile_written
from kernelyard_llvm.byte_kernels import (
    FEATURES,
    MEMBER,
    MEMBERS,
    RECORD,
    RUN,
    cut,
    field,
    member_text,
    round_to_int32,
    rows_of_member,
)
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.module import module_text
from kernelyard_llvm.values import Value, literal

WIDTHS = (64, 32, 16)  # channels that are computed together: bytes of a vector
QUAD = 4  # pixels of a window that one instruction multiplies
STEP = 8  # addresses that one instruction moves along
SIGN = -128


class Field(IntEnum):
    """Places in the record: addresses, then numbers.

    A block is `width` channels: weights, then for each channel an int32 that sums begin with, a scale and an offset.
    Behind all blocks come the zeros of one pixel, then how far each pixel of a window is down and right of the first.
    """

    SOURCE = 0
    BLOCKS = auto()
    RESULT = auto()
    SCRATCH = auto()
    ZEROS = auto()  # where they lie behind the first block
    DOWN = auto()
    RIGHT = auto()
    ROWS = auto()  # of all images of the result
    ROWS_OF_IMAGE = auto()
    COLUMNS = auto()
    HEIGHT = auto()  # of an image of the source
    WIDTH = auto()
    CHANNELS = auto()
    BLOCK_COUNT = auto()
    QUADS = auto()  # of a window
    PLACES = auto()  # QUADS * QUAD, rounded up to STEP
    STRIDE_DOWN = auto()
    STRIDE_RIGHT = auto()
    FIRST_INNER = auto()  # column whose window moved along inside the image
    LAST_INNER = auto()  # behind the last of those
    LENGTH = auto()


class Kind(NamedTuple):
    """Choices of the code: how many channels at once, and whether source and result are int8, else uint8.

    bounds: results are cut off at; None where those of their dtype are enough, and all fit into 32 bits before.
    """

    width: int
    source_is_signed: bool
    result_is_signed: bool
    bounds: tuple[int, int] | None = None


_PACKS = {
    64: ("avx512.packssdw.512", "avx512.packsswb.512", "avx512.packuswb.512"),
    32: ("avx2.packssdw", "avx2.packsswb", "avx2.packuswb"),
    16: ("sse2.packssdw.128", "sse2.packsswb.128", "sse2.packuswb.128"),
}


def scratch_nbytes(places: int, threads: int) -> int:
    """Return the scratch memory for so many addresses of a window, and how far each moves, in each thread."""
    return 2 * 8 * places * threads


def byte_depthwise_kernel(kind: Kind, team: Mapping[str, int]) -> Code | None:
    """Return `int32_t run(int64_t* record, _, int32_t threads, _)`; None where there is no llvmlite.

    team: addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads.
    """
    key = f"depthwise of bytes 1 {kind}"
    return compile_written(lambda: byte_depthwise_text(kind), team, ("run",), (*FEATURES, "avx512vnni"), key)


def byte_depthwise_text(kind: Kind) -> str:
    """Return the kernel as LLVM assembly."""
    used: dict[str, str] = {}
    return module_text([_work(kind, used), member_text(used), RUN], used, 8 * kind.width)


def _work(kind: Kind, used: dict[str, str]) -> str:
    """Return `work(record, member, members)`: the rows of one thread."""
    f = FunctionEmitter((RECORD, MEMBER, MEMBERS), used)
    number = {each: field(f, each) for each in Field if each > Field.SCRATCH and each is not Field.LENGTH}
    places = number[Field.PLACES]
    window = f.element(field(f, Field.SCRATCH, "ptr"), f.mul(f.mul(MEMBER, places), 2), "i64")
    begin, end = rows_of_member(f, number[Field.ROWS])
    with f.loop(begin, end) as (row, _), f.loop(0, number[Field.COLUMNS]) as (column, _):
        is_inner = f.binary(
            "and",
            f.compare("sge", column, number[Field.FIRST_INNER]),
            f.compare("slt", column, number[Field.LAST_INNER]),
        )
        with f.when(is_inner):
            _move(f, window, places)
        with f.when(f.binary("xor", is_inner, literal(1, "i1"))):
            _place(f, number, window, row, column)
        pixel = f.add(f.mul(row, number[Field.COLUMNS]), column)
        result = f.element(field(f, Field.RESULT, "ptr"), f.mul(pixel, number[Field.CHANNELS]), "i8")
        with f.loop(0, number[Field.BLOCK_COUNT], runs=True) as (block, _):
            start = f.intrinsic("smin", f.mul(block, kind.width), f.sub(number[Field.CHANNELS], kind.width))
            nbytes = f.mul(f.add(f.mul(number[Field.QUADS], QUAD), 3 * 4), kind.width)
            parameters = f.element(field(f, Field.BLOCKS, "ptr"), f.mul(block, nbytes), "i8")
            stored = _block(f, kind, number[Field.QUADS], window, parameters, start)
            f.store(stored, f.element(result, start, "i8"))
    return f.finish("work", is_internal=True)


def _move(f: FunctionEmitter, window: Value, places: Value) -> None:
    """Emit the next pixel's addresses, all of which are inside where they were."""
    with f.loop(0, places, step=STEP, runs=True) as (place, _):
        at = f.element(window, place, "i64")
        steps = f.load(f.element(at, places, "i64"), STEP, type_="i64")
        f.store(f.add(f.load(at, STEP, type_="i64"), steps), at)


def _place(f: FunctionEmitter, number: Mapping[Field, Value], window: Value, row: Value, column: Value) -> None:
    """Emit the addresses of a pixel's window, and how far they are from those of the next one."""
    blocks = field(f, Field.BLOCKS, "ptr")
    zeros, down, right = (f.element(blocks, number[each], "i8") for each in (Field.ZEROS, Field.DOWN, Field.RIGHT))
    height, width, channels = (number[each] for each in (Field.HEIGHT, Field.WIDTH, Field.CHANNELS))
    image, row_of_image = (f.binary(op, row, number[Field.ROWS_OF_IMAGE]) for op in ("udiv", "urem"))
    with f.loop(0, number[Field.PLACES], runs=True) as (place, _):
        offsets = [f.load(f.element(each, place, "i64"), type_="i64") for each in (down, right)]
        y = f.add(f.mul(row_of_image, number[Field.STRIDE_DOWN]), offsets[0])
        x = f.add(f.mul(column, number[Field.STRIDE_RIGHT]), offsets[1])
        is_row = f.compare("ult", y, height)
        pixel = f.add(f.mul(f.add(f.mul(image, height), y), width), x)
        inside = f.element(field(f, Field.SOURCE, "ptr"), f.mul(pixel, channels), "i8")
        address = f.select(f.binary("and", is_row, f.compare("ult", x, width)), inside, zeros)
        step = f.select(is_row, f.mul(number[Field.STRIDE_RIGHT], channels), 0)
        at = f.element(window, place, "i64")
        f.store(address, at)
        f.store(step, f.element(at, number[Field.PLACES], "i64"))


def _block(f: FunctionEmitter, kind: Kind, quads: Value, window: Value, parameters: Value, start: Value) -> Value:
    """Return the bytes of one pixel's channels from `start` on."""
    lanes = kind.width // QUAD
    terms = f.element(parameters, f.mul(quads, QUAD * kind.width), "i8")
    begin = [f.load(f.element(terms, n * lanes, "i32"), lanes, type_="i32") for n in range(QUAD)]
    with f.loop(0, quads, begin, runs=True) as (quad, sums):
        first = f.mul(quad, QUAD)
        pixels = [_pixel(f, kind, f.element(window, f.add(first, n), "i64"), start) for n in range(QUAD)]
        weights = f.element(parameters, f.mul(first, kind.width), "i8")
        for n, numbers in enumerate(_interleave_pixels(f, pixels)):
            factor = f.load(f.element(weights, n * kind.width, "i8"), lanes, type_="i32")
            operands = [sums[n], numbers, factor]
            name = f"llvm.x86.avx512.vpdpbusd.{8 * kind.width}"
            sums[n] = f.pure(f.call(name, numbers.text, *operands), "i32", lanes, operands)
    scales, offsets = (f.element(terms, each * kind.width, "i32") for each in (1, 2))
    stored: list[Value] = []
    for n, total in enumerate(sums):
        scale, offset = (f.load(f.element(each, n * lanes), lanes) for each in (scales, offsets))
        real = f.fma(f.convert("sitofp", total, "float"), scale, offset)
        if kind.bounds is not None:
            low, high = (literal(bound, "float") for bound in kind.bounds)
            real = cut(f, "olt", cut(f, "ogt", real, low), high)
        stored.append(round_to_int32(f, real))
    return _pack_words(f, kind, stored)


def _pixel(f: FunctionEmitter, kind: Kind, place: Value, start: Value) -> Value:
    """Return the channels of a pixel as uint8."""
    at = f.load(place, type_="ptr")
    loaded = f.load(f.element(at, start, "i8"), kind.width, type_="i8")
    return f.binary("xor", loaded, literal(SIGN, "i8")) if kind.source_is_signed else loaded


def _interleave_pixels(f: FunctionEmitter, pixels: Sequence[Value]) -> list[Value]:
    """Return words of four pixels' bytes: in each 16 bytes of the first vector the channels 0 to 3, ..."""
    pairs = [_unpack_half(f, pixels[n], pixels[n + 1], half) for half in (0, 1) for n in (0, 2)]
    halves = [_as(f, each, "i16") for each in pairs]
    words = [_unpack_half(f, halves[n], halves[n + 1], half) for n in (0, 2) for half in (0, 1)]
    return [_as(f, each, "i32") for each in words]


def _unpack_half(f: FunctionEmitter, a: Value, b: Value, half: int) -> Value:
    """Return the elements of the first or second half of each 16 bytes of both vectors, in turns."""
    elements = 16 if a.type == "i8" else 8
    starts = range(half * elements // 2, a.lanes, elements)
    order = [n for start in starts for place in range(elements // 2) for n in (start + place, start + place + a.lanes)]
    return f.shuffle(a, b, order)


def _as(f: FunctionEmitter, value: Value, type_: str) -> Value:
    """Return the same bits as elements of another width."""
    bits = {"i8": 8, "i16": 16, "i32": 32}
    lanes = value.lanes * bits[value.type] // bits[type_]
    return f.pure(f"bitcast {value.typed} to <{lanes} x {type_}>", type_, lanes, [value])


def _pack_words(f: FunctionEmitter, kind: Kind, words: Sequence[Value]) -> Value:
    """Return four vectors of int32 as bytes."""
    to_16, to_signed, to_unsigned = (f"llvm.x86.{name}" for name in _PACKS[kind.width])
    halves: list[Value] = []
    for n in (0, 2):
        operands = words[n : n + 2]
        text = f.call(to_16, f"<{kind.width // 2} x i16>", *operands)
        halves.append(f.pure(text, "i16", kind.width // 2, operands))
    text = f.call(to_signed if kind.result_is_signed else to_unsigned, f"<{kind.width} x i8>", *halves)
    return f.pure(text, "i8", kind.width, halves)
