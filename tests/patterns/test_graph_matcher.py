"""Graph matching and rewriting held against brute force, and kept linear."""

from __future__ import annotations

import time
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Call, Function, FunctionBuilder, Var, verify
from kernelyard.patterns import (
    Dataflow,
    PatternContext,
    graph_matches,
    is_op,
    item,
    match_graph,
    op,
    rewriter_of,
    wildcard,
)
from kernelyard.testing import strategies
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import RandomProgram

OPS = ("tanh", "add", "subtract")


@st.composite
def functions(draw: st.DrawFn) -> Function:
    b = FunctionBuilder()
    values = [b.input("x", (2,))]
    for _ in range(draw(st.integers(1, 7))):
        name = draw(st.sampled_from(OPS))
        count = 1 if name == "tanh" else 2
        values.append(b.op(name, *(draw(st.sampled_from(values)) for _ in range(count))))
    returned = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
    return b.function(*returned)


Wanted = list[tuple[int, int, bool]]  # producer, consumer, only


@settings(max_examples=150, deadline=None)
@given(
    functions(),
    st.lists(st.sampled_from(OPS), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=3),
)
def test_edges_match_exactly_where_brute_force_says(function: Function, names: list[str], wanted: Wanted) -> None:
    edges = [(p, c, only) for p, c, only in wanted if p != c and max(p, c) < len(names)]
    with PatternContext() as context:
        patterns = [is_op(name)(varargs=True) for name in names]
        for producer, consumer, only in edges:
            left, right = patterns[producer], patterns[consumer]
            _ = left >> right if only else left ^ right
    found = {tuple(match[pattern] for pattern in patterns) for match in graph_matches(context, function)}
    assert found == set(brute_force(function, names, edges))


def brute_force(function: Function, names: list[str], edges: Wanted) -> list[tuple[Var, ...]]:
    flow = Dataflow.of(function)
    results = []
    for values in permutations([binding.var for binding in function.bindings], len(names)):
        calls = [flow.values[value] for value in values]
        if [call.op_name for call in calls if isinstance(call, Call)] != names:
            continue
        for producer, consumer, only in edges:
            value = values[producer]
            if values[consumer] not in flow.users(value):
                break
            if only and (len(flow.users(value)) != 1 or flow.is_returned(value)):
                break
        else:
            results.append(values)
    return results


SILU = rewriter_of(lambda x: op.multiply(x, op.sigmoid(x)), lambda x: op.nn.silu(x))
SUMS = rewriter_of(
    lambda x, y, z: (op.subtract(x, y), op.subtract(x, z)),
    lambda x, y, z: (op.add(x, op.negative(y)), op.add(x, op.negative(z))),
)
NEGATIVES = rewriter_of(lambda x: op.negative(op.negative(x)), lambda x: x)


@settings(max_examples=60, deadline=None)
@given(strategies.modules(max_ops=12))
def test_rewriters_keep_the_meaning_of_random_programs(program: RandomProgram) -> None:
    after = verify((SILU | SUMS | NEGATIVES)(program.module))
    assert_same_meaning(program.module, after, program.inputs)


def many(count: int) -> Function:
    b = FunctionBuilder()
    a, c = b.input("a", (2, 4)), b.input("c", (2, 4))
    results = []
    for _ in range(count):
        x = b.input("x", (4, 4))
        results.append(b.op("add", b.op("matmul", a, x), b.op("matmul", c, x)))
    return b.function(*results)


def test_many_places_are_found_in_linear_time() -> None:
    """Two left sides shared by all products: what is placed next is looked for where fewest values can be."""

    def combined(a: Var, c: Var, x: Var) -> tuple[object, object]:
        parts = op.split(op.matmul(op.concat(a, c, axis=0), x), axis=0, sections=(2, 2))
        return item(parts, 0), item(parts, 1)

    pair = rewriter_of(lambda a, c, x: (op.matmul(a, x), op.matmul(c, x)), combined)
    seconds = []
    for count in (50, 400):
        f = many(count)
        start = time.perf_counter()
        g = pair(f)
        seconds.append(time.perf_counter() - start)
        products = [v.value for v in g.bindings if isinstance(v.value, Call) and v.value.op_name == "matmul"]
        assert len(products) == count
    assert seconds[1] < 24 * seconds[0] + 0.5


def test_a_negation_is_no_place_to_look_from() -> None:
    b = FunctionBuilder()
    x, z = b.input("x", (2,)), b.input("z", (2,))
    t, y = b.op("tanh", x), b.op("add", z, z)
    f = b.function(t, y)
    with PatternContext() as context:
        p = wildcard()
        first = is_op("tanh")(p)
        other = ~is_op("tanh")(p) & is_op("add")(wildcard(), wildcard())
    found = match_graph(context, f)
    assert found is not None
    assert (found[first], found[other]) == (t, y)
