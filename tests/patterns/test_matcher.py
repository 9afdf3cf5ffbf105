"""Matching: structure, constraints, captures, sharing, commutativity and backtracking."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.errors import PatternError
from kernelyard.ir import Binding, Constant, Function, FunctionBuilder, TensorType, Tuple, Var
from kernelyard.patterns import Matcher, is_const, is_op, is_tuple, is_tuple_get_item, is_var, match, matches, wildcard
from kernelyard.patterns.language.pattern_parts import list_captures


def conv(builder: FunctionBuilder, x: Var, value: float = 1.0) -> Var:
    return builder.op("nn.conv2d", x, np.full((8, 8, 3, 3), value, np.float32), strides=(1, 1), padding=(1, 1, 1, 1))


@pytest.fixture
def builder() -> FunctionBuilder:
    return FunctionBuilder()


def test_call_matches_op_and_operands(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2, 3))
    y = builder.op("nn.relu", builder.op("tanh", x))
    f = builder.function(y)
    found = match(is_op("nn.relu")(is_op("tanh")(wildcard().capture("x"))), y, f)
    assert found is not None
    assert found["x"] is x
    assert found.ops == ("tanh", "nn.relu")
    assert found.inputs == (x,)
    assert found.call.op_name == "nn.relu"
    assert match(is_op("nn.relu")(is_op("exp")(wildcard())), y, f) is None


def test_wildcards_and_constants_stay_outside_the_group(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2, 3))
    t = builder.op("tanh", x)
    y = builder.op("add", t, np.ones(3, np.float32))
    found = match(is_op("add")(wildcard().capture("a"), is_const().capture("c")), y, builder.function(y))
    assert found is not None
    assert [binding.var for binding in found.bindings] == [y]
    assert found["a"] is t
    assert isinstance(found["c"], Constant)
    assert found.call_of("a").op_name == "tanh"


def test_several_names_and_varargs(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2, 3))
    y = builder.op("concat", x, x, x, axis=0)
    f = builder.function(y)
    assert match(is_op("split", "concat")(wildcard(), varargs=True), y, f)
    assert match(is_op("concat")(wildcard()), y, f) is None
    assert match(is_op("concat")(*(wildcard() for _ in range(4)), varargs=True), y, f) is None


@pytest.mark.parametrize("first", [True, False])
def test_commutative_operands_are_tried_in_both_orders(builder: FunctionBuilder, first: bool) -> None:
    x = builder.input("x", (1, 8, 4, 4))
    c = conv(builder, x)
    y = builder.op("add", *((c, x) if first else (x, c)))
    pattern = is_op("add")(is_op("nn.conv2d")(wildcard(), wildcard()), wildcard().capture("residual"))
    found = match(pattern, y, builder.function(y))
    assert found is not None
    assert found["residual"] is x


def test_operands_of_other_ops_keep_their_order(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2, 2))
    y = builder.op("subtract", x, builder.op("tanh", x))
    assert match(is_op("subtract")(is_op("tanh")(wildcard()), wildcard()), y, builder.function(y)) is None


def test_the_same_pattern_object_is_the_same_value(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2, 2))
    z = builder.input("z", (2, 2))
    square, product = builder.op("multiply", x, x), builder.op("multiply", x, z)
    f = builder.function(square, product)
    same = wildcard()
    assert match(is_op("multiply")(same, same), square, f)
    assert match(is_op("multiply")(same, same), product, f) is None
    assert match(is_op("multiply")(same, same.dup()), product, f)


def test_constants_of_equal_content_are_the_same_value(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2,))
    y = builder.op("add", builder.op("multiply", x, np.float32([1, 2])), np.float32([1, 2]))
    z = builder.op("add", builder.op("multiply", x, np.float32([1, 2])), np.float32([1, 3]))
    c = is_const()
    pattern = is_op("add")(is_op("multiply")(wildcard(), c), c)
    f = builder.function(y, z)
    assert match(pattern, y, f)
    assert match(pattern, z, f) is None


def test_shared_pattern_finds_diamonds(builder: FunctionBuilder) -> None:
    """gelu-like: x and f(x) meet again; the shared part must be one value."""
    x, z = builder.input("x", (2, 2)), builder.input("z", (2, 2))
    t = builder.op("tanh", x)
    good, bad = builder.op("multiply", x, builder.op("sigmoid", t)), builder.op("multiply", z, builder.op("sigmoid", t))
    w = wildcard()
    silu_of_tanh = is_op("multiply")(w, is_op("sigmoid")(is_op("tanh")(w)))
    f = builder.function(good, bad)
    assert match(silu_of_tanh, good, f)
    assert match(silu_of_tanh, bad, f) is None


def test_renamed_variables_are_looked_through(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2, 2))
    t = builder.op("tanh", x)
    alias = builder.bind(t)
    y = builder.op("exp", alias)
    found = match(is_op("exp")(is_op("tanh")(wildcard().capture("x"))), y, builder.function(y))
    assert found is not None
    assert found["x"] is x
    assert found.members == {t, y}


def test_or_prefers_the_left_and_not_captures_nothing(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2, 2))
    y = builder.op("exp", builder.op("tanh", x))
    f = builder.function(y)
    inner = is_op("tanh")(wildcard()).capture("tanh") | wildcard().capture("any")
    found = list(matches(is_op("exp")(inner), y, f))
    assert [tuple(m.captures) for m in found] == [("tanh",), ("any",)]
    assert match(is_op("exp")(~is_op("tanh")(wildcard())), y, f) is None
    assert match(is_op("exp")(~is_op("sin")(wildcard().capture("no"))), y, f).captures == {}
    assert match(is_op("exp")(is_op("tanh")(wildcard()) & wildcard().capture("both")), y, f).get("both") is not None


def test_backtracks_into_alternatives_that_matched_too_early(builder: FunctionBuilder) -> None:
    """The first way to match the left operand binds `w` so that the right operand fails; the second way works."""
    x, z = builder.input("x", (2, 2)), builder.input("z", (2, 2))
    left = builder.op("add", x, z)
    y = builder.op("subtract", left, z)
    w = wildcard()
    pattern = is_op("subtract")(is_op("add")(w.capture("shared"), wildcard()), w)
    found = match(pattern, y, builder.function(y))
    assert found is not None
    assert found["shared"] is z


def test_optional_takes_the_longer_and_absent_captures_are_absent(builder: FunctionBuilder) -> None:
    x = builder.input("x", (1, 8, 4, 4))
    c = conv(builder, x)
    r = builder.op("nn.relu", c)
    f = builder.function(r, c)
    pattern = is_op("nn.conv2d")(wildcard(), is_const()).optional(lambda p: is_op("nn.relu")(p).capture("activation"))
    assert match(pattern, r, f).ops == ("nn.conv2d", "nn.relu")
    assert "activation" in match(pattern, r, f)
    assert "activation" not in match(pattern, c, f)
    assert pattern.root_ops == {"nn.conv2d", "nn.relu"}
    assert list_captures(pattern) == ("activation",)


def test_repeated_reaches_each_length_in_one_way(builder: FunctionBuilder) -> None:
    y = builder.input("x", (2, 2))
    for _ in range(3):
        y = builder.op("nn.relu", y)
    f = builder.function(y)
    chain = is_op("nn.relu")(wildcard()).repeated(lambda p: is_op("nn.relu")(p), 5)
    assert [len(m.ops) for m in matches(chain, y, f)] == [3, 2, 1]


def test_attributes_dtypes_shapes_predicates(builder: FunctionBuilder) -> None:
    n = dims.symbol("n")
    x = builder.input("x", (n, 4))
    y = builder.op("permute_dims", x, axes=(1, 0))
    f = builder.function(y)
    permute = is_op("permute_dims")(wildcard())
    assert match(permute.has_attr(axes=[1, 0]), y, f)
    assert match(permute.has_attr(axes=lambda axes: len(axes) == 2), y, f)
    assert match(permute.has_attr(axes=(0, 1)), y, f) is None
    assert match(permute.has_dtype("float16", "float32"), y, f)
    assert match(permute.has_dtype("int8"), y, f) is None
    assert match(permute.has_shape(4, n), y, f)
    assert match(permute.has_shape(4, None), y, f)
    assert match(permute.has_shape(4, n + 1), y, f) is None
    assert match(permute.has_shape(4), y, f) is None
    assert match(permute.where(lambda value: value.tensor_type.rank == 2), y, f)
    assert match(permute.where(lambda value: False), y, f) is None


def test_scalar_constants_by_value(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2, 2))
    y = builder.op("multiply", x, 0.5)
    z = builder.op("multiply", x, np.float32([0.5, 0.25]))
    i = builder.op("add", builder.input("i", (2,), "int64"), np.int64([3, 3]))
    f = builder.function(y, z, i)
    assert match(is_op("multiply")(is_var(), is_const(0.5)), y, f)
    assert match(is_op("multiply")(is_var(), is_const(0.25)), y, f) is None
    assert match(is_op("multiply")(is_var(), is_const(0.5)), z, f) is None
    assert match(is_op("add")(is_var(), is_const(3)), i, f)
    assert match(is_op("multiply")(is_const(), is_const()), y, f) is None


def test_tuples_and_their_items(builder: FunctionBuilder) -> None:
    x = builder.input("x", (4, 2))
    parts = builder.op("split", x, axis=0, sections=(2, 2))
    first, second = builder.get(parts, 0), builder.get(parts, 1)
    y = builder.op("add", first, second)
    t = builder.tuple(first, y)
    f = builder.function(y)
    split = is_op("split")(wildcard())
    found = match(is_op("add")(split[0], is_tuple_get_item(split, 1)), y, f)
    assert found is not None
    assert found.members == {parts, first, second, y}
    assert match(is_op("add")(split[1], split[1]), y, f) is None
    assert match(is_tuple(wildcard(), is_op("add")(wildcard(), wildcard())), t, f)
    assert match(is_tuple(wildcard()), t, f) is None
    assert match(split[None], first, f)


def test_match_knows_users_and_values(builder: FunctionBuilder) -> None:
    x = builder.input("x", (2, 2))
    t = builder.op("tanh", x)
    y, z = builder.op("exp", t), builder.op("sin", t)
    found = match(is_op("tanh")(wildcard()), t, builder.function(y, z))
    assert found is not None
    assert found.users(t) == (y, z)
    assert found.value_of(x) is x
    with pytest.raises(PatternError, match="captured"):
        found.call_of("x")


def test_a_value_may_be_given_in_place_of_its_variable(builder: FunctionBuilder) -> None:
    y = builder.op("tanh", builder.input("x", (2,)))
    f = builder.function(y)
    assert match(is_op("tanh")(wildcard()), f.bindings[0].value, f).root is y
    mapping = {binding.var: binding.value for binding in f.bindings}
    assert match(is_op("tanh")(wildcard()), y, mapping)
    with pytest.raises(PatternError, match="not bound"):
        match(wildcard(), Tuple([y]), f)


def test_patterns_refuse_operands_that_are_no_patterns() -> None:
    with pytest.raises(PatternError, match="not a pattern"):
        is_op("add")(wildcard(), 3)
    with pytest.raises(PatternError, match="name of an op"):
        is_op()


def test_long_chains_of_alternatives_stay_fast() -> None:
    """Every level has two orders and an alternative: without pruning this search would visit 3**20 paths."""
    builder = FunctionBuilder()
    x = y = builder.input("x", (2, 2))
    for _ in range(20):
        y = builder.op("add", y, builder.op("tanh", x))
    f = builder.function(y)
    pattern = is_op("nn.conv2d")(wildcard(), wildcard())
    for _ in range(20):
        pattern = pattern.optional(lambda p: is_op("add")(p, wildcard()) | is_op("tanh")(p))
    assert Matcher(f).match(pattern, y) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["tanh", "exp", "sin", "abs"]), min_size=1, max_size=8), st.data())
def test_a_pattern_made_from_a_chain_matches_exactly_that_chain(ops: list[str], data: st.DataObject) -> None:
    builder = FunctionBuilder()
    y = builder.input("x", (2,))
    for op in ops:
        y = builder.op(op, y)
    f = builder.function(y)
    length = data.draw(st.integers(1, len(ops)))
    pattern = wildcard()
    for op in ops[-length:]:
        pattern = is_op(op)(pattern)
    found = match(pattern, y, f)
    assert found is not None
    assert found.ops == tuple(ops[-length:])
    assert [binding.var for binding in f.bindings if match(pattern, binding.var, f)][-1] is y


def test_types_of_bindings_are_not_consulted_by_name() -> None:
    """Two variables of the same name are two values."""
    a, b = Var("x", TensorType((2,), "float32")), Var("x", TensorType((2,), "float32"))
    builder = FunctionBuilder()
    y = builder.op("multiply", a, b)
    same = wildcard()
    assert match(is_op("multiply")(same, same), y, Function([a, b], [Binding(y, builder.bindings[0].value)], y)) is None


def test_infinities_are_no_other_numbers():
    """A mask of -inf is not any constant, and is matched by its number."""
    builder = FunctionBuilder()
    x = builder.input("x", (2,))
    masked, shifted = builder.op("add", x, np.float32(-np.inf)), builder.op("add", x, np.float32(3))
    matcher = Matcher(builder.function(masked, shifted))
    assert matcher.match(is_op("add")(wildcard(), is_const(-np.inf)), masked)
    assert not matcher.match(is_op("add")(wildcard(), is_const(-np.inf)), shifted)
    assert not matcher.match(is_op("add")(wildcard(), is_const(np.inf)), masked)
