"""Common subexpressions, dead code, and inference of types."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import kernelyard.ops  # noqa: F401
from kernelyard import dims
from kernelyard.errors import TypeInferenceError
from kernelyard.ir import (
    Binding,
    Call,
    Constant,
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
from kernelyard.ir.purity import Purity
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination
from kernelyard.transform.simplify.eliminate_common_subexpr import EliminateCommonSubexpr
from kernelyard.transform.simplify.infer_types import InferTypes

PASS = Sequential([EliminateCommonSubexpr(), DeadCodeElimination()])
N = dims.symbol("n")
EFFECT = Op("effect", ("x",), lambda types, attrs: types[0], reference=lambda x: x, pure=False)


# --- common subexpressions --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("changed", [None, 0, 1, 517, 999])
def test_constants_are_compared_by_all_of_their_content(check, changed):
    first, second = np.arange(1000, dtype=np.float32), np.arange(1000, dtype=np.float32)
    if changed is not None:
        second[changed] = -1

    def build(b, x):
        sums = [b.op("sum", b.op("multiply", table, table), axes=(0,), keepdims=False) for table in (first, second)]
        return b.op("add", x, b.op("add", *sums))

    names = check.ops(check(PASS, check.of(build)))
    assert names == ["multiply", "sum", "add", "add"] if changed is None else names.count("sum") == 2


def test_equal_values_are_computed_once(check):
    def build(b, x):
        left = b.op("tanh", b.op("add", x, np.float32([1, 2, 3, 4, 5, 6])))
        right = b.op("tanh", b.op("add", x, np.float32([1, 2, 3, 4, 5, 6])))
        return b.op("multiply", left, right)

    assert check.ops(check(PASS, check.of(build))) == ["add", "tanh", "multiply"]


def test_operands_of_commutative_operators_may_be_swapped(check):
    def build(op):
        def inner(b, x):
            y = b.op("tanh", x)
            return b.op("maximum", b.op(op, x, y), b.op(op, y, x))

        return inner

    assert check.ops(check(PASS, check.of(build("add")))).count("add") == 1
    assert check.ops(check(PASS, check.of(build("subtract")))).count("subtract") == 2


def test_fields_of_equal_tuples_are_equal(check):
    b = FunctionBuilder()
    x = b.input("x", (4, 6))
    parts = [b.op("split", x, axis=0, sections=(2, 2)) for _ in range(2)]
    function = b.function(b.op("add", b.get(parts[0], 0), b.get(parts[1], 0)), b.get(parts[0], 1))
    after = check(PASS, function)
    assert check.ops(after) == ["split", "add"]
    assert len(after.bindings) == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"min": 0.0}, {"min": -0.0}),
        ({"min": 0.0}, {"max": 0.0}),
    ],
)
def test_attributes_are_compared_exactly(check, one, other):
    function = check.of(lambda b, x: b.op("add", b.op("clip", x, **one), b.op("clip", x, **other)))
    assert check.ops(check(PASS, function)).count("clip") == 2


def test_constants_are_compared_by_content_dtype_and_shape(check):
    def build(b, x):
        row, column = np.ones((1, 6), np.float32), np.ones((4, 1), np.float32)
        return b.op("multiply", b.op("add", x, row), b.op("add", x, column))

    assert check.ops(check(PASS, check.of(build))).count("add") == 2


def test_effects_are_neither_merged_nor_removed():
    b = FunctionBuilder()
    x = b.input("x", (2,))
    b.call(EFFECT, [x])
    y = b.call(EFFECT, [x])
    z = b.call(EFFECT, [x])
    module = PASS(IRModule({"main": b.function(b.op("add", y, z))}))
    assert [binding.value.op_name for binding in module["main"].bindings] == ["effect"] * 3 + ["add"]


def test_calls_of_pure_functions_are_merged():
    inner = FunctionBuilder()
    part = inner.function(inner.op("tanh", inner.input("p", (2,))), attrs={"Composite": "acme.tanh"})
    b = FunctionBuilder()
    x = b.input("x", (2,))
    y = b.op("add", b.call_function("part", [x], x.type), b.call_function("part", [x], x.type))
    module = verify(PASS(IRModule({"main": b.function(y), "part": part})))
    assert len(module["main"].bindings) == 2


def test_purity_looks_into_functions():
    pure, effect, loop = FunctionBuilder(), FunctionBuilder(), FunctionBuilder()
    kind = TensorType((2,), "float32")
    module = IRModule(
        {
            "pure": pure.function(pure.op("tanh", pure.input("x", (2,)))),
            "effect": effect.function(effect.call(EFFECT, [effect.input("x", (2,))])),
            "loop": loop.function(loop.call_function("loop", [loop.input("x", (2,))], kind)),
        }
    )
    purity = Purity(module)
    call = {name: Call(GlobalVar(name), [Var("x", kind)], type_=kind) for name in (*module, "lost")}
    assert [purity.is_pure(call[name]) for name in call] == [True, False, False, False]


# --- dead code --------------------------------------------------------------------------------------------------------
def test_what_nobody_reads_goes(check):
    def build(b, x):
        b.op("exp", b.op("tanh", x))
        return b.op("sin", x)

    assert check.ops(check(DeadCodeElimination(), check.of(build))) == ["sin"]


def test_functions_that_nobody_calls_go_but_entry_functions_stay():
    def calling(*names, **attrs):
        b = FunctionBuilder()
        x = b.input("x", (2,))
        for name in names:
            x = b.call_function(name, [x], x.type)
        return b.function(x, attrs=attrs)

    composite = {"Composite": "acme.same"}
    module = IRModule(
        {
            "main": calling("region"),
            "second": calling(),
            "region": calling("used", Codegen="acme", global_symbol="acme_0"),
            "used": calling(**composite),
            "unused": calling("also_unused", **composite),
            "also_unused": calling(**composite),
        }
    )
    assert list(DeadCodeElimination()(module)) == ["main", "second", "region", "used"]


def test_a_function_called_by_dead_code_goes_too():
    inner = FunctionBuilder()
    part = inner.function(inner.input("p", (2,)), attrs={"Composite": "acme.same"})
    b = FunctionBuilder()
    x = b.input("x", (2,))
    b.call_function("part", [x], x.type)
    assert list(DeadCodeElimination()(IRModule({"main": b.function(x), "part": part}))) == ["main"]


@settings(max_examples=60, deadline=None)
@given(modules(symbolic=True, max_ops=12))
def test_random_modules_keep_their_meaning(program):
    after = verify(PASS(program.module))
    assert_same_meaning(program.module, after, program.inputs)
    assert PASS(after) is after
    assert InferTypes()(after) is after


# --- types ------------------------------------------------------------------------------------------------------------
def test_a_change_of_parameters_is_carried_through():
    b = FunctionBuilder()
    x = b.input("x", (N, 4))
    y = b.op("concat", b.op("nn.relu", x), x, axis=0)
    old = b.function(y, b.op("sum", y, axes=(1,)))
    new_x = Var("x", TensorType((3, 4), "float16"))
    bindings = [Binding(binding.var, _with_x(binding.value, x, new_x)) for binding in old.bindings]
    module = verify(InferTypes()(IRModule({"main": Function([new_x], bindings, old.result)})))
    assert repr(module["main"].result_type) == "Tuple[Tensor[(6, 4), float16], Tensor[(6,), float16]]"


def _with_x(value, old, new):
    stale = Call.__new__(Call)
    stale.op, stale.attrs, stale.type = value.op, value.attrs, value.type
    stale.args = tuple(new if arg is old else arg for arg in value.args)
    return stale


def test_callers_learn_what_callees_return():
    inner = FunctionBuilder()
    part = inner.function(inner.op("reshape", inner.input("p", (2, 3)), shape=(6,)), attrs={"Composite": "acme.flat"})
    x = Var("x", TensorType((2, 3), "float32"))
    y = Var("y", x.type)
    z = Var("z", x.type)
    stale = Call(GlobalVar("part"), [x], type_=x.type)
    main = Function([x], [Binding(y, stale), Binding(z, Call(get_op("tanh"), [y]))], z)
    module = verify(InferTypes()(IRModule({"main": main, "part": part})))
    assert module["main"].result_type == TensorType((6,), "float32")


def test_types_that_do_not_fit_are_errors():
    x = Var("x", TensorType((2, 3), "float32"))
    bad = Call(get_op("add"), [x, Constant(np.ones(3, np.float32))])
    bad.args = (x, Constant(np.ones(5, np.float32)))
    y = Var("y", x.type)
    with pytest.raises(TypeInferenceError, match="add"):
        InferTypes()(IRModule({"main": Function([x], [Binding(y, bad)], y)}))
