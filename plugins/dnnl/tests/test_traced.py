"""Traced numbers: what is computed of sizes becomes lines, and what is decided becomes conditions."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import pytest

from kernelyard_dnnl.layout import MemoryDescriptor, any_layout, dense
from kernelyard_dnnl.primitive import Vector
from kernelyard_dnnl.traced import NotTraceableError, Tape, decide, defer, tape_of, value_of


class Place(IntEnum):
    SCRATCH = 3


@pytest.fixture
def tape() -> Tape:
    return Tape()


def evaluate(tape: Tape, result: Any, *values: int) -> Any:
    """Return what the lines make of other values of the tape's dims; None where a condition does not hold."""
    text = tape.write(result)  # which may add lines
    lines = "\n ".join([*tape.lines, f"return {text}"])
    parameters = ", ".join(f"d{number}" for number in range(len(tape.dims)))
    space: dict[str, Any] = dict(tape.constants)
    exec(f"def function({parameters}):\n {lines}", space)
    return space["function"](*values)


ARITHMETIC = {
    "sum": lambda n: 3 + n + 2,
    "difference": lambda n: 40 - (n - 2),
    "product": lambda n: 4 * n * n,
    "quotient": lambda n: (n // 3, 100 // n),
    "rest": lambda n: (n % 3, 100 % n),
    "rounded up": lambda n: -(-n // 4),
    "ratio": lambda n: (n / 4, 4 / n, 2.5 * n),
    "divmod": lambda n: (*divmod(n, 3), *divmod(100, n)),
    "sum and product of several": lambda n: (sum([n, n, 1]), math.prod((n, 2, n))),
    "in a tuple of its own kind": lambda n: Vector((1, n)),
    "in a dict": lambda n: {1: n, 2: 7},
}


@pytest.mark.parametrize("compute", ARITHMETIC.values(), ids=ARITHMETIC)
def test_arithmetic_is_repeated_for_other_values(tape, compute):
    result = compute(tape.leaf("n", 8))
    assert value_of(result) == compute(8)
    for n in (1, 5, 8, 13):
        assert evaluate(tape, result, n) == compute(n)


def test_equal_expressions_are_computed_once(tape):
    n = tape.leaf("n", 8)
    assert (n * 2 + 1).name == (n * 2 + 1).name
    assert len(tape.lines) == 2


DECISIONS = {
    "equal": (lambda n: n == 8, [8], [7, 9]),
    "not equal": (lambda n: n != 8, [8], [7]),
    "less": (lambda n: n < 10, [1, 9], [10, 11]),
    "not less": (lambda n: n < 5, [5, 6], [4]),
    "at least": (lambda n: n >= 8, [8, 9], [7]),
    "truth": (lambda n: bool(n % 2), [2, 4], [3]),
    "largest": (lambda n: max(n, 5), [6, 7], [4]),
    "in a tuple": (lambda n: n in (2, 8), [8], [2, 5]),
    "two shapes": (lambda n: (1, n) == (1, 8), [8], [9]),
    "an index": (lambda n: [0, 0][: n.__index__()], [8], [7]),
    "a range": (lambda n: list(range(n)), [8], [7]),
    "a text": (lambda n: f"{n} zeros", [8], [7]),
    "a float": (lambda n: float(n), [8], [7]),
    "rounded": (lambda n: round(n / 4), [8], [7]),
    "a decision of a function": (lambda n: decide(lambda a: a > 4, n), [5, 9], [4]),
}


@pytest.mark.parametrize("case", DECISIONS.values(), ids=DECISIONS)
def test_decisions_are_conditions(tape, case):
    decide_about, alike, different = case
    n = tape.leaf("n", 8)
    assert value_of(decide_about(n)) == decide_about(8)
    for value in alike:
        assert evaluate(tape, n, value) == value
    for value in different:
        assert evaluate(tape, n, value) is None


def test_no_cache_finds_what_depends_on_a_size(tape):
    with pytest.raises(TypeError, match="unhashable"):
        hash(tape.leaf("n", 8))


def test_a_number_that_no_line_can_say_is_refused(tape):
    with pytest.raises(NotTraceableError):
        _ = tape.leaf("n", 8) * math.inf


def test_layouts_are_those_of_other_sizes(tape):
    n = tape.leaf("n", 8)
    result = dense((1, 16, n, n + 1), "float32", (0, 2, 3, 1))
    assert evaluate(tape, result, 5) == dense((1, 16, 5, 6), "float32", (0, 2, 3, 1))
    assert value_of(result) == dense((1, 16, 8, 9), "float32", (0, 2, 3, 1))
    assert value_of(result.nbytes) == value_of(result).nbytes


def test_members_of_enumerations_are_no_literals(tape):
    size = tape.leaf("n", 3)
    assert evaluate(tape, (Place.SCRATCH, size, True, 7), 5) == (Place.SCRATCH, 5, True, 7)


def test_what_has_no_traced_number_is_the_same_object(tape):
    layout = any_layout((3, 4), "float32")
    assert tape_of(layout) is None
    assert evaluate(tape, (layout, tape.leaf("n", 8)), 3)[0] is layout


def test_deferred_calls_keep_their_arguments(tape):
    n = tape.leaf("n", 8)
    deferred: Any = defer(max, n, 3)
    assert deferred.arguments == (n, 3)
    assert defer(max, 8, 3) == 8
    assert not tape.lines


@pytest.mark.parametrize("strides", [(20, 5, 1), (4, 1, 12), (0, 1, 0), (100, 10, 1), None], ids=str)
def test_bytes_of_a_layout_are_the_librarys(strides):
    from kernelyard_dnnl._native import load_library

    for dtype in ("float32", "bfloat16", "int8"):
        for shape in ((3, 4, 5), (1, 4, 1), (1, 1, 1), (3, 0, 5)):
            layout = MemoryDescriptor(shape, dtype, strides) if strides else dense(shape, dtype)
            assert layout.nbytes == load_library().call("dnnl_memory_desc_get_size", layout.address)
