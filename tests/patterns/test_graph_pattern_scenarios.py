"""Patterns of graphs: scenarios of TVM's test_dataflow_pattern.py, by name."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.errors import PatternError
from kernelyard.ir import Call, ExternFunc, Function, FunctionBuilder, GlobalVar, Var, get_op
from kernelyard.patterns import (
    PatternContext,
    is_call_dps_packed,
    is_call_tir,
    is_const,
    is_op,
    match,
    match_graph,
    wildcard,
)
from kernelyard.patterns.language.pattern import Pattern
from kernelyard.patterns.language.pattern_parts import walk


def packed(b: FunctionBuilder, symbol: str, *args: Var) -> Var:
    return b.bind(Call(get_op("call_dps_packed"), [ExternFunc(symbol), *args], type_=args[0].type))


def calls(*symbols: str) -> list[Pattern]:
    return [is_call_dps_packed(symbol) for symbol in symbols]


@pytest.fixture
def b() -> FunctionBuilder:
    return FunctionBuilder()


def chain(b: FunctionBuilder, *symbols: str) -> list[Var]:
    values = [b.input("x", (2, 2))]
    for symbol in symbols:
        values.append(packed(b, symbol, values[-1]))
    return values[1:]


def diamond(b: FunctionBuilder) -> tuple[Function, list[Var]]:
    x = b.input("x", (2, 2))
    conv = packed(b, "conv", x)
    relu, sigmoid = packed(b, "relu", conv), packed(b, "sigmoid", conv)
    add = packed(b, "add", relu, sigmoid)
    return b.function(add), [conv, relu, sigmoid, add]


def test_simple_call_packed(b: FunctionBuilder) -> None:
    (y,) = chain(b, "extern_matmul")
    f = b.function(y)
    assert match(is_call_dps_packed("extern_matmul"), y, f)
    with PatternContext() as context:
        pattern = is_call_dps_packed("extern_matmul", [wildcard()])
    assert match_graph(context, f)[pattern] is y


def test_simple_used_by(b: FunctionBuilder) -> None:
    first, second = chain(b, "extern_matmul", "extern_relu")
    f = b.function(second)
    with PatternContext() as context:
        n0, n1 = calls("extern_matmul", "extern_relu")
        n0 ^ n1
        found = match_graph(context, f)
    assert found is not None
    assert (found[n0], found[n1]) == (first, second)


def test_simple_call_tir_edge(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    first = b.bind(Call(get_op("call_tir"), [GlobalVar("tir_matmul"), x, x], type_=x.type))
    second = b.bind(Call(get_op("call_tir"), [GlobalVar("tir_relu"), first], type_=x.type))
    with PatternContext() as context:
        n0, n1 = is_call_tir("tir_matmul"), is_call_tir("tir_relu")
        n0.used_by(n1)
        found = match_graph(context, b.function(second))
    assert found is not None
    assert (found[n0], found[n1]) == (first, second)


def test_simple_oub(b: FunctionBuilder) -> None:
    first, second = chain(b, "extern_matmul", "extern_relu")
    with PatternContext() as context:
        n0, n1 = calls("extern_matmul", "extern_relu")
        n0 >> n1
        assert match_graph(context, b.function(second))[n0] is first
        assert match_graph(context, b.function(second, first)) is None, "what is returned is used by someone else"


def test_counter_syntax_match(b: FunctionBuilder) -> None:
    _, second = chain(b, "extern_matmul", "extern_relu")
    f = b.function(second)
    for wanted in (
        ("extern_matmul_impl", "extern_relu"),
        ("extern_matmul", "extern"),
        ("extern_relu", "extern_matmul"),
    ):
        with PatternContext() as context:
            n0, n1 = calls(*wanted)
            n0 >> n1
        assert match_graph(context, f) is None


def test_edges_need_a_context() -> None:
    with pytest.raises(PatternError, match="need a PatternContext"):
        wildcard() ^ wildcard()


def test_edges_name_an_operand(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 2)), b.input("z", (2, 2))
    t = packed(b, "tanh", x)
    y = packed(b, "pair", z, t)
    f = b.function(y)
    for index, matches in ((0, False), (1, False), (2, True), (7, False), (None, True)):
        with PatternContext() as context:
            tanh, pair = calls("tanh", "pair")
            tanh.used_by(pair, index)
        assert (match_graph(context, f) is not None) == matches, index


def test_diamond(b: FunctionBuilder) -> None:
    f, values = diamond(b)
    with PatternContext() as context:
        n0, n1, n2, n3 = calls("conv", "relu", "sigmoid", "add")
        n0 ^ n1
        n0 ^ n2
        n1 >> n3
        n2 >> n3
        found = match_graph(context, f)
    assert found is not None
    assert [found[n] for n in (n0, n1, n2, n3)] == values
    with PatternContext() as context:
        n0, n1, n2, n3 = calls("conv", "relu", "sigmoid", "add")
        n0.fork_to(n1, n2)
        n1.used_by(n3)
        n2.used_by(n3)
        assert match_graph(context, f)


def test_diamond_counter_oub(b: FunctionBuilder) -> None:
    """The convolution is used twice: it is not only used by either."""
    f, _ = diamond(b)
    with PatternContext() as context:
        n0, n1, n2, n3 = calls("conv", "relu", "sigmoid", "add")
        n0 >> n1
        n0 >> n2
        n1 >> n3
        n2 >> n3
        assert match_graph(context, f) is None


def parallel(b: FunctionBuilder) -> Function:
    x = b.input("x", (2, 2))
    relu = packed(b, "relu", packed(b, "conv", x))
    sigmoid = packed(b, "sigmoid", packed(b, "conv", x))
    return b.function(packed(b, "add", relu, sigmoid))


def test_distinguish_diamond_and_parallel() -> None:
    """The same pattern twice is one value; `dup` makes two, which are two values."""
    f_diamond, f_parallel = diamond(FunctionBuilder())[0], parallel(FunctionBuilder())
    with PatternContext() as shared:
        conv, relu, sigmoid, add = calls("conv", "relu", "sigmoid", "add")
        (conv ^ relu) >> add
        (conv ^ sigmoid) >> add
    assert match_graph(shared, f_diamond)
    assert match_graph(shared, f_parallel) is None
    with PatternContext() as separate:
        conv, relu, sigmoid, add = calls("conv", "relu", "sigmoid", "add")
        (conv >> relu) >> add
        (conv.dup() >> sigmoid) >> add
    assert match_graph(separate, f_diamond) is None
    assert match_graph(separate, f_parallel)


def test_sequences_are_duplicated_with_their_edges() -> None:
    b = FunctionBuilder()
    x = b.input("x", (2, 2))
    left = packed(b, "relu", packed(b, "conv", x))
    right = packed(b, "relu", packed(b, "conv", x))
    f = b.function(packed(b, "concat", left, right))
    with PatternContext() as context:
        conv, relu, concat = calls("conv", "relu", "concat")
        one = conv >> relu
        other = one.dup()
        one >> concat
        other >> concat
    found = match_graph(context, f)
    assert found is not None
    assert {found[relu], found[other.patterns[1]]} == {left, right}


def conv_bias_relu(b: FunctionBuilder, x: Var) -> Var:
    w = np.ones((4, 4, 3, 3), np.float32)
    c = b.op("nn.conv2d", x, w, strides=(1, 1), padding=(1, 1, 1, 1))
    return b.op("nn.relu", b.op("add", c, np.ones((1, 4, 1, 1), np.float32)))


def cbr_pattern(x: Pattern) -> Pattern:
    return is_op("nn.relu")(is_op("add")(is_op("nn.conv2d")(x, is_const()), is_const()))


def test_nested_context(b: FunctionBuilder) -> None:
    f, _ = diamond(b)
    with PatternContext() as outer:
        conv, relu, add = calls("conv", "relu", "add")
        conv ^ relu
        with PatternContext() as inner:
            relu ^ add
            with PatternContext() as innermost:
                missing, other = calls("missing", "add")
                missing ^ other
                assert match_graph(innermost, f) is None
            found = match_graph(inner, f)
            assert found is not None
            assert conv not in found
        assert match_graph(outer, f)
        relu.only_used_by(conv)
        assert match_graph(outer, f) is None


def test_two_cbr(b: FunctionBuilder) -> None:
    x = b.input("x", (1, 4, 8, 8))
    y = conv_bias_relu(b, conv_bias_relu(b, x))
    f = b.function(y)
    with PatternContext() as context:
        data = wildcard()
        first = cbr_pattern(data)
        second = cbr_pattern(first)
    found = match_graph(context, f)
    assert found is not None
    assert (found[data], found[second]) == (x, y)
    with PatternContext() as apart:
        one, other = cbr_pattern(wildcard()), cbr_pattern(wildcard())
        one >> next(part for part in walk(other) if part.root_ops == {"nn.conv2d"})
    found = match_graph(apart, f)
    assert found is not None
    assert found[other] is y
    single = FunctionBuilder()
    z = conv_bias_relu(single, single.input("x", (1, 4, 8, 8)))
    assert match_graph(context, single.function(z)) is None
    assert match_graph(apart, single.function(z)) is None


def test_two_matmul(b: FunctionBuilder) -> None:
    x, v, w = b.input("x", (32, 16)), b.input("v", (16, 48)), b.input("w", (48, 8))
    y = b.op("matmul", b.op("matmul", x, v), w)
    f = b.function(y)
    with PatternContext() as context:
        first, second = is_op("matmul")(varargs=True), is_op("matmul")(varargs=True)
        first >> second
    found = match_graph(context, f)
    assert found is not None
    assert found[second] is y
    with PatternContext() as counter:
        one, two, three = (is_op("matmul")(varargs=True) for _ in range(3))
        one >> two >> three
    assert match_graph(counter, f) is None


def test_concat_mm_split(b: FunctionBuilder) -> None:
    x, z, w = b.input("x", (16, 32)), b.input("z", (16, 32)), b.input("w", (32, 8))
    joined = b.op("concat", x, z, axis=0)
    parts = b.op("split", b.op("matmul", joined, w), axis=0, sections=(16, 16))
    first, second = b.get(parts, 0), b.get(parts, 1)
    y = b.op("add", first, second)
    f = b.function(y)
    with PatternContext() as context:
        concat, matmul, split = is_op("concat")(varargs=True), is_op("matmul")(varargs=True), is_op("split")(wildcard())
        concat >> matmul >> split
        sum_ = is_op("add")(split[0], split[1])
    found = match_graph(context, f)
    assert found is not None
    assert (found[split], found[sum_]) == (parts, y)
    with PatternContext() as counter:
        split = is_op("split")(wildcard())
        is_op("subtract")(split[0], split[1])
    assert match_graph(counter, f) is None


def attention(b: FunctionBuilder, shared: bool) -> tuple[Function, list[Var]]:
    x = b.input("x", (4, 16, 32))
    sources = [x, x, x if shared else b.input("other", (4, 16, 32))]
    q, k, v = (b.op("matmul", s, b.input(f"w{i}", (32, 32))) for i, s in enumerate(sources))
    scores = b.op("nn.softmax", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 2, 1))), axis=2)
    return b.function(b.op("matmul", scores, v)), [q, k, v]


def test_self_attention(b: FunctionBuilder) -> None:
    f, projections = attention(b, shared=True)
    with PatternContext() as context:
        x = wildcard()
        q, k, v = (is_op("matmul")(x, wildcard()) for _ in range(3))
        kt = is_op("permute_dims")(varargs=True)
        scores, softmax, result = (
            is_op("matmul")(varargs=True),
            is_op("nn.softmax")(wildcard()),
            is_op("matmul")(varargs=True),
        )
        q.used_by(scores, 0)
        k >> kt
        kt.used_by(scores, 1)
        scores >> softmax
        softmax.used_by(result, 0)
        v.used_by(result, 1)
    found = match_graph(context, f)
    assert found is not None
    assert [found[p] for p in (q, k, v)] == projections
    assert match_graph(context, attention(FunctionBuilder(), shared=False)[0]) is None


def test_nested_diamond(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    conv = packed(b, "conv", x)
    left, right = packed(b, "matmul", packed(b, "relu", conv)), packed(b, "sub", packed(b, "sigmoid", conv))
    outer = packed(b, "concat", packed(b, "add", left, right), right, left)
    f = b.function(outer)
    with PatternContext() as context:
        conv_, relu, sigmoid, matmul, sub, add, concat = calls(
            "conv", "relu", "sigmoid", "matmul", "sub", "add", "concat"
        )
        conv_.fork_to(relu >> matmul, sigmoid >> sub)
        matmul.fork_to(add, concat)
        sub.fork_to(add, concat)
        add >> concat
    found = match_graph(context, f)
    assert found is not None
    assert found[concat] is outer
    with PatternContext() as counter:
        sub2, add2 = calls("sub", "add")
        sub2 >> add2
    assert match_graph(counter, f) is None


def test_incremental_solving(b: FunctionBuilder) -> None:
    _, _, last = chain(b, "relu", "sigmoid", "neg")
    f = b.function(last)
    relu, sigmoid, neg = calls("relu", "sigmoid", "neg")
    with PatternContext() as outer:
        relu >> sigmoid
        with PatternContext(incremental=True) as inner:
            sigmoid >> neg
            found = match_graph(inner, f)
            assert found is not None
            assert {relu, sigmoid, neg} <= set(found)
        found = match_graph(outer, f)
    assert found is not None
    assert neg not in found


def test_incremental_solving_counter(b: FunctionBuilder) -> None:
    _, last = chain(b, "sigmoid", "neg")
    f = b.function(last)
    relu, sigmoid, neg = calls("relu", "sigmoid", "neg")
    with PatternContext() as outer:
        relu >> sigmoid
        with PatternContext(incremental=True) as inner:
            sigmoid >> neg
            assert match_graph(inner, f) is None
        with PatternContext(incremental=False) as alone:
            sigmoid >> neg
            assert match_graph(alone, f)
        assert match_graph(outer, f) is None


SCENARIOS = {
    "simple_call_packed": test_simple_call_packed,
    "simple_used_by": test_simple_used_by,
    "simple_call_tir_edge": test_simple_call_tir_edge,
    "simple_oub": test_simple_oub,
    "counter_syntax_match": test_counter_syntax_match,
    "diamond": test_diamond,
    "diamond_counter_oub": test_diamond_counter_oub,
    "distinguish_diamond_and_parallel": test_distinguish_diamond_and_parallel,
    "nested_context": test_nested_context,
    "two_cbr": test_two_cbr,
    "two_matmul": test_two_matmul,
    "concat_mm_split": test_concat_mm_split,
    "self_attention": test_self_attention,
    "nested_diamond": test_nested_diamond,
    "incremental_solving": test_incremental_solving,
    "incremental_solving_counter": test_incremental_solving_counter,
}
