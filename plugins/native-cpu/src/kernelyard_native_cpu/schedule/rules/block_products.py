"""Products of blocks of 8-bit integers, with a scale for each: sums of a block in int32, then in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelyard import dims
from kernelyard.plugins.codegen_api import (
    PER_WORD,
    Axis,
    Binary,
    Buffer,
    ByteProduct,
    Cast,
    Const,
    Declined,
    Expr,
    Load,
    affine_of,
    axes_of,
    byte_product,
    offset_of,
    walk,
)
from kernelyard_native_cpu.schedule.loops import Loops, even_parts
from kernelyard_native_cpu.schedule.plan import DotProduct, Plan, Stream, size_of
from kernelyard_native_cpu.schedule.rules.byte_products import is_word_for_all

_SUM = Load(Buffer("sum of a block", (), "int32"), ())
# Sums of a tile, each in int32 and in float32; the other registers hold words of weights, scales and what is loaded.
_MOST_SUMS = {32: 12, 16: 5}
_WIDEST = 4
# Those of `pmaddubsw` take a third register, in 16 bits, which hold sums up to this one.
_MOST_NARROW_SUMS = 4
_LANES_IN_16_BITS = (4, 8)
_LARGEST_IN_16_BITS, _LARGEST_SIGNED = (1 << 15) - 1, 1 << 7
# What a word of weights and a word of a row cost beside their products: the former is taken apart.
_WORD_OF_WEIGHTS, _WORD_OF_ROW = 0.7, 0.2
_MOST_UNROLLED = 8
# Heights of tiles for a number of rows that is known only at run time, each with the fewest rows that it is chosen for.
_LEAST_ROWS_OF_TILE = {12: 48, 8: 7, 4: 3, 2: 2, 1: 0}
# Of rows of two digits, tiles of twelve reach 63 to 81 % of the peak of a Zen 4 core, those of eight 80 to 83 %.
_MOST_ROWS_OF_DIGITS = 8
# The prefetch distance, in blocks.
_BLOCKS_AHEAD = 8
_CACHE_LINE = 64


def block_products(loops: Loops) -> Plan | Declined:
    """Plan sums over blocks of four-byte words with one scale per block."""
    first, axis = loops.stage.first, loops.reduce[-1] if loops.reduce else ""
    if loops.in_order or first.reducer != "sum" or len(loops.reduce) < 2 or loops.extents[axis] != PER_WORD:
        return Declined("the stage is not a sum over words of four bytes")
    found = _product_of_bytes(first.body, axis)
    inner = loops.reduce[1:]
    if found is None:
        return Declined("what is summed has no product of an unsigned and a signed byte, or more than one")
    whole, product, digits = found
    block = _sum_of_block(first.body, whole, frozenset(inner), _count(loops, inner))
    vector = _axis_along(loops, product)
    if block is None or vector is None or loops.is_masked(vector) or not is_word_for_all(product, vector):
        return Declined("a block has no scales of its own, or words do not lie along an axis of known size")
    short = (name for name in inner[:-1] if size_of(loops.extents[name]) <= _MOST_UNROLLED)
    plan = replace(
        loops.scalar(),
        reduce=loops.reduce[:-1],
        vector=vector,
        lanes=loops.lanes(vector),
        unrolled_axes=tuple(short),
        dot_product=_dot_product(loops, product, block, vector, digits),
    )
    return _tile_rows(loops, plan, product)


def _dot_product(loops: Loops, product: ByteProduct, block: Expr, vector: str, digits: str | None) -> DotProduct:
    """Return how products of bytes are summed: by an instruction whose sums have 16 bits, where these hold the products
    of a word, two in each lane; within these bits, where they hold all words of a digit of a block."""
    machine, walked = loops.machine, [name for name in loops.reduce[1:-1] if name != digits]
    of_word, words = 2 * _largest_byte(product.unsigned) * _LARGEST_SIGNED, _count(loops, walked)
    if of_word > _LARGEST_IN_16_BITS or loops.lanes(vector) not in _LANES_IN_16_BITS:
        return DotProduct(product, machine.dot_instruction, block, _SUM, digits)
    instruction = machine.narrow_dot_instruction
    in_16_bits = instruction == "pmaddubsw" and words * of_word <= _LARGEST_IN_16_BITS
    return DotProduct(product, instruction, block, _SUM, digits, in_16_bits)


def _largest_byte(word: Expr) -> int:
    """Return the largest that an unsigned byte of a word can be."""
    match word:
        case Binary(op="and", b=Const(value=int(mask))):
            return max((mask & 0xFFFFFFFF).to_bytes(4, "little"))
    return 255


def _count(loops: Loops, axes: Sequence[str]) -> int:
    return size_of(dims.product(loops.extents[name] for name in axes))


def _tile_rows(loops: Loops, plan: Plan, product: ByteProduct) -> Plan:
    """Return the plan with tiles for as many rows as there are."""
    rows = [name for name in loops.others(str(plan.vector)) if name not in axes_of(product.unsigned)]
    if not rows:
        return _of_height(loops, plan, None, 1, product)
    axis, most = rows[-1], _most_sums(loops, plan)
    if plan.dot_product is not None and plan.dot_product.digits is not None:
        most = min(most, _MOST_ROWS_OF_DIGITS)
    extent = loops.extents[axis]
    if isinstance(extent, int):
        return _of_height(loops, plan, axis, _height(extent, most), product)
    heights = [(height, least) for height, least in _LEAST_ROWS_OF_TILE.items() if height <= most]
    first, *others = (
        replace(_of_height(loops, plan, axis, height, product), least_rows=least) for height, least in heights
    )
    return replace(first, for_fewer_rows=tuple(others))


def _height(rows: int, most: int) -> int:
    """Return the height of the tiles that cover so many rows soonest."""
    return min(range(1, most + 1), key=lambda height: (-(-rows // height) * (height + _WORD_OF_WEIGHTS), height))


def _of_height(loops: Loops, plan: Plan, axis: str | None, height: int, product: ByteProduct) -> Plan:
    widest = max(1, min(_WIDEST, _most_sums(loops, plan) // height))
    vectors = loops.vectors(str(plan.vector))
    width = even_parts(vectors, widest)
    stream = _stream(plan, product, width, vectors)
    return replace(plan, tiles=((axis, height),) if axis else (), unroll=width, stream=stream)


def _most_sums(loops: Loops, plan: Plan) -> int:
    most = _MOST_SUMS[loops.machine.vector_registers]
    is_narrow = plan.dot_product is not None and plan.dot_product.in_16_bits
    return min(most, _MOST_NARROW_SUMS) if is_narrow else most


def _product_of_bytes(body: Expr, axis: str) -> tuple[Cast, ByteProduct, str | None] | None:
    """Return the only product of bytes in what is summed, as a float, and the axis of its digits, if it has such."""
    found: list[tuple[Cast, ByteProduct, str | None]] = []
    for part in walk(body):
        if isinstance(part, Cast) and part.dtype == "float32":
            factors, digits = _without_digits(part.x)
            product = byte_product(factors, axis)
            found += [(part, product, digits)] if product is not None else []
    return found[0] if len(found) == 1 else None


def _without_digits(expr: Expr) -> tuple[Expr, str | None]:
    """Return what is shifted by a digit less for each step of an axis, to 0 for the second one, and the axis."""
    match expr:
        case Binary(op="shl", a=shifted, b=Cast(x=distance)):
            counts = affine_of(distance)
            names = [atom.name for atom, _ in counts.terms if isinstance(atom, Axis)]
            if len(names) == len(counts.terms) == 1 and counts.coefficient(names[0]) == -8 and counts.constant == 8:
                return shifted, names[0]
    return expr, None


def _sum_of_block(expr: Expr, product: Cast, inner: frozenset[str], count: int) -> Expr | None:
    """Return the sum of an expression along the inner axes, made of the sum of the product; None where it is not affine
    in the product, with coefficients that are the same along these axes."""
    if expr == product:
        return Cast(_SUM, "float32")
    if not axes_of(expr) & inner:
        return _times(expr, count)
    if not isinstance(expr, Binary) or expr.op not in ("add", "sub", "mul"):
        return None
    if expr.op != "mul":
        parts = [_sum_of_block(part, product, inner, count) for part in (expr.a, expr.b)]
        return None if parts[0] is None or parts[1] is None else Binary(expr.op, parts[0], parts[1])
    varies = [part for part in (expr.a, expr.b) if axes_of(part) & inner]
    if len(varies) != 1:
        return None
    total = _sum_of_block(varies[0], product, inner, count)
    other = expr.b if varies[0] is expr.a else expr.a
    return None if total is None else Binary("mul", total, other)


def _times(expr: Expr, count: int) -> Expr:
    """Return so many times an expression: a literal factor in it is multiplied, where it has one."""
    return _with_literal(expr, count) or Binary("mul", expr, Const(float(count), expr.dtype))


def _with_literal(expr: Expr, count: int) -> Expr | None:
    if isinstance(expr, Const):
        return Const(expr.value * count, expr.dtype)
    if not isinstance(expr, Binary) or expr.op != "mul":
        return None
    first, second = _with_literal(expr.a, count), _with_literal(expr.b, count)
    if first is not None:
        return Binary("mul", first, expr.b)
    return None if second is None else Binary("mul", expr.a, second)


def _axis_along(loops: Loops, product: ByteProduct) -> str | None:
    """Return the axis of known size along which words of weights are contiguous."""
    words = [load for load in walk(product.unsigned) if isinstance(load, Load)]
    if len(words) != 1:
        return None
    offset = offset_of(words[0].buffer, words[0].indices)
    along = (name for name in loops.spatial if offset.coefficient(name) == 1)
    return next((name for name in along if isinstance(loops.extents[name], int)), None)


def _stream(plan: Plan, product: ByteProduct, width: int, vectors: int) -> Stream | None:
    """Return the weights, prefetched some blocks ahead; where a tile is narrower than the columns that lie together,
    which it therefore reads several times, while the columns before them are read.

    The processor foresees lines of 8-bit weights from the first of each block, unless tiles are one line wide.
    """
    (words,) = (load for load in walk(product.unsigned) if isinstance(load, Load))
    of_each_step = width == 1 or bool(axes_of(product.unsigned) - axes_of(words))
    if width < vectors:
        outer = [name for name in plan.spatial if name in axes_of(words) and name != plan.vector]
        return Stream(words, outer[-1], 1, is_aligned=True, of_each_step=of_each_step) if outer else None
    step = offset_of(words.buffer, words.indices).coefficient(plan.reduce[0])
    is_aligned = isinstance(step, int) and step * 4 % _CACHE_LINE == 0
    return Stream(words, plan.reduce[0], _BLOCKS_AHEAD, is_aligned, of_each_step)
