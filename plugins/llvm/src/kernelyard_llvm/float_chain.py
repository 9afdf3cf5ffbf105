"""Chains of functions and arithmetic over float32 tensors, element by element, in one pass by AVX-512."""

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
    field,
    member_text,
    rows_of_member,
)
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.module import module_text
from kernelyard_llvm.values import Value, literal

LANES = 16  # floats of a vector
UNROLLED = 4  # vectors without a mask
ARITHMETIC = ("add", "sub", "mul")
# Functions, and how many numbers each has in the record.
FUNCTIONS = {"linear": 2, "clip": 2, "relu": 0, "round": 0}


class Field(IntEnum):
    """Places in the record: addresses and numbers. What steps need follows, in their order: the address of an operand,
    or the bits of floats."""

    SOURCE = 0
    RESULT = auto()
    SCRATCH = auto()
    ROWS = auto()
    COLUMNS = auto()
    STEPS = auto()


class Step(NamedTuple):
    """One of ARITHMETIC or FUNCTIONS. is_row: the operand is one row, the same for all."""

    operation: str
    is_row: bool = False

    @property
    def places(self) -> int:
        """How many places of the record belong to it."""
        return FUNCTIONS.get(self.operation, 1)


def float_chain_kernel(steps: Sequence[Step], team: Mapping[str, int]) -> Code | None:
    """Return `int32_t run(int64_t* record, _, int32_t threads, _)`; None where there is no llvmlite.

    The result may lie over an operand of its shape. team: addresses of GOMP_parallel, omp_get_thread_num and
    omp_get_num_threads.
    """
    key = f"chain of floats 1 {[tuple(step) for step in steps]}"
    return compile_written(lambda: float_chain_text(steps), team, ("run",), FEATURES, key)


def float_chain_text(steps: Sequence[Step]) -> str:
    """Return the kernel as LLVM assembly."""
    used: dict[str, str] = {}
    return module_text([_work(steps, used), member_text(used), RUN], used, 512)


def _work(steps: Sequence[Step], used: dict[str, str]) -> str:
    """Return `work(record, member, members)`: the rows of one thread."""
    f = FunctionEmitter((RECORD, MEMBER, MEMBERS), used)
    columns = field(f, Field.COLUMNS)
    whole = f.binary("and", columns, -LANES * UNROLLED)
    begin, end = rows_of_member(f, field(f, Field.ROWS))
    with f.loop(begin, end) as (row, _):
        start = f.mul(row, columns)
        with f.loop(0, whole, step=LANES * UNROLLED) as (first, _):
            for n in range(UNROLLED):
                _vector(f, steps, start, f.add(first, n * LANES))
        with f.loop(whole, columns, step=LANES) as (first, _):
            _vector(f, steps, start, first, f.lanes_below(LANES, f.sub(columns, first)))
    return f.finish("work", is_internal=True)


def _vector(f: FunctionEmitter, steps: Sequence[Step], start: Value, column: Value, mask: Value | None = None) -> None:
    """Emit a vector of results, of those lanes that the mask has. start: where the row begins."""
    element = f.add(start, column)
    x = f.load(f.element(field(f, Field.SOURCE, "ptr"), element), LANES, mask)
    place = int(Field.STEPS)
    for step in steps:
        if step.operation in ARITHMETIC:
            at = f.element(field(f, place, "ptr"), column if step.is_row else element)
            x = f.binary(step.operation, x, f.load(at, LANES, mask))
        else:
            x = _function(f, step.operation, x, [field(f, place + n, "float") for n in range(step.places)])
        place += step.places
    f.store(x, f.element(field(f, Field.RESULT, "ptr"), element), mask)


def _function(f: FunctionEmitter, operation: str, x: Value, numbers: Sequence[Value]) -> Value:
    if operation == "linear":
        return f.fma(x, *numbers)
    if operation == "round":
        return f.intrinsic("nearbyint", x)
    # NaN is in no order with a bound, and stays.
    low, *high = numbers or (literal(0.0, x.type),)
    x = f.select(f.compare("olt", x, low), low, x)
    return f.select(f.compare("ogt", x, high[0]), high[0], x) if high else x
