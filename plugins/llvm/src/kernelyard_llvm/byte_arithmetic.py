"""Arithmetic on quantized tensors, element by element, quantized again, by AVX-512.

Sixteen bytes become floats, are combined with other bytes or with constants, and stored as bytes. A row of the second
operand may stand for many of the first: a number for each channel of an image, say.
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
from kernelyard_llvm.values import Value

LANES = 16  # bytes that are computed together: a vector of floats
UNROLLED = 4  # vectors without a mask


class Field(IntEnum):
    """Places in the record: addresses, numbers, and floats by their bits.

    A sum is left * LEFT + right * RIGHT + OFFSET, of bytes as they are stored; a product is (left - LEFT) *
    (right - RIGHT) * FACTOR + OFFSET; lines are left * factor + offset, by a row of factors and one of offsets, both
    float32, which RIGHT_SOURCE is the address of. It is cut off, rounded, and ZERO is added.
    """

    LEFT_SOURCE = 0
    RIGHT_SOURCE = auto()
    RESULT = auto()
    SCRATCH = auto()
    ROWS = auto()
    COLUMNS = auto()
    REPEATS = auto()  # rows of the left for each row of the right
    ZERO = auto()
    LEFT = auto()
    RIGHT = auto()
    FACTOR = auto()
    OFFSET = auto()
    LOW = auto()
    HIGH = auto()
    LENGTH = auto()


SUM, PRODUCT, LINES = "sum", "product", "lines"


class Kind(NamedTuple):
    """Choices of the code: SUM, PRODUCT or LINES; and which operands are int8, else uint8."""

    operation: str
    left_is_signed: bool
    right_is_signed: bool = False

    @property
    def right_type(self) -> str:
        """The type of the second operand's elements."""
        return "float" if self.operation == LINES else "i8"


def byte_arithmetic_kernel(kind: Kind, team: Mapping[str, int]) -> Code | None:
    """Return `int32_t run(int64_t* record, _, int32_t threads, _)`; None where there is no llvmlite.

    The result may lie over an operand of its shape. team: addresses of GOMP_parallel, omp_get_thread_num and
    omp_get_num_threads.
    """
    key = f"arithmetic of bytes 1 {kind}"
    return compile_written(lambda: byte_arithmetic_text(kind), team, ("run",), FEATURES, key)


def byte_arithmetic_text(kind: Kind) -> str:
    """Return the kernel as LLVM assembly."""
    used: dict[str, str] = {}
    return module_text([_work(kind, used), member_text(used), RUN], used, 512)


def _work(kind: Kind, used: dict[str, str]) -> str:
    """Return `work(record, member, members)`: the rows of one thread."""
    f = FunctionEmitter((RECORD, MEMBER, MEMBERS), used)
    columns = field(f, Field.COLUMNS)
    whole = f.binary("and", columns, -LANES * UNROLLED)
    begin, end = rows_of_member(f, field(f, Field.ROWS))
    with f.loop(begin, end) as (row, _):
        source = f.binary("udiv", row, field(f, Field.REPEATS))
        starts = [
            (f.element(field(f, at, "ptr"), f.mul(n, columns), type_), type_)
            for at, n, type_ in (
                (Field.LEFT_SOURCE, row, "i8"),
                (Field.RIGHT_SOURCE, source, kind.right_type),
                (Field.RESULT, row, "i8"),
            )
        ]
        with f.loop(0, whole, step=LANES * UNROLLED) as (first, _):
            for n in range(UNROLLED):
                _combine(f, kind, [f.element(at, f.add(first, n * LANES), type_) for at, type_ in starts])
        with f.loop(whole, columns, step=LANES) as (first, _):
            mask = f.lanes_below(LANES, f.sub(columns, first))
            _combine(f, kind, [f.element(at, first, type_) for at, type_ in starts], mask)
    return f.finish("work", is_internal=True)


def _combine(f: FunctionEmitter, kind: Kind, places: Sequence[Value], mask: Value | None = None) -> None:
    """Emit a vector of results, of those lanes that the mask has; places: of both operands and of the result."""
    left, right, result = places
    x = _floats(f, left, kind.left_is_signed, mask)
    first, second, offset = (field(f, each, "float") for each in (Field.LEFT, Field.RIGHT, Field.OFFSET))
    if kind.operation == LINES:
        factor, term = (f.load(each, LANES, mask) for each in (right, f.element(right, field(f, Field.COLUMNS))))
        real = f.fma(x, factor, term)
    elif kind.operation == PRODUCT:
        y = _floats(f, right, kind.right_is_signed, mask)
        real = f.fma(f.mul(f.sub(x, first), f.sub(y, second)), field(f, Field.FACTOR, "float"), offset)
    else:
        real = f.fma(x, first, f.fma(_floats(f, right, kind.right_is_signed, mask), second, offset))
    low, high = (field(f, each, "float") for each in (Field.LOW, Field.HIGH))
    whole = round_to_int32(f, cut(f, "olt", cut(f, "ogt", real, low), high))
    f.store(f.convert("trunc", f.add(whole, field(f, Field.ZERO, "i32")), "i8"), result, mask)


def _floats(f: FunctionEmitter, place: Value, is_signed: bool, mask: Value | None) -> Value:
    """Return a vector of bytes as floats."""
    whole = f.convert("sext" if is_signed else "zext", f.load(place, LANES, mask, "i8"), "i32")
    return f.convert("sitofp", whole, "float")
