"""Rewriting calls and graphs: scenarios of TVM's test_dataflow_pattern.py, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.ir import Call, Constant, Expr, Function, FunctionBuilder, IRModule, TensorType, Var, verify
from kernelyard.patterns import (
    Match,
    PatternContext,
    graph_matches,
    is_const,
    is_op,
    item,
    match,
    op,
    rewrite_bindings,
    rewrite_call,
    wildcard,
)
from kernelyard.testing.reference import assert_same_meaning

GraphRewriter = Callable[[Match, Mapping[Var, Expr]], Mapping[Var, Expr]]


@pytest.fixture
def b() -> FunctionBuilder:
    return FunctionBuilder()


def ops(function: Function) -> list[str]:
    return [binding.value.op_name for binding in function.bindings if isinstance(binding.value, Call)]


def checked(before: Function, after: Function) -> Function:
    """`after`, once it is verified and found to mean what `before` means."""
    random = np.random.default_rng(0)
    shapes = [[dims.evaluate(d, {"n": 3, "m": 4}) for d in p.tensor_type.shape] for p in before.params]
    inputs = [random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    assert_same_meaning(IRModule({"main": before}), verify(IRModule({"main": after})), inputs)
    return after


def test_rewrite_simple(b: FunctionBuilder) -> None:
    x = b.input("x", (4, 4))
    f = b.function(b.op("add", b.op("add", x, x), x))
    left = wildcard()
    doubled = is_op("add")(left, left)

    def twice(call: Call, found: Match) -> Expr:
        return op.multiply(found[left], 2.0)

    assert ops(checked(f, rewrite_call(doubled, twice, f))) == ["multiply", "add"]
    assert rewrite_call(doubled, lambda call, found: call, f) is f, "the call itself means: leave it"
    other = wildcard()
    tripled = is_op("add")(is_op("multiply")(other, is_const(2.0)), other)
    g = rewrite_call(tripled, lambda call, found: op.multiply(found[other], 3.0), rewrite_call(doubled, twice, f))
    assert ops(checked(f, g)) == ["multiply"]


def test_rewrite_attention(b: FunctionBuilder) -> None:
    batch, rows, heads, size = 2, 5, 4, 8
    q, k, v = (b.input(name, (batch, rows, heads, size)) for name in "qkv")

    def flat(x: Var) -> Var:
        transposed = b.op("permute_dims", x, axes=(0, 2, 1, 3))
        return b.op("reshape", transposed, shape=(batch * heads, rows, size))

    scores = b.op("matmul", flat(q), b.op("permute_dims", flat(k), axes=(0, 2, 1)))
    weighted = b.op("matmul", b.op("nn.softmax", b.op("multiply", scores, 8**-0.5), axis=2), flat(v))
    back = b.op("reshape", weighted, shape=(batch, heads, rows, size))
    f = b.function(b.op("permute_dims", back, axes=(0, 2, 1, 3)))

    def transposed(x: Any) -> Any:
        return is_op("reshape")(is_op("permute_dims")(x).has_attr(axes=(0, 2, 1, 3)))

    queries, keys, values = wildcard(), wildcard(), wildcard()
    products = is_op("matmul")(transposed(queries), is_op("permute_dims")(transposed(keys)))
    softmax = is_op("nn.softmax")(is_op("multiply")(products, is_const()))
    pattern = is_op("permute_dims")(is_op("reshape")(is_op("matmul")(softmax, transposed(values))))
    g = rewrite_call(pattern, lambda call, m: op.nn.attention(m[queries], m[keys], m[values]), f)
    assert ops(checked(f, g)) == ["nn.attention"]


def qkv(b: FunctionBuilder, source: Callable[[int], Var]) -> tuple[Function, list[Var]]:
    weights = [b.input(f"w{i}", (16, 8)) for i in range(3)]
    projected = [b.op("matmul", source(i), weight) for i, weight in enumerate(weights)]
    return b.function(*projected), weights


def combine(count: int = 3, transposed: bool = False) -> tuple[PatternContext, GraphRewriter]:
    """Several products with one left side become one, which is split."""
    with PatternContext() as context:
        x = wildcard()
        weights = [wildcard() for _ in range(count)]
        sides = [is_op("permute_dims")(weight) for weight in weights] if transposed else weights
        products = [is_op("matmul")(x, side) for side in sides]

    def rewriter(found: Match, values: Mapping[Var, Expr]) -> Mapping[Var, Expr]:
        taken = [found[weight] for weight in weights]
        if any(weight.tensor_type.rank != 2 for weight in taken):
            return {}
        stacked = op.concat(*taken, axis=0 if transposed else 1)
        product = op.matmul(found[x], op.permute_dims(stacked, axes=(1, 0)) if transposed else stacked)
        sizes = tuple(weight.tensor_type.shape[0 if transposed else 1] for weight in taken)
        parts = op.split(product, axis=product.tensor_type.rank - 1, sections=sizes)
        return {found[product_]: item(parts, i) for i, product_ in enumerate(products)}  # pyright: ignore

    return context, rewriter


def test_attention_qkv(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 16))
    f, _ = qkv(b, lambda i: x)
    assert ops(checked(f, rewrite_bindings(*combine(), f))) == ["concat", "matmul", "split"]


def test_attention_fake_qkv(b: FunctionBuilder) -> None:
    """The third product has another left side: there is nothing to combine three of."""
    x, other = b.input("x", (2, 16)), b.input("other", (2, 16))
    f, _ = qkv(b, lambda i: other if i == 2 else x)
    assert rewrite_bindings(*combine(), f) is f


def test_combine_matmul_twice(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 16)), b.input("z", (3, 16))
    results = [b.op("matmul", side, b.input("w", (16, 8))) for side in (x, z, x, z, x, z)]
    f = b.function(*results)
    assert ops(checked(f, rewrite_bindings(*combine(), f))) == ["concat", "matmul", "split"] * 2


def test_may_start_with_match_cast(b: FunctionBuilder) -> None:
    """Shapes are always known, so there is no match_cast; what renames a value takes its place here."""
    x = b.bind(b.input("x", (dims.symbol("n"), 16)))
    f, _ = qkv(b, lambda i: x)
    assert ops(checked(f, rewrite_bindings(*combine(), f))) == ["concat", "matmul", "split"]


def test_combine_matmul_emit_order(b: FunctionBuilder) -> None:
    """A weight that is computed after the first product: what is emitted comes after it, and its users after that."""
    x, w = b.input("x", (2, 16)), b.input("w", (16, 8))
    first = b.op("matmul", x, w)
    early = b.op("nn.relu", first)
    late = b.op("tanh", b.input("v", (16, 8)))
    second = b.op("matmul", x, late)
    f = b.function(early, second)
    g = checked(f, rewrite_bindings(*combine(2), f))
    assert ops(g) == ["tanh", "concat", "matmul", "split", "nn.relu"]


def test_a_combination_that_would_feed_itself_is_left_alone(b: FunctionBuilder) -> None:
    x = b.input("x", (16, 16))
    first = b.op("matmul", x, b.input("w", (16, 16)))
    f = b.function(b.op("matmul", x, b.op("tanh", first)))
    assert rewrite_bindings(*combine(2), f) is f


def test_combine_transposed_matmul_twice(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 16)), b.input("z", (3, 16))
    results = [
        b.op("matmul", side, b.op("permute_dims", b.input("w", (8, 16)), axes=(1, 0))) for side in (x, z, x, z, x, z)
    ]
    f = b.function(*results)
    g = checked(f, rewrite_bindings(*combine(3, transposed=True), f))
    assert ops(g) == ["concat", "permute_dims", "matmul", "split"] * 2


def test_repeated_pattern_match(b: FunctionBuilder) -> None:
    """A rewrite may make a value that the pattern matches again: (a + b) @ w, once for each addition."""
    parts = [b.input("x", (4, 8)) for _ in range(3)]
    f = b.function(b.op("matmul", b.op("add", b.op("add", parts[0], parts[1]), parts[2]), b.input("w", (8, 2))))
    left, right, weight = wildcard(), wildcard(), wildcard()
    pattern = is_op("matmul")(is_op("add")(left, right), weight)

    def spread(call: Call, m: Match) -> Expr:
        return op.add(op.matmul(m[left], m[weight]), op.matmul(m[right], m[weight]))

    assert sorted(ops(checked(f, rewrite_call(pattern, spread, f)))) == ["add"] * 2 + ["matmul"] * 3


def test_rewrite_without_trivial_binding(b: FunctionBuilder) -> None:
    """A match that is replaced by a value that is there already leaves no binding that only renames it."""
    x = b.input("x", (2, 3))
    f = b.function(b.op("nn.relu", b.op("reshape", b.op("reshape", x, shape=(6,)), shape=(2, 3))))
    inner = wildcard()
    pattern = is_op("reshape")(is_op("reshape")(inner))
    g = checked(f, rewrite_call(pattern, lambda call, m: m[inner] if m[inner].type == call.type else call, f))
    assert [type(binding.value).__name__ for binding in g.bindings] == ["Call"]
    assert g.bindings[0].value.args == (x,)  # pyright: ignore


def test_iterative_rewrite_without_trivial_binding(b: FunctionBuilder) -> None:
    x = b.input("x", (8,))
    halves = b.op("split", x, axis=0, sections=(4, 4))
    whole = b.op("concat", b.get(halves, 0), b.get(halves, 1), axis=0)
    again = b.op("split", whole, axis=0, sections=(4, 4))
    f = b.function(b.op("nn.relu", b.op("concat", b.get(again, 0), b.get(again, 1), axis=0)))
    source = wildcard()
    split = is_op("split")(source)
    pattern = is_op("concat")(split[0], split[1])
    g = checked(f, rewrite_call(pattern, lambda call, m: m[source], f))
    assert ops(g) == ["nn.relu"]
    assert len(g.bindings) == 1


def test_iterative_rewrite_with_removed_intermediates(b: FunctionBuilder) -> None:
    """The first rewrite removes the value that the second one's match would have been rooted in."""
    x, z = b.input("x", (8,)), b.input("z", (8,))
    f = b.function(b.op("add", b.op("negative", b.op("negative", x)), b.op("negative", b.op("negative", z))))
    inner, left, right = wildcard(), wildcard(), wildcard()
    twice = is_op("negative")(is_op("negative")(inner))
    pattern = twice | is_op("add")(left, right)

    def rewriter(call: Call, m: Match) -> Expr:
        if inner in m:
            return m[inner]
        return op.subtract(m[left], op.negative(m[right])) if isinstance(m.value_of(m[right]), Var) else call

    assert ops(checked(f, rewrite_call(pattern, rewriter, f))) == ["negative", "subtract"]


def test_equal_values_are_merged_between_rounds(b: FunctionBuilder) -> None:
    """Two values that a rewrite makes equal are one in the next round, where a pattern may ask for one value twice."""
    x, z = b.input("x", (4,)), b.input("z", (4,))
    left, right = b.op("negative", b.op("negative", b.op("tanh", x))), b.op("tanh", x)
    f = b.function(b.op("add", b.op("add", left, right), b.op("sigmoid", z)))
    inner, same = wildcard(), wildcard()
    twice = is_op("negative")(is_op("negative")(inner))
    pattern = twice | is_op("add")(same, same)

    def rewriter(call: Call, m: Match) -> Expr:
        return m[inner] if inner in m else op.multiply(m[same], 2.0)

    assert ops(checked(f, rewrite_call(pattern, rewriter, f))) == ["tanh", "multiply", "sigmoid", "add"]


def test_wildcard_with_ty_updates_when_the_type_fits(b: FunctionBuilder) -> None:
    x = b.input("x", (16, 32))
    f = b.function(b.op("add", x, x))
    left = wildcard().has_type(TensorType((16, 32), "float32"))
    g = rewrite_call(is_op("add")(left, left), lambda call, m: op.multiply(m[left], 2.0), f)
    assert ops(checked(f, g)) == ["multiply"]


def test_wildcard_with_ty_is_a_no_op_when_it_does_not(b: FunctionBuilder) -> None:
    x = b.input("x", (16, 64))
    f = b.function(b.op("add", x, x))
    left = wildcard().has_type(TensorType((16, 32), "float32"))
    assert rewrite_call(is_op("add")(left, left), lambda call, m: op.multiply(m[left], 2.0), f) is f


def test_unknown_dtype(b: FunctionBuilder) -> None:
    """What is no tensor has no dtype: a constraint on it does not hold, and is no error."""
    x = b.input("x", (4,))
    parts = b.op("split", x, axis=0, sections=(2, 2))
    f = b.function(b.get(parts, 0))
    for constrained in (wildcard().has_dtype("float32"), wildcard().has_shape(2), wildcard().same_shape_as(wildcard())):
        assert match(constrained, parts, f) is None


def test_symbolic_vars(b: FunctionBuilder) -> None:
    n, m = dims.symbol("n"), dims.symbol("m")
    x = b.input("x", (n, m))
    f = b.function(b.op("add", x, x))
    square, fitting = wildcard().has_shape(n, n), wildcard().has_shape(n, m)
    assert rewrite_call(is_op("add")(square, square), lambda call, found: op.multiply(found[square], 2.0), f) is f
    g = rewrite_call(is_op("add")(fitting, fitting), lambda call, found: op.multiply(found[fitting], 2.0), f)
    assert ops(checked(f, g)) == ["multiply"]


def test_backtrack_if_rewriter_returns_no_op(b: FunctionBuilder) -> None:
    """A refused way to match does not hide the next alternative."""
    x, z = b.input("x", (4,)), b.input("z", (4,))
    f = b.function(b.op("add", b.op("tanh", x), b.op("tanh", z)))
    either = is_op("tanh")(wildcard().capture("inner")) | wildcard()
    asked: list[bool] = []

    def rewriter(call: Call, m: Match) -> Expr:
        asked.append("inner" in m)
        return call if "inner" in m else op.subtract(call.args[0], op.negative(call.args[1]))

    g = rewrite_call(is_op("add")(either, wildcard()), rewriter, f)
    assert ops(checked(f, g)) == ["tanh", "tanh", "negative", "subtract"]
    assert set(asked) == {True, False}


def test_backtrack_for_no_op_rewriter_does_not_match_on_var(b: FunctionBuilder) -> None:
    """The rewriter is asked about calls: a variable that stands for a parameter or another variable is none."""
    x = b.bind(b.input("x", (4,)))
    f = b.function(b.bind(b.op("tanh", x)))
    asked: list[Expr] = []

    def rewriter(call: Call, m: Match) -> Expr:
        asked.append(call)
        return call

    assert rewrite_call(wildcard() | wildcard(), rewriter, f) is f
    assert {type(call) for call in asked} == {Call}


def test_a_constant_may_take_the_place_of_a_value(b: FunctionBuilder) -> None:
    x = b.input("x", (2,))
    f = b.function(b.op("subtract", x, x))
    p = wildcard()
    g = rewrite_call(is_op("subtract")(p, p), lambda call, m: Constant(np.zeros(2, np.float32)), f)
    assert isinstance(checked(f, g).result, Constant)


def test_same_shape_pattern(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 3)), b.input("z", (3,))
    same, other = b.op("add", x, x), b.op("add", x, z)
    f = b.function(same, other)
    with PatternContext() as context:
        left, right = wildcard(), wildcard()
        added = is_op("add")(left, right)
        left.same_shape_as(right)
    assert [found[added] for found in graph_matches(context, f)] == [same]
    left, right = wildcard(), wildcard()
    alone = is_op("add")(left.same_shape_as(right), right)
    assert match(alone, same, f)
    assert match(alone, other, f) is None
    assert match(is_op("add")(wildcard().same_shape_as(wildcard()), wildcard()), same, f) is None, "takes no part"


SCENARIOS = {
    "rewrite_simple": test_rewrite_simple,
    "rewrite_attention": test_rewrite_attention,
    "attention_qkv": test_attention_qkv,
    "attention_fake_qkv": test_attention_fake_qkv,
    "combine_matmul_twice": test_combine_matmul_twice,
    "may_start_with_match_cast": test_may_start_with_match_cast,
    "combine_matmul_emit_order": test_combine_matmul_emit_order,
    "combine_transposed_matmul_twice": test_combine_transposed_matmul_twice,
    "repeated_pattern_match": test_repeated_pattern_match,
    "rewrite_without_trivial_binding": test_rewrite_without_trivial_binding,
    "iterative_rewrite_without_trivial_binding": test_iterative_rewrite_without_trivial_binding,
    "iterative_rewrite_with_removed_intermediates": test_iterative_rewrite_with_removed_intermediates,
    "common subexpressions between the rounds of rewrite_call": test_equal_values_are_merged_between_rounds,
    "wildcard_with_ty updates": test_wildcard_with_ty_updates_when_the_type_fits,
    "wildcard_with_ty no-op": test_wildcard_with_ty_is_a_no_op_when_it_does_not,
    "same_shape_pattern": test_same_shape_pattern,
    "unknown dtype": test_unknown_dtype,
    "symbolic vars": test_symbolic_vars,
    "backtrack_if_rewriter_returns_no_op": test_backtrack_if_rewriter_returns_no_op,
    "backtrack no-op does not match on var": test_backtrack_for_no_op_rewriter_does_not_match_on_var,
}
