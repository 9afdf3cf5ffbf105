"""Properties of matching and rewriting on random modules, with random patterns that are cut out of these modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard.ir import Binding, Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, operands, verify
from kernelyard.patterns import (
    Dataflow,
    FusionPattern,
    Match,
    Matcher,
    Pattern,
    PatternContext,
    graph_matches,
    is_const,
    is_op,
    is_tuple,
    is_var,
    op,
    rewriter_of,
    wildcard,
)
from kernelyard.patterns.language.pattern_parts import computes
from kernelyard.patterns.matching.prefilter import Prefilter
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import RandomProgram, modules
from kernelyard.transform import FuseOpsByPattern, MergeCompositeFunctions

Draw = Callable[[st.SearchStrategy[Any]], Any]
SOME = settings(max_examples=60, deadline=None)


class Cutter:
    """Makes patterns that hold for a value by construction: what it reads is spelled out, or left free."""

    def __init__(self, draw: Draw, dataflow: Dataflow) -> None:
        self.draw = draw
        self.dataflow = dataflow
        self.of: dict[Expr, Pattern] = {}  # a value that is met again may be asked to be the same one

    def cut(self, expr: Expr, depth: int) -> Pattern:
        expr = self.dataflow.resolve(expr)
        if expr in self.of and self.draw(st.booleans()):
            return self.of[expr]
        pattern = self.varied(self.plain(expr, depth), expr)
        self.of.setdefault(expr, pattern)
        return pattern

    def plain(self, expr: Expr, depth: int) -> Pattern:
        value = self.dataflow.value_of(expr)
        if depth == 0 or isinstance(value, (Var, Constant)) or self.draw(st.integers(0, 4)) == 0:
            free = [wildcard(), is_const() if isinstance(value, Constant) else is_var()]
            return self.draw(st.sampled_from(free)).capture(f"c{len(self.of)}")
        parts = [self.cut(operand, depth - 1) for operand in operands(value)]
        if isinstance(value, Tuple):
            return is_tuple(*parts)
        if isinstance(value, TupleGetItem):
            return parts[0][self.draw(st.sampled_from([value.index, None]))]
        assert isinstance(value, Call)
        return self.call(value, parts)

    def call(self, call: Call, parts: list[Pattern]) -> Pattern:
        names = [call.op_name, *self.draw(st.lists(st.sampled_from(["exp", "concat", "add"]), max_size=1))]
        kept = self.draw(st.integers(0, len(parts)))
        pattern = is_op(*names)(*parts[:kept], varargs=kept < len(parts))
        attrs = {name: value for name, value in call.attrs.items() if self.draw(st.booleans())}
        return pattern.has_attr(**attrs) if attrs else pattern

    def varied(self, pattern: Pattern, expr: Expr) -> Pattern:
        """The pattern, with something around it that holds as well."""
        type_ = expr.type
        around: list[Callable[[Pattern], Pattern]] = [
            lambda p: p,
            lambda p: p | is_op("nonzero")(wildcard()),
            lambda p: is_op("nonzero")(wildcard()) | p,
            lambda p: p & ~is_op("nonzero")(wildcard()),
            lambda p: p.optional(lambda q: is_op("nonzero")(q)),
            lambda p: p.has_type(type_),
            lambda p: p.where(lambda operand: operand.type == type_),
        ]
        return self.draw(st.sampled_from(around))(pattern)


@st.composite
def cut_out(draw: Draw) -> tuple[RandomProgram, Function, Var, Pattern]:
    """A program, its function, and a pattern that holds for one of its values."""
    program = draw(modules(symbolic=True))
    function = program.module["main"]
    assert isinstance(function, Function)
    root = draw(st.sampled_from([binding.var for binding in function.bindings]))
    pattern = Cutter(draw, Dataflow.of(function)).cut(root, draw(st.integers(1, 4)))
    return program, function, root, pattern


def reordered(draw: Draw, function: Function) -> Function:
    """The same bindings in another order in which they can run."""
    waiting, bound, ordered = list(function.bindings), set(function.params), []
    while waiting:
        ready = [b for b in waiting if all(o in bound for o in operands(b.value) if isinstance(o, Var))]
        binding: Binding = draw(st.sampled_from(ready))
        waiting.remove(binding)
        ordered.append(binding)
        bound.add(binding.var)
    return Function(function.params, ordered, function.result, function.attrs)


def found(match: Match) -> tuple[object, ...]:
    return match.root, tuple(match.captures.items()), match.members, dict(match.values)


@SOME
@given(cut_out())
def test_a_pattern_that_is_cut_out_of_a_value_matches_it(case: tuple[RandomProgram, Function, Var, Pattern]) -> None:
    """Nothing that holds is missed: neither by the search, nor by the tests that come before it."""
    _, function, root, pattern = case
    assert Prefilter(Dataflow.of(function), [pattern]).may_match(pattern, root)
    assert Matcher(function).match(pattern, root) is not None


@SOME
@given(cut_out(), st.data())
def test_matches_do_not_depend_on_the_order_of_bindings(
    case: tuple[RandomProgram, Function, Var, Pattern], data: st.DataObject
) -> None:
    """The same matches in the same order, at every value."""
    _, function, _, pattern = case
    before, after = Matcher(function), Matcher(reordered(data.draw, function))
    for binding in function.bindings:
        ways = [list(map(found, matcher.matches(pattern, binding.var))) for matcher in (before, after)]
        assert ways[0] == ways[1]


@SOME
@given(modules(max_ops=6), st.data())
def test_graph_matches_do_not_depend_on_the_order_of_bindings(program: RandomProgram, data: st.DataObject) -> None:
    """All places where two operators are found, one used by the other or not, whatever order they are met in."""
    function = program.module["main"]
    assert isinstance(function, Function)
    ops = sorted({b.value.op_name for b in function.bindings if isinstance(b.value, Call)})
    first, second = data.draw(st.sampled_from(ops)), data.draw(st.sampled_from(ops))
    with PatternContext() as context:
        one, other = is_op(first)(varargs=True), is_op(second)(varargs=True)
        edge = data.draw(st.sampled_from(["none", "used_by", "only_used_by"]))
        if edge != "none":
            getattr(one, edge)(other)
    places = [
        {(match[one], match[other]) for match in graph_matches(context, source)}
        for source in (function, reordered(data.draw, function))
    ]
    assert places[0] == places[1]
    assert places[0] == expected_places(function, first, second, edge)


def expected_places(function: Function, first: str, second: str, edge: str) -> set[tuple[Expr, Expr]]:
    """By trying all pairs."""
    dataflow = Dataflow.of(function)
    calls = [(b.var, b.value) for b in function.bindings if isinstance(b.value, Call)]
    pairs = {
        (x, y)
        for x, one in calls
        for y, other in calls
        if x is not y and (one.op_name, other.op_name) == (first, second)
    }
    if edge == "none":
        return pairs
    read = {(x, y) for x, y in pairs if y in dataflow.users(x)}
    if edge == "used_by":
        return read
    return {(x, y) for x, y in read if dataflow.users(x) == (y,) and not dataflow.is_returned(x)}


RULES = (
    rewriter_of(lambda x: op.negative(op.negative(x)), lambda x: x),
    rewriter_of(lambda x: op.add(x, x), lambda x: op.multiply(x, 2.0)),
    rewriter_of(lambda x: op.subtract(x, x), lambda x: op.multiply(x, 0.0)),
    rewriter_of(lambda x: op.multiply(x, op.sigmoid(x)), lambda x: op.nn.silu(x)),
    rewriter_of(lambda x, y: op.subtract(x, op.negative(y)), lambda x, y: op.add(x, y)),
    rewriter_of(lambda x: op.nn.relu(op.nn.relu(x)), lambda x: op.nn.relu(x)),
    rewriter_of(lambda x: op.abs(op.negative(x)), lambda x: op.abs(x)),
    rewriter_of(lambda x: op.maximum(x, x) | op.minimum(x, x), lambda x: x),
    rewriter_of(lambda x, y: op.multiply(op.negative(x), y), lambda x, y: op.negative(op.multiply(x, y))),
)


@SOME
@given(modules(max_ops=12, symbolic=True), st.lists(st.sampled_from(RULES), min_size=1, max_size=6, unique_by=id))
def test_rewriting_keeps_the_meaning_and_comes_to_an_end(program: RandomProgram, rules: list[Any]) -> None:
    rewriter = reduce(or_, rules)
    after = verify(rewriter(program.module))
    assert_same_meaning(program.module, after, program.inputs)
    assert rewriter(after) is after


@SOME
@given(cut_out(), st.booleans(), st.booleans(), st.data())
def test_a_partition_by_random_patterns_keeps_the_meaning(
    case: tuple[RandomProgram, Function, Var, Pattern], bind: bool, annotate: bool, data: st.DataObject
) -> None:
    """Whatever a backend's patterns look like, what they take is a function that computes the same."""
    program, function, _, pattern = case
    root = data.draw(st.sampled_from([binding.var for binding in function.bindings]))
    second = Cutter(data.draw, Dataflow.of(function)).cut(root, 2)
    cut = {"acme.first": pattern, "other.second": second}
    patterns = [FusionPattern(name, p) for name, p in cut.items() if computes(p)]
    fused = verify(FuseOpsByPattern(patterns, bind_constants=bind, annotate_codegen=annotate)(program.module))
    for placed in (fused, verify(MergeCompositeFunctions()(fused))):
        assert_same_meaning(program.module, placed, program.inputs)


SCENARIOS = {
    "matches do not depend on the order of bindings": test_matches_do_not_depend_on_the_order_of_bindings,
    "rewriting keeps the meaning of random modules": test_rewriting_keeps_the_meaning_and_comes_to_an_end,
}
