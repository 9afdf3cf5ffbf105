"""Patterns written as Python functions over `op`."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from kernelyard.errors import PatternError, UnknownOpError
from kernelyard.ir import Call, Constant, FunctionBuilder, Tuple, TupleGetItem
from kernelyard.patterns import is_const, is_var, item, match, op, trace, tuple_of, wildcard
from kernelyard.patterns.language.pattern_parts import list_captures

CONSTANT, VARIABLE = is_const(), is_var()
PIECES = ("bias", "activation", "residual")


def linear(x: Any, weight: Any = CONSTANT, bias: Any = CONSTANT, residual: Any = VARIABLE) -> Any:
    """matmul [+ bias] [activation] [+ residual]: one declaration."""
    y = op.matmul(x, weight).capture("root")
    y = y.optional(lambda y: op.add(y, bias))
    y = y.optional(lambda y: (op.nn.relu(y) | op.nn.gelu(y)).capture("activation"))
    return y.optional(lambda y: op.add(y, residual))


def test_parameters_are_captures_and_defaults_say_what_they_are() -> None:
    assert set(list_captures(trace(linear))) == {"x", "weight", "root", *PIECES}  # pyright: ignore


@pytest.mark.parametrize("pieces", [some for count in range(4) for some in combinations(PIECES, count)])
def test_a_pattern_is_a_traced_function_with_optional_pieces(pieces: tuple[str, ...]) -> None:
    b = FunctionBuilder()
    x, r = b.input("x", (2, 8)), b.input("r", (2, 4))
    y = b.op("matmul", x, np.ones((8, 4), np.float32))
    if "bias" in pieces:
        y = b.op("add", y, np.ones(4, np.float32))
    if "activation" in pieces:
        y = b.op("nn.gelu", y)
    if "residual" in pieces:
        y = b.op("add", r, y)
    found = match(trace(linear), y, b.function(y))  # pyright: ignore
    assert found is not None
    assert set(found.captures) == {"x", "weight", "root", *pieces}


def test_attributes_numbers_and_arrays_are_constraints() -> None:
    b = FunctionBuilder()
    x = b.input("x", (2, 3))
    y = b.op("multiply", b.op("nn.softmax", x, axis=1), 0.5)
    f = b.function(y)
    assert match(op.multiply(op.nn.softmax(wildcard(), axis=1), 0.5), y, f)
    assert match(op.multiply(op.nn.softmax(wildcard()), 0.5), y, f), "attributes left out are free"
    assert match(op.multiply(op.nn.softmax(wildcard(), axis=lambda axis: axis > 1), 0.5), y, f) is None
    assert match(op.multiply(op.nn.softmax(wildcard()), 0.25), y, f) is None
    assert match(op.multiply(wildcard(), np.float32(0.5)), y, f)


def test_of_expressions_op_makes_calls() -> None:
    x = FunctionBuilder().input("x", (2, 4), "float16")
    call = op.add(op.nn.relu(x), 1)
    assert isinstance(call, Call)
    assert isinstance(call.args[1], Constant)
    assert call.tensor_type.dtype == "float16"
    parts = op.split(x, axis=1, sections=(1, 3))
    assert isinstance(item(parts, 1), TupleGetItem)
    assert isinstance(tuple_of(x, x), Tuple)
    assert match(tuple_of(wildcard(), item(wildcard(), 0)), x, {}) is None


def test_what_is_no_operator_or_no_pattern_is_named() -> None:
    with pytest.raises(UnknownOpError, match="relo"):
        op.nn.relo(wildcard())
    assert not hasattr(op, "__wrapped__"), "what Python asks every object for is no operator"
    with pytest.raises(PatternError, match="'nothing' must return a pattern"):
        trace(nothing)


def nothing(x: Any) -> None:
    """Forgets its result."""
    op.nn.relu(x)


def test_each_trace_is_independent() -> None:
    """Defaults are copied: two patterns of one function, or two parameters of one default, are different values."""
    one, other = trace(linear), trace(linear)
    b = FunctionBuilder()
    x = b.input("x", (2, 4))
    y = b.op("add", b.op("matmul", x, np.ones((4, 4), np.float32)), np.ones(4, np.float32))
    z = b.op("matmul", y, np.zeros((4, 4), np.float32))
    f = b.function(z)
    assert match(one, y, f)  # pyright: ignore
    assert match(op.matmul(one, other), z, f) is None, "the right side is a constant, not a product"


SCENARIOS = {
    "matmul[+bias][+activation][+residual] as one declaration": (
        test_a_pattern_is_a_traced_function_with_optional_pieces
    ),
}
