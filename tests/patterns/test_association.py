"""A product over a number is found in whatever order it is put together: TVM's divide/multiply re-association."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Function, FunctionBuilder, IRModule, Var, verify
from kernelyard.patterns import Pattern, PatternContext, graph_matches, is_const, match, op, rewriter_of, wildcard
from kernelyard.patterns.composite import op_names
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform import FuseOpsByPattern

CONSTANT = is_const()
Spelling = Callable[[FunctionBuilder, Var, Var, Var], Var]

SPELLINGS: dict[str, Spelling] = {
    "(a * b) / c": lambda b, x, y, z: b.op("divide", b.op("multiply", x, y), z),
    "(b * a) / c": lambda b, x, y, z: b.op("divide", b.op("multiply", y, x), z),
    "a * (b / c)": lambda b, x, y, z: b.op("multiply", x, b.op("divide", y, z)),
    "(b / c) * a": lambda b, x, y, z: b.op("multiply", b.op("divide", y, z), x),
    "(a / c) * b": lambda b, x, y, z: b.op("multiply", b.op("divide", x, z), y),
}
OTHERS: dict[str, Spelling] = {
    "a / (b * c)": lambda b, x, y, z: b.op("divide", x, b.op("multiply", y, z)),
    "a / (b / c)": lambda b, x, y, z: b.op("divide", x, b.op("divide", y, z)),
    "(a / b) / c": lambda b, x, y, z: b.op("divide", b.op("divide", x, y), z),
    "a * (b * c)": lambda b, x, y, z: b.op("multiply", x, b.op("multiply", y, z)),
}


def built(spelling: Spelling, dtype: str = "float32") -> tuple[Function, tuple[Var, ...]]:
    b = FunctionBuilder()
    x, y, z = (b.input(name, (4,), dtype) for name in "abc")
    return b.function(spelling(b, b.op("abs", x), b.op("negative", y), b.op("square", z))), (x, y, z)


def patterns() -> dict[str, Pattern]:
    """The three ways to write the pattern; the operands are told apart by the ops that make them."""

    def parts() -> tuple[Pattern, Pattern, Pattern]:
        return op.abs(wildcard().capture("a")), op.negative(wildcard().capture("b")), op.square(wildcard().capture("c"))

    (a, b, c), (d, e, f), (g, h, i) = parts(), parts(), parts()
    return {
        "(a * b) / c": op.divide(op.multiply(a, b), c),
        "a * (b / c)": op.multiply(d, op.divide(e, f)),
        "(a / c) * b": op.multiply(op.divide(g, i), h),
    }


@pytest.mark.parametrize("written", patterns())
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_divide_and_multiply_are_reassociated(spelling: str, written: str) -> None:
    function, operands = built(SPELLINGS[spelling])
    found = match(patterns()[written], function.result, function)
    assert found is not None
    assert (found["a"], found["b"], found["c"]) == operands
    assert found.members == {binding.var for binding in function.bindings}


@pytest.mark.parametrize("spelling", OTHERS)
def test_other_values_are_not_taken_for_it(spelling: str) -> None:
    function, _ = built(OTHERS[spelling])
    assert all(match(pattern, function.result, function) is None for pattern in patterns().values())


def test_integers_are_rounded_after_each_step_so_that_the_spelling_counts() -> None:
    function, _ = built(SPELLINGS["a * (b / c)"], "int32")
    found = {name: match(pattern, function.result, function) is not None for name, pattern in patterns().items()}
    assert found == {"(a * b) / c": False, "a * (b / c)": True, "(a / c) * b": False}


def test_a_named_or_constrained_part_is_found_as_it_is_written_alone() -> None:
    """Something inside that is asked for by name has to be there."""
    function, _ = built(SPELLINGS["a * (b / c)"])
    product = op.multiply(wildcard(), wildcard())
    assert match(op.divide(product.capture("product"), wildcard()), function.result, function) is None
    assert match(op.divide(product.dup().has_shape(4), wildcard()), function.result, function) is None
    with PatternContext() as context:
        op.divide(op.multiply(wildcard(), wildcard()), wildcard())
    assert not list(graph_matches(context, function)), "edges of a graph may name every part"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_partition_moves_the_ops_as_they_are_written(spelling: str) -> None:
    function, _ = built(SPELLINGS[spelling])
    module = IRModule({"main": function})
    quotient = op.divide(op.multiply(wildcard(), wildcard()), wildcard().capture("divisor"))
    placed = verify(FuseOpsByPattern([("acme.scaled", quotient)])(module))
    (composite,) = [f for f in placed.graph_functions().values() if "Composite" in f.attrs]
    assert op_names(composite) == op_names(function)[3:]
    inputs = [np.float32([1, -2, 3, 4]), np.float32([5, 6, -7, 8]), np.float32([2, 3, 1, 4])]
    assert_same_meaning(module, placed, inputs)


def test_a_rewriter_finds_every_spelling() -> None:
    scaled = rewriter_of(
        lambda x, factor=CONSTANT, divisor=CONSTANT: op.divide(op.multiply(op.tanh(x), factor), divisor),
        lambda x, factor, divisor: op.multiply(op.tanh(x), float(factor.data) / float(divisor.data)),
    )
    b = FunctionBuilder()
    x = b.input("x", (3,))
    first = b.op("multiply", b.op("divide", b.op("tanh", x), 4.0), 2.0)
    second = b.op("divide", b.op("multiply", b.op("tanh", first), 6.0), 2.0)
    function = b.function(second)
    after = verify(IRModule({"main": scaled(function)}))
    assert op_names(after["main"]) == ("tanh", "multiply", "tanh", "multiply")
    assert_same_meaning(IRModule({"main": function}), after, [np.float32([0.1, -0.5, 0.9])])


SCENARIOS = {"associate divide and multiply": test_divide_and_multiply_are_reassociated}
