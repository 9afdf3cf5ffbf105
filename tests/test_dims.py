"""Dims: the algebra's normal form against plain evaluation, printing and parsing, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernelyard import dims
from kernelyard.dims import evaluate, symbol
from kernelyard.errors import ParseError, ShapeError
from kernelyard.testing.strategies import symbolic_dims

N, M = symbol("n"), symbol("m")
VALUES = st.fixed_dictionaries({"n": st.integers(1, 50), "m": st.integers(1, 50)})
DIMS = symbolic_dims()


@given(DIMS, DIMS, VALUES)
def test_operators_agree_with_integers(a, b, values):
    x, y = evaluate(a, values), evaluate(b, values)
    assert evaluate(a + b, values) == x + y
    assert evaluate(a - b, values) == x - y
    assert evaluate(a * b, values) == x * y
    assert evaluate(-a, values) == -x
    assert evaluate(dims.maximum(a, b), values) == max(x, y)
    assert evaluate(dims.minimum(a, b), values) == min(x, y)


@given(DIMS, st.integers(1, 12), VALUES)
def test_division_rounds_down(a, divisor, values):
    x = evaluate(a, values)
    assert evaluate(dims.floordiv(a, divisor), values) == x // divisor
    assert evaluate(dims.ceildiv(a, divisor), values) == -(-x // divisor)
    remainder = a % divisor
    assert evaluate(remainder, values) == x % divisor


@given(DIMS, DIMS, VALUES)
def test_division_by_a_symbolic_dim(a, b, values):
    assume(evaluate(b, values) > 0)
    assert evaluate(dims.floordiv(a, b), values) == evaluate(a, values) // evaluate(b, values)


@given(DIMS)
def test_text_is_read_back(dim):
    assert dims.parse(str(dim)) == dim


@given(DIMS, DIMS, DIMS)
def test_equal_sums_and_products_are_one_dim(a, b, c):
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert a * (b + c) == a * b + a * c
    assert a - a == 0
    assert hash(a + b) == hash(b + a)


@given(DIMS, DIMS, VALUES)
def test_substitution_is_evaluation_in_steps(a, b, values):
    inner = dims.substitute(a, {"n": b})
    try:
        expected = evaluate(a, {**values, "n": evaluate(b, values)})
    except ShapeError:
        return
    assert evaluate(inner, values) == expected


@settings(max_examples=300)
@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 6), st.integers(1, 6), VALUES)
def test_nested_floor_divisions_are_merged_correctly(scale, offset, first, second, values):
    inner = dims.floordiv(N * scale + offset, first)
    n = values["n"]
    assert evaluate(dims.floordiv(inner + offset, second), values) == ((n * scale + offset) // first + offset) // second


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        ((N * 4 + 8) // 4, N + 2),
        ((N * 6 + 3) // 3, N * 2 + 1),
        (((N + 1) // 2 + 1) // 2, (N + 3) // 4),
        (N * M // N, M),
        ((N + M) - M, N),
        (N * 0, 0),
        (dims.maximum(N, N + 1), N + 1),
        (dims.minimum(N + 3, N), N),
        (dims.product([N, 2, M]), N * M * 2),
        (N % 1, 0),
    ],
)
def test_normal_form(dim, expected):
    assert dim == expected


def test_broadcast_of_known_sizes():
    assert dims.broadcast(1, N) == N
    assert dims.broadcast(N, 1) == N
    assert dims.broadcast(N, N) == N
    with pytest.raises(ShapeError, match="do not broadcast"):
        dims.broadcast(2, 3)


def test_sizes_that_are_broadcast_again_and_again_do_not_grow():
    """Loops that are written out do so; found by a random binary search of symbolic sizes, too long to be saved."""
    both = dims.broadcast(N, M)
    assert dims.broadcast(both, N) == dims.broadcast(M, both) == both
    assert dims.broadcast(8, dims.broadcast(both, 8)) == dims.broadcast(dims.broadcast(8, M), N)
    assert dims.parse(str(dims.broadcast(8, both))) == dims.broadcast(8, both)
    with pytest.raises(ShapeError, match="do not broadcast"):
        dims.broadcast(dims.broadcast(N, 2), dims.broadcast(3, N))


def test_broadcast_is_checked_when_sizes_are_known():
    both = dims.broadcast(N, M)
    assert evaluate(both, {"n": 1, "m": 4}) == 4
    assert evaluate(both, {"n": 4, "m": 4}) == 4
    with pytest.raises(ShapeError):
        evaluate(both, {"n": 2, "m": 3})


def test_bare_symbols_are_found():
    assert dims.as_symbol(N) == "n"
    assert dims.as_symbol(N + 1) is None
    assert dims.as_symbol(N * 2) is None
    assert dims.as_symbol(3) is None


def test_symbols_inside_functions_are_found():
    assert dims.symbols_of(dims.maximum(N // 2, M * M) + 1) == {"n", "m"}
    assert dims.symbols_of(7) == frozenset()


def test_missing_value_is_named():
    with pytest.raises(ShapeError, match="not known") as info:
        evaluate(N + M, {"n": 1})
    assert "m" in str(info.value.found)


def test_division_by_zero_is_refused():
    with pytest.raises(ShapeError, match="zero"):
        dims.floordiv(N, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n +",
        "(n",
        "n)",
        "n $ 2",
        "max(n)",
        "max(n, 2",
        "foo(n, 2)",
        "1 2",
        "n n",
        "(" * 100 + "n" + ")" * 100,
        "1" * 5000,
    ],
)
def test_bad_text_is_a_parse_error(text):
    with pytest.raises(ParseError):
        dims.parse(text)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_a_known_error(text):
    with contextlib.suppress(ParseError, ShapeError):
        dims.parse(text)


def test_dims_are_values():
    assert len({N + 1, 1 + N, symbol("n") + 1}) == 1
    assert N != M
    assert N != "n"


# --- tables -----------------------------------------------------------------------------------------------------------
@given(st.lists(DIMS | st.integers(-9, 9), max_size=6), st.lists(VALUES, min_size=1, max_size=4))
def test_a_table_agrees_with_evaluation(some, sets):
    table = dims.DimTable(some)
    for values in sets:
        assert list(table(values)) == [evaluate(dim, values) for dim in some]


def test_a_table_says_which_dim_is_not_known():
    table = dims.DimTable([N, N + M, dims.floordiv(8, M)])
    assert [list(table({"n": 1, "m": m})) for m in (1, 2, 4)] == [[1, 2, 8], [1, 3, 4], [1, 5, 2]]
    with pytest.raises(ShapeError, match="is not known") as caught:
        table({"n": 1})
    assert caught.value.found == "no value for m"
    with pytest.raises(ShapeError, match="divided by zero"):
        table({"n": 1, "m": 0})


def test_a_table_of_a_long_dim():
    powers = [N * M]
    for _ in range(60):
        powers.append(powers[-1] * N + M)
    table = dims.DimTable(powers)
    assert [table({"n": 1, "m": m})[-1] for m in (1, 2, 3)] == [61, 122, 183]
