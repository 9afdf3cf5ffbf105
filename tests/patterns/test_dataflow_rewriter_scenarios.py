"""Rewriters made of two functions: scenarios of TVM's test_dataflow_rewriter.py, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import PatternError
from kernelyard.ir import (
    BaseFunction,
    Call,
    Function,
    FunctionBuilder,
    GlobalVar,
    IRModule,
    Op,
    TensorType,
    Var,
    get_op,
    verify,
)
from kernelyard.patterns import is_const, item, op, rewriter_from_module, rewriter_of
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.pass_infra.pass_base import Sequential, module_pass

Body = Callable[..., Any]


def function(body: Body, *shapes: tuple[Dim, ...]) -> Function:
    """A function whose `body` is given the builder and a parameter per shape."""
    b = FunctionBuilder()
    results = body(b, *(b.input(f"x{i}", shape) for i, shape in enumerate(shapes)))
    return b.function(*results) if isinstance(results, tuple) else b.function(results)


def pair(pattern: Body, replacement: Body, *shapes: tuple[Dim, ...], **others: BaseFunction) -> IRModule:
    return IRModule({"pattern": function(pattern, *shapes), "replacement": function(replacement, *shapes), **others})


def ops(target: Function | IRModule) -> list[str]:
    body = target["main"] if isinstance(target, IRModule) else target
    assert isinstance(body, Function)
    return [binding.value.op_name for binding in body.bindings if isinstance(binding.value, Call)]


def same(before: Function, after: Function, **sizes: int) -> Function:
    random = np.random.default_rng(0)
    shapes = [[dims.evaluate(d, sizes) for d in p.tensor_type.shape] for p in before.params]
    inputs = [random.uniform(0.5, 1, shape).astype(np.float32) for shape in shapes]
    assert_same_meaning(IRModule({"main": before}), verify(IRModule({"main": after})), inputs)
    return after


def twice(b: FunctionBuilder, x: Var) -> Var:
    return b.op("add", x, x)


def scaled(b: FunctionBuilder, x: Var) -> Var:
    return b.op("multiply", x, 2.0)


CONSTANT = is_const()
TWICE = rewriter_of(lambda x: op.add(x, x), lambda x: op.multiply(x, 2.0))
SILU = rewriter_of(lambda x: op.multiply(x, op.sigmoid(x)), lambda x: op.nn.silu(x))
NEGATIVES = rewriter_of(lambda x: op.negative(op.negative(x)), lambda x: x)


# --- what a rewriter is made of ---------------------------------------------------------------------------------------
def test_rewrite_defined_by_ir_module() -> None:
    f = function(lambda b, x: b.op("tanh", twice(b, x)), (16,))
    assert ops(same(f, rewriter_from_module(pair(twice, scaled, (16,)))(f))) == ["multiply", "tanh"]


def test_missing_pattern_raises_error() -> None:
    with pytest.raises(PatternError, match="'pattern'"):
        rewriter_from_module(IRModule({"replacement": function(scaled, (16,))}))


def test_missing_replacement_raises_error() -> None:
    with pytest.raises(PatternError, match="'replacement'"):
        rewriter_from_module(IRModule({"pattern": function(scaled, (16,))}))


def doubling_prim_func() -> PrimFunc:
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((16,), "float32"))
    return b.finish((b.compute((16,), lambda i: x[i] + x[i]),))


@pytest.mark.parametrize("which", ["pattern", "replacement"])
def test_incorrect_function_type_raises_error(which: str) -> None:
    module = pair(twice, scaled, (16,)).with_functions({which: doubling_prim_func()})
    with pytest.raises(PatternError, match=f"@{which} must be a graph-level function"):
        rewriter_from_module(module)


def test_mismatch_of_static_shapes_raises_error() -> None:
    module = IRModule({"pattern": function(twice, (16,)), "replacement": function(scaled, (32,))})
    with pytest.raises(PatternError, match="same signature"):
        rewriter_from_module(module)


def test_parameters_that_are_no_captures_raise_error() -> None:
    with pytest.raises(PatternError, match="'z' is no capture"):
        rewriter_of(lambda x: op.add(x, x), lambda z: z)
    with pytest.raises(PatternError, match="must return a pattern"):
        rewriter_of(lambda x: 3, lambda x: x)


# --- what it is applied to --------------------------------------------------------------------------------------------
def chain(b: FunctionBuilder, x: Var) -> Var:
    for _ in range(3):
        x = twice(b, b.op("tanh", x))
    return x


def test_rewriter_may_be_applied_to_ir_module() -> None:
    main, other = function(twice, (16,)), function(lambda b, x: b.op("tanh", x), (16,))
    module = IRModule({"main": main, "second": function(chain, (16,)), "other": other})
    rewritten = TWICE(module)
    assert ops(rewritten) == ["multiply"]
    assert rewritten["other"] is other
    assert "add" not in ops(rewritten["second"])  # pyright: ignore
    assert TWICE(rewritten) is rewritten


def test_rewriter_may_be_used_as_ir_transform() -> None:
    as_pass = module_pass("twice")(lambda module, context: TWICE(module))
    assert ops(Sequential([as_pass])(IRModule({"main": function(twice, (16,))}))) == ["multiply"]


def test_same_pattern_applied_multiple_times() -> None:
    f = function(chain, (16,))
    assert ops(same(f, TWICE(f))) == ["tanh", "multiply"] * 3


def test_composition_of_rewrite_rules() -> None:
    """In each round the second rule sees what the first has left alone."""
    f = function(lambda b, x: b.op("multiply", twice(b, x), b.op("sigmoid", twice(b, x))), (16,))
    g = function(lambda b, x: b.op("add", x, b.op("sigmoid", x)), (16,))
    first = rewriter_of(lambda x: op.sigmoid(x), lambda x: op.tanh(x))
    second = rewriter_of(lambda x, y: op.add(x, op.sigmoid(y)), lambda x, y: op.exp(x))
    assert ops(same(f, (TWICE | SILU)(f))) == ["multiply", "nn.silu"]  # the two doubles become one in between
    assert ops((first | second)(g)) == ["tanh", "add"]
    assert ops((second | first)(g)) == ["exp"]
    h = function(lambda b, x: b.op("multiply", (y := twice(b, x)), b.op("sigmoid", y)), (16,))
    assert ops(same(h, (TWICE | SILU)(h))) == ["multiply", "nn.silu"]


def test_recursive_rewrite_rules() -> None:
    """A rule may match what another, or itself, has made: powers become products."""
    cube = rewriter_of(
        lambda x, exponent=CONSTANT: op.power(x, exponent),
        lambda x, exponent: op.multiply(x, op.power(x, float(exponent.data) - 1)) if exponent.data > 1 else x,
    )
    f = function(lambda b, x: b.op("power", x, 5.0), (16,))
    assert ops(same(f, cube(f))) == ["multiply"] * 4


# --- subroutines ------------------------------------------------------------------------------------------------------
def calls_double(b: FunctionBuilder, x: Var) -> Var:
    return b.bind(Call(get_op("call_tir"), [GlobalVar("double"), x], type_=x.type))


def test_rewrite_may_introduce_private_subroutines() -> None:
    rewriter = rewriter_from_module(pair(twice, calls_double, (16,), double=doubling_prim_func()))
    before = IRModule({"main": function(lambda b, x: b.op("tanh", twice(b, x)), (16,))})
    after = verify(rewriter(before))
    assert list(after) == ["main", "double"]
    assert_same_meaning(before, after, [np.ones(16, np.float32)])
    with pytest.raises(PatternError, match="only a module can hold"):
        rewriter(before["main"])


def test_rewrite_only_introduces_private_subroutines_when_required() -> None:
    rewriter = rewriter_from_module(pair(twice, calls_double, (16,), double=doubling_prim_func()))
    module = IRModule({"main": function(lambda b, x: b.op("tanh", x), (16,))})
    assert rewriter(module) is module
    unused = rewriter_from_module(pair(twice, scaled, (16,), double=doubling_prim_func()))
    assert list(unused(IRModule({"main": function(twice, (16,))}))) == ["main"]


def test_rewriter_may_not_introduce_public_subroutines() -> None:
    with pytest.raises(PatternError, match="must not add entry functions"):
        rewriter_from_module(pair(twice, scaled, (16,), helper=function(scaled, (16,))))


def test_rewrite_branches_may_reuse_subroutine_name() -> None:
    """Two rewriters, and the module itself, each have their own @double."""

    def tanh(b: FunctionBuilder, x: Var) -> Var:
        return b.op("tanh", x)

    b = PrimFuncBuilder()
    x = b.input("x", TensorType((16,), "float32"))
    other = b.finish((b.compute((16,), lambda i: x[i] * x[i]),))
    both = rewriter_from_module(pair(twice, calls_double, (16,), double=doubling_prim_func())) | rewriter_from_module(
        pair(tanh, calls_double, (16,), double=other)
    )
    own = function(scaled, (16,))
    after = verify(both(IRModule({"main": function(lambda b, x: tanh(b, twice(b, x)), (16,)), "double": own})))
    assert list(after) == ["main", "double", "double_1", "double_2"]
    assert after["double"] is own
    assert after["double_2"] is other


# --- several values ---------------------------------------------------------------------------------------------------
def two_products(a: Any, c: Any, x: Any) -> Any:
    return op.matmul(a, x), op.matmul(c, x)


def one_product(a: Any, c: Any, x: Any) -> Any:
    rows = a.tensor_type.shape[0]
    sections = (rows, c.tensor_type.shape[0])
    parts = op.split(op.matmul(op.concat(a, c, axis=0), x), axis=0, sections=sections)
    return item(parts, 0), item(parts, 1)


COMBINE = rewriter_of(two_products, one_product)
SHAPES = ((4, 8), (6, 8), (8, 3))
COMBINED = ["concat", "matmul", "split"]


def products(b: FunctionBuilder, a: Var, c: Var, x: Var) -> tuple[Var, Var]:
    return b.op("matmul", a, x), b.op("matmul", c, x)


def test_rewrite_of_explicit_tuple() -> None:
    def body(b: FunctionBuilder, a: Var, c: Var, x: Var) -> Var:
        both = b.tuple(*products(b, a, c, x))
        return b.op("concat", b.get(both, 0), b.get(both, 1), axis=0)

    f = function(body, *SHAPES)
    assert ops(same(f, COMBINE(f))) == [*COMBINED, "concat"]


def test_rewrite_of_output_tuple() -> None:
    f = function(products, *SHAPES)
    assert ops(same(f, COMBINE(f))) == COMBINED


def test_rewrite_of_implicit_tuple() -> None:
    def body(b: FunctionBuilder, a: Var, c: Var, x: Var) -> Var:
        return b.op("concat", *products(b, a, c, x), axis=0)

    f = function(body, *SHAPES)
    assert ops(same(f, COMBINE(f))) == [*COMBINED, "concat"]
    module = pair(products, lambda b, a, c, x: products(b, a, c, x), *SHAPES)
    assert ops(rewriter_from_module(module)(f)) == ["matmul", "matmul", "concat"]


def test_rewrite_of_implicit_tuple_with_shared_wildcard() -> None:
    def body(b: FunctionBuilder, a: Var, c: Var, x: Var, z: Var) -> tuple[Var, ...]:
        return (*products(b, a, c, x), b.op("matmul", a, z))

    f = function(body, *SHAPES, (8, 5))
    assert ops(same(f, COMBINE(f))) == ["concat", "matmul", "split", "matmul"]


def test_no_rewrite_of_implicit_tuple_when_shared_wildcard_is_mismatched() -> None:
    f = function(lambda b, a, c, x, z: (b.op("matmul", a, x), b.op("matmul", c, z)), *SHAPES, (8, 3))
    assert COMBINE(f) is f


def test_no_rewrite_of_implicit_tuple_when_it_would_introduce_extra_compute() -> None:
    """A value inside the match that something else needs would be computed again."""
    inner = rewriter_of(
        lambda a, c, x: (op.tanh(op.matmul(a, x)), op.tanh(op.matmul(c, x))),
        lambda a, c, x: tuple(op.tanh(product) for product in one_product(a, c, x)),
    )

    def body(b: FunctionBuilder, a: Var, c: Var, x: Var) -> tuple[Var, ...]:
        left, right = products(b, a, c, x)
        return b.op("tanh", left), b.op("tanh", right), right

    f = function(body, *SHAPES)
    assert inner(f) is f
    g = function(lambda b, a, c, x: body(b, a, c, x)[:2], *SHAPES)
    assert sorted(ops(same(g, inner(g)))) == sorted([*COMBINED, "tanh", "tanh"])


def test_rewrite_of_implicit_tuple_with_three_elements() -> None:
    def thirds(x: Any, *weights: Any) -> Any:
        sections = tuple(w.tensor_type.shape[1] for w in weights)
        parts = op.split(op.matmul(x, op.concat(*weights, axis=1)), axis=1, sections=sections)
        return tuple(item(parts, i) for i in range(3))

    rewriter = rewriter_of(
        lambda x, q, k, v: (op.matmul(x, q), op.matmul(x, k), op.matmul(x, v)), lambda x, q, k, v: thirds(x, q, k, v)
    )
    f = function(lambda b, x, *ws: tuple(b.op("matmul", x, w) for w in ws), (2, 8), (8, 4), (8, 5), (8, 6))
    assert ops(same(f, rewriter(f))) == COMBINED


# --- effects, branches, shapes ----------------------------------------------------------------------------------------
NOISY = Op("test.print", ("x",), lambda types, attrs: types[0], pure=False)


def noisy(b: FunctionBuilder, x: Var) -> Var:
    return b.bind(Call(NOISY, [x]))


def test_pattern_matching_may_not_match_across_impure_functions() -> None:
    def body(b: FunctionBuilder, x: Var) -> tuple[Var, ...]:
        s = b.op("sigmoid", x)
        seen = noisy(b, s)
        return b.op("multiply", x, s), seen

    f = function(body, (16,))
    assert SILU(f) is f
    through = function(lambda b, x: b.op("negative", noisy(b, b.op("negative", x))), (16,))
    assert NEGATIVES(through) is through


def test_pattern_matching_may_match_between_impure_functions() -> None:
    def body(b: FunctionBuilder, x: Var) -> tuple[Var, ...]:
        first = noisy(b, x)
        y = b.op("multiply", x, b.op("sigmoid", x))
        return first, y, noisy(b, y)

    assert ops(SILU(function(body, (16,)))) == ["test.print", "nn.silu", "test.print"]


def test_rewrite_may_apply_within_conditional() -> None:
    """Before a branch, in each branch and after it; the branches are functions of the module, which a rewriter visits."""
    tanh = function(lambda b, x: b.op("tanh", x), (16,)).with_attrs(private=True)
    then = function(twice, (16,)).with_attrs(private=True)
    b = FunctionBuilder()
    x, flag = b.input("x", (16,)), b.input("flag", (), "bool")
    chosen = b.if_(flag, "then", "otherwise", [twice(b, x)], x.type)
    module = verify(IRModule({"main": b.function(twice(b, chosen)), "then": then, "otherwise": tanh}))
    rewritten = verify(TWICE(module))
    assert ops(rewritten) == ["multiply", "if", "multiply"]
    assert ops(rewritten["then"]) == ["multiply"]  # pyright: ignore
    assert rewritten["otherwise"] is tanh
    for choice in (True, False):
        assert_same_meaning(module, rewritten, [np.linspace(-1, 1, 16, dtype=np.float32), np.array(choice)])


def test_a_pattern_does_not_reach_into_a_branch() -> None:
    """What a branch is given is a value of its own there: whether it is computed is for the condition to say."""
    silu = function(lambda b, gate, x: b.op("multiply", gate, x), (16,), (16,)).with_attrs(private=True)
    other = function(lambda b, gate, x: b.op("add", gate, x), (16,), (16,)).with_attrs(private=True)
    b = FunctionBuilder()
    x, flag = b.input("x", (16,)), b.input("flag", (), "bool")
    chosen = b.if_(flag, "then", "otherwise", [b.op("sigmoid", x), x], x.type)
    module = verify(IRModule({"main": b.function(chosen), "then": silu, "otherwise": other}))
    assert SILU(module) is module


def test_a_branch_may_be_a_subroutine_of_a_replacement() -> None:
    """A rewriter given as a module may bring private functions, which are the branches of what it puts there."""
    tanh, exp = (function(lambda b, x, op=op: b.op(op, x), (16,)).with_attrs(private=True) for op in ("tanh", "exp"))

    def found(b: FunctionBuilder, x: Var, flag: Var) -> Var:
        return b.op("where", flag, b.op("tanh", x), b.op("exp", x))

    def put(b: FunctionBuilder, x: Var, flag: Var) -> Var:
        return b.if_(flag, "then", "otherwise", [x], x.type)

    def both(body: Body) -> Function:
        b = FunctionBuilder()
        return b.function(body(b, b.input("x", (16,)), b.input("flag", (), "bool")))

    rewriter = rewriter_from_module(
        IRModule({"pattern": both(found), "replacement": both(put), "then": tanh, "otherwise": exp})
    )
    module = IRModule({"main": both(found), "then": both(found)})
    rewritten = verify(rewriter(module))
    assert ops(rewritten) == ["if"]
    assert len(rewritten.functions) == 4
    for choice in (True, False):
        assert_same_meaning(module, rewritten, [np.linspace(-1, 1, 16, dtype=np.float32), np.array(choice)])


def test_match_dynamic_shape() -> None:
    n, m = dims.symbol("n"), dims.symbol("m")

    def body(b: FunctionBuilder, x: Var) -> Var:
        return b.op("reshape", b.op("permute_dims", b.op("permute_dims", x, axes=(1, 0)), axes=(1, 0)), shape=(n * m,))

    def shorter(b: FunctionBuilder, x: Var) -> Var:
        return b.op("reshape", x, shape=(n * m,))

    rewriter = rewriter_from_module(pair(body, shorter, (n, m)))
    f = function(body, (n, m))
    assert ops(same(f, rewriter(f), n=2, m=3)) == ["reshape"]


def test_dynamic_pattern_matches_static_shape() -> None:
    """Symbols of the pattern stand for sizes, the same one throughout, also in attributes of the replacement."""
    n = dims.symbol("n")

    def body(b: FunctionBuilder, x: Var, z: Var) -> Var:
        return b.op("reshape", b.op("add", x, z), shape=(n * 2,))

    def flat(b: FunctionBuilder, x: Var, z: Var) -> Var:
        return b.op("add", b.op("reshape", x, shape=(n * 2,)), b.op("reshape", z, shape=(2 * n,)))

    rewriter = rewriter_from_module(pair(body, flat, (n, 2), (n, 2)))
    k = dims.symbol("k")
    for size, sizes in ((5, {}), (k + 1, {"k": 3})):
        f = function(
            lambda b, x, z, size=size: b.op("reshape", b.op("add", x, z), shape=(size * 2,)), (size, 2), (size, 2)
        )
        assert ops(same(f, rewriter(f), **sizes)) == ["reshape", "reshape", "add"]
    broadcast = function(lambda b, x, z: b.op("reshape", b.op("add", x, z), shape=(10,)), (5, 2), (1, 2))
    assert rewriter(broadcast) is broadcast
    other_type = function(lambda b, x, z: b.op("reshape", b.op("add", x, z), shape=(5, 2)), (5, 2), (5, 2))
    assert rewriter(other_type) is other_type


SCENARIOS = {
    "defined by module": test_rewrite_defined_by_ir_module,
    "missing pattern": test_missing_pattern_raises_error,
    "missing replacement": test_missing_replacement_raises_error,
    "wrong function kind": test_incorrect_function_type_raises_error,
    "mismatch of static shapes": test_mismatch_of_static_shapes_raises_error,
    "apply to module": test_rewriter_may_be_applied_to_ir_module,
    "as transform": test_rewriter_may_be_used_as_ir_transform,
    "same pattern many times": test_same_pattern_applied_multiple_times,
    "composition": test_composition_of_rewrite_rules,
    "recursive": test_recursive_rewrite_rules,
    "introduce private subroutines": test_rewrite_may_introduce_private_subroutines,
    "private subroutines only when used": test_rewrite_only_introduces_private_subroutines_when_required,
    "public subroutine": test_rewriter_may_not_introduce_public_subroutines,
    "reuse of subroutine names": test_rewrite_branches_may_reuse_subroutine_name,
    "explicit tuple": test_rewrite_of_explicit_tuple,
    "output tuple": test_rewrite_of_output_tuple,
    "implicit tuple": test_rewrite_of_implicit_tuple,
    "shared wildcard match": test_rewrite_of_implicit_tuple_with_shared_wildcard,
    "shared wildcard mismatch": test_no_rewrite_of_implicit_tuple_when_shared_wildcard_is_mismatched,
    "no extra compute": test_no_rewrite_of_implicit_tuple_when_it_would_introduce_extra_compute,
    "three elements": test_rewrite_of_implicit_tuple_with_three_elements,
    "not across impure": test_pattern_matching_may_not_match_across_impure_functions,
    "between impure": test_pattern_matching_may_match_between_impure_functions,
    "inside conditional": test_rewrite_may_apply_within_conditional,
    "dynamic shape": test_match_dynamic_shape,
    "dynamic pattern, static shape": test_dynamic_pattern_matches_static_shape,
}
