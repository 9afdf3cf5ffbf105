"""Index arithmetic: normal forms, and what may be proved."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelyard import dims
from kernelyard.ir import TensorType
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import Axis, Binary, Const, DimValue, Expr, cast, index, select
from kernelyard.tir.index_algebra import IndexAlgebra, is_index
from kernelyard.tir.interpreter import evaluate
from kernelyard.tir.simplify import Simplifier, simplify

i, j, k = Axis("i"), Axis("j"), Axis("k")
N = dims.symbol("n")
ALGEBRA = IndexAlgebra({"i": 4, "j": 8, "k": N})


def normal(expr: Expr) -> Expr:
    return ALGEBRA.normalize(expr)


def test_flattening_and_splitting_again_cancel():
    flat = i * 8 + j
    assert normal(flat // 8) == i
    assert normal(flat % 8) == j
    flat = i * DimValue(N) + k
    assert normal(flat // N) == i
    assert normal(flat % N) == k


def test_constants_are_brought_into_range():
    assert normal((i * 8 + j + 16) // 8) == i + 2
    assert normal((i * 8 + j - 8) % 8) == j
    assert normal((j + 19) % 8) == normal((j + 3) % 8)


def test_minimum_and_maximum_are_decided():
    assert normal(Binary("max", j - 7, Const(0, "int64"))) == Const(0, "int64")
    assert normal(Binary("min", k, index(N) - 1)) == k


def test_loaded_integers_are_no_index_arithmetic():
    x = Buffer("x", (4,), "int64")
    assert not is_index(x[i] + 1)
    wraps = x[i] + 1 > x[i]
    assert Simplifier({"i": 4})(wraps) == wraps


def test_conditions_are_decided_by_ranges():
    simplify = Simplifier({"i": 4, "k": N})
    assert simplify(select(index(N) > k, i, k)) == i
    assert simplify(select((i >= 0) & (i < 4), i, k)) == i
    undecided = select(index(N) > i, i, k)
    assert simplify(undecided) == undecided


def test_a_product_falls_only_where_its_other_factors_are_not_negative():
    """j grows, and (2 - j) // 2 becomes negative: the last j proves nothing."""
    expr = (j + DimValue(N)) * ((2 - j) // 2)
    for chosen in (select(expr > 3, expr + i, expr), select(index(8) > j * (2 - i // 2 - j), i, k)):
        for size in range(1, 6):
            assert values(Simplifier({"i": 4, "j": 8, "k": N})(chosen), size) == values(chosen, size)


def test_a_size_counts_from_one_within_a_minimum_too():
    """n - 2 is -1 for the least size, also where it is part of a part."""
    least = Binary("min", i, DimValue(N) - 2)
    for expr in (least, least + i, Binary("max", least, DimValue(N) - 2)):
        assert not ALGEBRA.is_nonnegative(ALGEBRA.to_dim(expr))
    assert ALGEBRA.is_nonnegative(ALGEBRA.to_dim(Binary("min", i, DimValue(N) - 1)))


def test_the_quotient_of_an_axis_is_bounded_with_it():
    simplify = Simplifier({"i": 4, "j": 8, "k": N})
    assert simplify(select(j + j // 2 < 11, i, k)) == i


def test_float_identities_keep_every_bit():
    x = Buffer("x", (4,), "float32")
    simplify = Simplifier({"i": 4})
    assert simplify(x[i] * 1.0) == x[i]
    assert simplify(x[i] + 0.0) == x[i] + 0.0  # -0.0 + 0.0 is 0.0
    assert simplify(cast(x[i], "float32")) == x[i]


LEAVES = st.one_of(st.sampled_from([i, j, k, DimValue(N)]), st.integers(-9, 9).map(lambda value: Const(value, "int64")))


def operations(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    free = st.builds(Binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), parts, parts)
    divisor = st.one_of(st.integers(1, 9).map(lambda value: Const(value, "int64")), st.just(DimValue(N)))
    return st.one_of(free, st.builds(Binary, st.sampled_from(["floordiv", "mod"]), parts, divisor))


@given(expr=st.recursive(LEAVES, operations, max_leaves=8), size=st.integers(1, 5))
def test_simplification_keeps_the_value_everywhere(expr: Expr, size: int):
    """Every point of the iteration space, before and after."""
    chosen = select(expr > 3, expr + i, expr)
    assert values(Simplifier({"i": 4, "j": 8, "k": N})(chosen), size) == values(chosen, size)


@given(expr=st.recursive(LEAVES, operations, max_leaves=8), size=st.integers(1, 5))
def test_what_is_proved_nonnegative_is(expr: Expr, size: int):
    if ALGEBRA.is_nonnegative(ALGEBRA.to_dim(expr)):
        assert min(values(expr, size)) >= 0


def values(expr: Expr, size: int) -> list[int]:
    b = PrimFuncBuilder()
    result = b.compute((4, 8, N), lambda *at: substituted(expr, dict(zip("ijk", at, strict=True))), "values")
    (found,) = evaluate(b.finish((result,)), [], {"n": size})
    assert found.shape == (4, 8, size)
    return np.asarray(found).reshape(-1).tolist()


def substituted(expr: Expr, axes: dict[str, Expr]) -> Expr:
    from kernelyard.tir.visitor import substitute_axes

    return substitute_axes(expr, axes)


def test_values_helper_counts_every_point():
    flat = values(i * 100 + j * 10 + k, 2)
    assert flat == [a * 100 + b * 10 + c for a, b, c in itertools.product(range(4), range(8), range(2))]


def test_an_empty_block_divides_by_nothing():
    """The extent 0 is a divisor of its index, as in tiling; the block never runs."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, 0), "float32"))
    function = simplify(b.finish((b.compute((3, 0), lambda i, j: x[i, j % 0]),)))
    (found,) = evaluate(function, [np.zeros((3, 0), np.float32)])
    assert found.shape == (3, 0)
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, 0), "float32"))
    total = b.reduce("sum", (3,), (0,), lambda at, p: x[at[0], p[0] % 0], init=lambda at: cast(at[0], "float32"))
    (found,) = evaluate(simplify(b.finish((total,))), [np.zeros((3, 0), np.float32)])
    assert found.tolist() == [0, 1, 2]
