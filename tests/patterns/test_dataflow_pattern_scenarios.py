"""What each kind of pattern matches: scenarios of TVM's test_dataflow_pattern.py, by name."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.errors import PatternError
from kernelyard.ir import (
    Call,
    Constant,
    ExternFunc,
    Function,
    FunctionBuilder,
    GlobalVar,
    IRModule,
    TensorType,
    TupleType,
    Var,
    get_op,
)
from kernelyard.patterns import (
    Matcher,
    extract,
    is_call_dps_packed,
    is_call_tir,
    is_const,
    is_expr,
    is_extern,
    is_function,
    is_gv,
    is_op,
    is_shape,
    is_tuple,
    is_tuple_get_item,
    is_var,
    match,
    matches,
    matches_function,
    wildcard,
)

T22 = TensorType((2, 2), "float32")


@pytest.fixture
def b() -> FunctionBuilder:
    return FunctionBuilder()


def test_expr_pattern(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 2)), b.input("z", (2, 2))
    one = Constant(np.float32(1))
    y = b.op("add", x, one)
    f = b.function(y, z)
    assert match(is_op("add")(is_expr(x), is_expr(Constant(np.float32(1)))), y, f)
    assert match(is_op("add")(is_expr(z), wildcard()), y, f) is None
    assert match(is_op("add")(wildcard(), is_expr(Constant(np.float32(2)))), y, f) is None


def test_var_pattern(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    y = b.op("nn.relu", x)
    f = b.function(y)
    assert match(is_op("nn.relu")(is_var("x")), y, f)
    assert match(is_op("nn.relu")(is_var()), y, f)
    assert match(is_op("nn.relu")(is_var("x1")), y, f) is None


def test_dataflow_var_pattern(b: FunctionBuilder) -> None:
    """Every variable that a function binds lives in its one dataflow block: a variable is a dataflow variable."""
    x = b.input("x", (2, 2))
    y = b.op("nn.relu", b.op("tanh", x))
    f = b.function(y)
    found = match(is_op("nn.relu")(is_var().capture("inner")), y, f)
    assert found is not None
    assert found.call_of("inner").op_name == "tanh"


def test_global_var_pattern(b: FunctionBuilder) -> None:
    """The name is the whole name: TVM's substring test would take "main_1" for "main"."""
    x = b.input("x", (2, 2))
    y = b.call_function("main_1", [x], T22)
    f = b.function(y)
    assert match(is_gv("main_1")(wildcard().capture("x")), y, f)["x"] is x
    assert match(is_gv()(wildcard()), y, f)
    assert match(is_gv("main")(wildcard()), y, f) is None
    assert match(is_gv("main_1")(), y, f) is None
    assert match(is_gv("main_1")(varargs=True), y, f)


def test_constant_pattern(b: FunctionBuilder) -> None:
    """Constants that are bound to a variable are constants."""
    x = b.input("x", (2, 2))
    c = b.bind(Constant(np.float32([1, 1])))
    y = b.op("add", x, c)
    f = b.function(y)
    assert match(is_op("add")(is_var(), is_const()), y, f)
    assert match(is_op("add")(is_var(), is_const(1.0)), y, f)
    assert match(is_op("add")(is_const(), is_const()), y, f) is None


def test_wildcard_pattern(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    y = b.op("nn.relu", x)
    f = b.function(y, b.tuple(x, y))
    for binding in f.bindings:
        assert match(wildcard(), binding.var, f)


def test_call_pattern(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 2)), b.input("z", (2, 2))
    y = b.op("subtract", b.op("add", x, z), z)
    f = b.function(y)
    p = wildcard()
    assert match(is_op("subtract")(is_op("add")(wildcard(), p), p), y, f)
    assert match(is_op("subtract")(is_op("add")(p, wildcard()), wildcard()), y, f)
    assert match(is_op("subtract")(wildcard(), is_op("add")(wildcard(), wildcard())), y, f) is None
    with pytest.raises(Exception, match="not a pattern"):
        is_gv("f")(x)


def test_function_pattern(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 2)), b.input("z", (2, 2))
    f = b.function(b.op("add", x, z))
    left, right = wildcard(), wildcard()
    adds = is_function([left, right], is_op("add")(left, right))
    assert matches_function(adds, f)
    assert not matches_function(is_function([left, right], is_op("multiply")(left, right)), f)
    assert not matches_function(is_function([left], is_op("add")(left, left)), f)
    both = FunctionBuilder()
    p = both.input("p", (2, 2))
    swapped = both.function(p, both.op("tanh", p))
    assert matches_function(is_function([left], is_tuple(left, is_op("tanh")(left))), swapped)

    caller = FunctionBuilder()
    q = caller.input("q", (2, 2))
    y = caller.call_function("added", [q, q], T22)
    main = caller.function(y)
    module = IRModule({"main": main, "added": f})
    assert Matcher(main, module).match(adds(wildcard(), wildcard()), y)
    assert Matcher(main).match(adds(wildcard(), wildcard()), y) is None, "without the module nothing is known"


def test_tuple_pattern(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 2)), b.input("z", (2, 2))
    t = b.tuple(x, z)
    f = b.function(x)
    assert match(is_tuple(is_var("x"), is_var("z")), t, f)
    assert match(is_tuple(is_var("z"), is_var("x")), t, f) is None
    assert match(is_tuple(wildcard()), t, f) is None


def test_unordered_tuple_pattern(b: FunctionBuilder) -> None:
    x, y = b.input("x", (2, 2)), b.op("tanh", b.input("z", (2, 2)))
    t = b.tuple(x, y, x)
    f = b.function(x)
    tanh = is_op("tanh")(wildcard())
    assert match(is_tuple(tanh, wildcard(), wildcard(), unordered=True), t, f)
    assert match(is_tuple(wildcard(), wildcard(), tanh, unordered=True), t, f)
    assert match(is_tuple(tanh, tanh.dup(), wildcard(), unordered=True), t, f) is None
    assert match(is_tuple(tanh, wildcard(), unordered=True), t, f) is None


def test_tuple_get_item_pattern(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 2)), b.input("z", (2, 2))
    first = b.get(b.tuple(x, z), 0)
    f = b.function(first)
    pair = is_tuple(is_var("x"), is_var("z"))
    assert match(is_tuple_get_item(pair, 0), first, f)
    assert match(pair[0], first, f)
    assert match(pair[None], first, f)
    assert match(pair[1], first, f) is None


def test_or_pattern(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    y, z = b.op("add", x, x), b.op("subtract", x, x)
    f = b.function(y, z)
    either = is_op("add")(is_var("x"), is_var("x")) | is_op("subtract")(wildcard(), wildcard())
    assert match(either, y, f)
    assert match(either, z, f)
    assert match(either, b.op("multiply", x, x), b.function(y)) is None


def test_and_pattern(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    y = b.op("add", x, x)
    f = b.function(y)
    adds = is_op("add")(wildcard(), wildcard())
    assert match(adds & wildcard().has_shape(2, 2), y, f)
    assert match(adds & wildcard().has_shape(2, 3), y, f) is None
    assert match(adds & is_op("subtract")(wildcard(), wildcard()), y, f) is None


def test_not_pattern(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    y = b.op("add", x, x)
    f = b.function(y)
    assert match(~is_op("subtract")(wildcard(), wildcard()), y, f)
    assert match(~wildcard().has_shape(4, 4), y, f)
    assert match(~is_op("add")(wildcard(), wildcard()), y, f) is None


def test_dtype_pattern(b: FunctionBuilder) -> None:
    x = b.input("x", (10, 10), "float16")
    y = b.op("nn.relu", x)
    f = b.function(y)
    assert match(is_op("nn.relu")(wildcard()).has_dtype("float16"), y, f)
    assert match(is_op("nn.relu")(wildcard().has_dtype("float32")), y, f) is None


def test_type_pattern(b: FunctionBuilder) -> None:
    n = dims.symbol("n")
    x = b.input("x", (n, 4))
    y = b.op("permute_dims", x, axes=(1, 0))
    f = b.function(y)
    assert match(wildcard().has_type(TensorType((4, n), "float32")), y, f)
    assert match(wildcard().has_type(TensorType((4, n + 0), "float32")), y, f)
    assert match(wildcard().has_type(TensorType((n, 4), "float32")), y, f) is None
    parts = b.op("split", y, axis=0, sections=(1, 3))
    pair = TupleType((TensorType((1, n), "float32"), TensorType((3, n), "float32")))
    assert match(wildcard().has_type(pair), parts, b.function(y))


def test_shape_pattern(b: FunctionBuilder) -> None:
    """`has_shape` is about a tensor's shape, `is_shape` about a shape that is a value itself."""
    n = dims.symbol("n")
    y = b.op("nn.relu", b.input("x", (n * 2, 10)))
    shape = b.op("shape_tensor", dims=(n, 10))
    f = b.function(y, shape)
    assert match(wildcard().has_shape(n + n, 10), y, f), "proved, not compared as written"
    assert match(wildcard().has_shape(n, 10), y, f) is None
    assert match(wildcard().has_shape(10), y, f) is None
    assert match(is_shape(n, 10), y, f) is None
    assert match(is_shape(n, 10), shape, f)
    assert match(wildcard().has_shape(2), shape, f)


def test_prim_arr_pattern(b: FunctionBuilder) -> None:
    n = dims.symbol("n")
    shape = b.op("shape_tensor", dims=(n + 1, 10))
    f = b.function(shape)
    assert match(is_shape(1 + n, 10), shape, f)
    assert match(is_shape(n, 10), shape, f) is None
    assert match(is_shape(n + 1, 10, 1), shape, f) is None


def packed(b: FunctionBuilder, symbol: str, *args: Var) -> Var:
    return b.bind(Call(get_op("call_dps_packed"), [ExternFunc(symbol), *args], type_=args[0].type))


def tir(b: FunctionBuilder, name: str, *args: Var) -> Var:
    return b.bind(Call(get_op("call_tir"), [GlobalVar(name), *args], type_=args[0].type))


def test_extern_fn_pattern(b: FunctionBuilder) -> None:
    y = packed(b, "test.blockbuilder.nop", b.input("x", (2, 2)))
    f = b.function(y)
    assert match(is_call_dps_packed("test.blockbuilder.nop"), y, f)
    assert match(is_op("call_dps_packed")(is_extern(), wildcard()), y, f)
    assert match(is_call_dps_packed("test.blockbuilder"), y, f) is None
    assert match(is_call_dps_packed("test.blockbuilder.nop", [wildcard(), wildcard()]), y, f) is None


def test_op_attr(b: FunctionBuilder) -> None:
    x, w = b.input("x", (1, 4, 8, 8)), b.input("w", (4, 4, 3, 3))
    y = b.op("nn.conv2d", x, w, strides=(2, 2), padding=(0, 0, 0, 0))
    f = b.function(y)
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    assert match(conv.has_attr(strides=[2, 2], groups=1), y, f), "defaults are attributes too"
    assert match(conv.has_attr(strides=[2, 1]), y, f) is None
    with pytest.raises(PatternError, match="'stride'"):
        conv.has_attr(stride=[2, 2])


def test_call_attr(b: FunctionBuilder) -> None:
    """Attributes of a called function count as those of the call."""
    y = b.call_function("fused_relu", [b.input("x", (2, 2))], T22)
    main = b.function(y)
    inner = FunctionBuilder()
    composite = inner.function(inner.op("nn.relu", inner.input("x", (2, 2))), attrs={"Composite": "acme.relu"})
    matcher = Matcher(main, IRModule({"main": main, "fused_relu": composite}))
    assert matcher.match(is_gv()(wildcard()).has_attr(Composite="acme.relu"), y)
    assert matcher.match(is_gv().has_attr(Composite="acme.relu")(wildcard()), y)
    assert matcher.match(is_gv()(wildcard()).has_attr(Composite="acme.tanh"), y) is None


def test_is_call_tir(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    first = tir(b, "tir_relu", x)
    second = tir(b, "tir_matmul", first, x)
    f = b.function(second)
    relu = is_call_tir("tir_relu", [wildcard().capture("x")])
    found = match(is_call_tir("tir_matmul", [relu, wildcard()]), second, f)
    assert found is not None
    assert found["x"] is x
    assert match(is_call_tir("tir_matmul"), second, f)
    assert match(is_call_tir(is_gv(), [relu, wildcard()]), second, f)
    assert match(is_call_tir("tir_matmul", [relu]), second, f) is None
    assert match(is_call_tir("tir"), second, f) is None
    assert match(is_op("call_tir")(is_var(), varargs=True), second, f) is None, "a function is no variable"


def test_varg_default_wildcard(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    y = b.op("concat", x, x, x, axis=0)
    f = b.function(y)
    assert match(is_op("concat")(is_var("x"), varargs=True), y, f)
    assert match(is_op("concat")(varargs=True), y, f)
    assert match(is_op("concat")(is_var("x")), y, f) is None
    assert match(is_op("concat")(*[wildcard()] * 4, varargs=True), y, f) is None


def test_extract_matched_expr(b: FunctionBuilder) -> None:
    x = b.input("x", (2, 2))
    t = b.op("tanh", x)
    y = b.op("nn.relu", t)
    f = b.function(y)
    inner, leaf = is_op("tanh")(p := wildcard()), wildcard()
    found = extract(is_op("nn.relu")(inner), y, f)
    assert found is not None
    assert found[inner] is t
    assert found[p] is x
    assert leaf not in found
    assert extract(is_op("exp")(inner), y, f) is None


def test_commutative_pattern_match(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 2)), b.input("z", (2, 2))
    for op in ("add", "multiply"):
        y = b.op(op, z, b.op("tanh", x))
        pattern = is_op(op)(is_op("tanh")(wildcard()), wildcard().capture("other"))
        assert match(pattern, y, b.function(y))["other"] is z
    y = b.op("divide", z, b.op("tanh", x))
    assert match(is_op("divide")(is_op("tanh")(wildcard()), wildcard()), y, b.function(y)) is None


def test_repeated_wildcard_is_one_value_and_dup_is_not(b: FunctionBuilder) -> None:
    x, z = b.input("x", (2, 2)), b.input("z", (2, 2))
    y = b.op("add", x, z)
    f: Function = b.function(y)
    p = wildcard()
    assert match(is_op("add")(p, p), y, f) is None
    assert match(is_op("add")(p, p.dup()), y, f)
    assert len(list(matches(is_op("add")(p, p.dup()), y, f))) == 2, "in both orders"


SCENARIOS = {
    "expr": test_expr_pattern,
    "var": test_var_pattern,
    "dataflow var": test_dataflow_var_pattern,
    "global var": test_global_var_pattern,
    "constant": test_constant_pattern,
    "wildcard": test_wildcard_pattern,
    "call": test_call_pattern,
    "function": test_function_pattern,
    "tuple": test_tuple_pattern,
    "unordered tuple": test_unordered_tuple_pattern,
    "tuple-get-item": test_tuple_get_item_pattern,
    "or": test_or_pattern,
    "and": test_and_pattern,
    "not": test_not_pattern,
    "dtype": test_dtype_pattern,
    "type": test_type_pattern,
    "shape (has_shape and is_shape)": test_shape_pattern,
    "prim arr": test_prim_arr_pattern,
    "extern fn": test_extern_fn_pattern,
    "op attr": test_op_attr,
    "call attr": test_call_attr,
    "call_tir": test_is_call_tir,
    "varg_default_wildcard": test_varg_default_wildcard,
    "extract_matched_expr": test_extract_matched_expr,
    "commutative_pattern_match": test_commutative_pattern_match,
    "shared and duplicated patterns": test_repeated_wildcard_is_one_value_and_dup_is_not,
}
