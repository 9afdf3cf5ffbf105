"""Products of 8-bit integers: planned as products of words of four, which instructions multiply and sum."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.plugins.codegen_api import PER_WORD, ByteProduct, Declined, byte_product, step_along
from kernelyard_native_cpu.schedule.loops import Loops
from kernelyard_native_cpu.schedule.plan import DotProduct, Plan
from kernelyard_native_cpu.schedule.rules.conv import conv
from kernelyard_native_cpu.schedule.rules.gemv import gemv
from kernelyard_native_cpu.schedule.rules.matmul import matmul


def byte_products(loops: Loops) -> Plan | Declined:
    """Plan int8 dot products: bytes are packed in words along the innermost reduced axis."""
    first, axis = loops.stage.first, loops.reduce[-1] if loops.reduce else ""
    if first.reducer != "sum" or len(loops.reduce) < 2 or loops.extents[axis] != PER_WORD:
        return Declined("the stage is not a sum over words of four bytes")
    product = byte_product(first.body, axis)
    if product is None:
        return Declined("what is summed is not a product of an unsigned and a signed byte")
    words = _of_words(loops, product)
    for rule in (gemv, matmul, conv, _columns):
        plan = rule(words)
        if isinstance(plan, Plan) and not plan.vector_is_reduced and is_word_for_all(product, plan.vector):
            machine = loops.machine
            is_narrow = product.fits_16_bits
            dot_product = DotProduct(product, machine.narrow_dot_instruction if is_narrow else machine.dot_instruction)
            others = tuple(replace(each, dot_product=dot_product) for each in plan.for_fewer_rows)
            return replace(plan, dot_product=dot_product, for_fewer_rows=others)
    return Declined("no axis has a word in each lane")


def _of_words(loops: Loops, product: ByteProduct) -> Loops:
    """Return the loops of the contraction of words."""
    first, *others = loops.stage.blocks
    axis = loops.reduce[-1]
    block = replace(first, axes=tuple(each for each in first.axes if each.name != axis), body=product.words)
    stage = replace(loops.stage, blocks=(block, *others))
    return replace(loops, stage=stage, reduce=loops.reduce[:-1])


def _columns(loops: Loops) -> Plan | Declined:
    """Return one vector of sums at a time, for a short matrix that meets one row."""
    vector = loops.vector
    if loops.in_order or vector is None:
        return Declined("no axis has two lanes")
    return replace(loops.scalar(), vector=vector, lanes=loops.lanes(vector), masked=loops.is_masked(vector))


def is_word_for_all(product: ByteProduct, vector: str | None) -> bool:
    """Return True where each lane has a word: bytes in a buffer are read as a word for all lanes."""
    return vector is None or all(step_along(word, vector) == 0 for word in product.of_memory)
