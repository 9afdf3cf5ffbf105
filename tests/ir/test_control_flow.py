"""Branches and loops: what the verifier takes, how they are written and evaluated, what passes make of them."""

from __future__ import annotations

import numpy as np
import pytest
from control_flow_modules import FLAG, PRIVATE, branching, collecting, counting, growing, rows, unary

from kernelyard.dims import symbol
from kernelyard.errors import VerifyError
from kernelyard.ir import Call, FunctionBuilder, IRModule, TensorType, TupleType, get_op, parse_module, to_text, verify
from kernelyard.ir.purity import Purity
from kernelyard.ops.interpreter import run
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

X = np.arange(8, dtype=np.float32).reshape(2, 4) / 8 - 0.5
MODULES = [branching(), branching(symbol("n")), counting(3), counting(0, symbol("n")), growing(), collecting()]


@pytest.mark.parametrize("module", MODULES)
def test_verifies_and_survives_its_text(module: IRModule) -> None:
    verify(module)
    assert to_text(parse_module(to_text(module))) == to_text(module)


@pytest.mark.parametrize("flag", [True, False])
def test_one_branch_is_evaluated(flag: bool) -> None:
    (result,) = run(branching(symbol("n")), [X, np.array(flag)])
    np.testing.assert_allclose(result, (np.exp(X) if flag else np.tanh(X)) + X, rtol=1e-6)


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_loop_goes_on_while_its_condition_holds(turns: int) -> None:
    result, count = run(counting(turns), [X])
    np.testing.assert_array_equal(result, -X * 2**turns)
    assert count == turns


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_sizes_may_be_known_only_after_the_loop(turns: int) -> None:
    (result,) = run(growing(), [X, np.array(turns)])
    np.testing.assert_allclose(result, np.exp(np.tile(X, (turns + 1, 1))), rtol=1e-6)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_loop_collects_what_its_body_gives_beside_its_states(turns: int) -> None:
    last, stack = run(collecting(), [X, np.array(turns)])
    np.testing.assert_array_equal(last, X * 2**turns)
    assert stack.shape == (turns, 2, 4)
    np.testing.assert_allclose(stack, [np.exp(X * 2**i) for i in range(1, turns + 1)] or stack, rtol=1e-6)


def with_if(condition: TensorType, then: str, result: TensorType) -> IRModule:
    b = FunctionBuilder()
    x, c = b.input("x", (2, 4)), b.parameter(condition, "c")
    main = b.function(b.if_(c, then, "half", [x], result))
    other = unary("exp", 3)
    return IRModule({"main": main, "half": unary("exp", 2), "other": other})


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (with_if(TensorType((), "float32"), "half", rows(2)), "must be a bool scalar"),
        (with_if(FLAG, "missing", rows(2)), "no graph-level function @missing"),
        (with_if(FLAG, "other", rows(2)), "arguments of the wrong types"),
        (with_if(FLAG, "half", rows(3)), "must return the type of the call"),
    ],
)
def test_a_branch_that_does_not_fit_is_refused(module: IRModule, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(module)


def test_a_body_gives_what_it_takes() -> None:
    b = FunctionBuilder()
    x = b.input("x", (2, 4))
    b.op("exp", x)
    body = b.function(b.op("sum", x, axes=(0,)), attrs=PRIVATE)
    b = FunctionBuilder()
    b.input("x", (2, 4))
    condition = b.function(b.op("all", b.op("less", b.params[0], 1.0), axes=(0, 1)), attrs=PRIVATE)
    b = FunctionBuilder()
    main = b.function(b.while_("condition", "body", [b.input("x", (2, 4))], rows(2)))
    with pytest.raises(VerifyError, match="must return the types of its parameters"):
        verify(IRModule({"main": main, "body": body, "condition": condition}))


def test_a_private_function_may_use_its_callers_symbols_and_no_others() -> None:
    n = symbol("n")
    b = FunctionBuilder()
    x = b.input("x", (4,))
    zeros = b.op("broadcast_to", x, shape=(n, 4))
    inner = b.function(zeros, attrs=PRIVATE)
    b = FunctionBuilder()
    x, c, like = b.input("x", (4,)), b.input("c", (), "bool"), b.input("like", (n,))
    main = b.function(b.if_(c, "inner", "inner", [x], rows(n)), like)
    module = verify(IRModule({"main": main, "inner": inner}))
    results = run(module, [X[0], np.array(True), np.zeros(3, np.float32)])
    np.testing.assert_array_equal(results[0], np.tile(X[0], (3, 1)))
    b = FunctionBuilder()
    main = b.function(b.if_(b.input("c", (), "bool"), "inner", "inner", [b.input("x", (4,))], rows(symbol("s"))))
    with pytest.raises(VerifyError, match="no parameter"):
        verify(IRModule({"main": main, "inner": inner}))


def test_a_value_that_nobody_makes_known_is_refused() -> None:
    b = FunctionBuilder()
    x = b.input("x", (4,))
    with pytest.raises(VerifyError, match="no parameter"):
        verify(IRModule({"main": b.function(b.op("broadcast_to", x, shape=(symbol("n"), 4)))}))


def test_unused_branches_go_and_used_ones_stay() -> None:
    module = branching()
    assert set(DeadCodeElimination()(module)) == {"main", "then", "otherwise"}
    b = FunctionBuilder()
    plain = module.with_functions({"main": b.function(b.op("exp", b.input("x", (2, 4))))})
    assert set(DeadCodeElimination()(plain)) == {"main"}


def test_purity_is_that_of_the_branches() -> None:
    module = branching()
    call = module.public_functions()["main"].bindings[0].value
    assert Purity(module).is_pure(call)
    b = FunctionBuilder()
    b.input("x", (2, 4))
    memory = b.bind(Call(get_op("alloc_tensor"), [], {"shape": (2, 4), "dtype": "float32"}, rows(2)))
    impure = module.with_functions({"then": b.function(memory, attrs=PRIVATE)})
    assert not Purity(impure).is_pure(call)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("pipeline", ["simplify", "legalize"])
def test_pipelines_keep_meaning_and_form(module: IRModule, pipeline: str) -> None:
    feeds = {"x": X, "c": np.array(False), "turns": np.array(2)}
    names = [param.name for param in module.public_functions()["main"].params]
    inputs = [feeds[name] for name in names]
    changed = verify(get_pipeline(pipeline)(module))
    for found, expected in zip(run(changed, inputs), run(module, inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_result_with_one_value_is_no_tuple() -> None:
    b = FunctionBuilder()
    x = b.input("x", (), "int64")
    condition = b.function(b.op("less", x, 10), attrs=PRIVATE)
    b = FunctionBuilder()
    x = b.input("x", (), "int64")
    body = b.function(b.op("add", x, 3), attrs=PRIVATE)
    b = FunctionBuilder()
    type_ = TensorType((), "int64")
    main = b.function(b.while_("condition", "body", [b.input("x", (), "int64")], type_))
    module = verify(IRModule({"main": main, "condition": condition, "body": body}))
    assert run(module, [np.array(0)])[0] == 12
    wrapped = b.while_("condition", "body", [b.params[0]], TupleType((type_,)))
    with pytest.raises(VerifyError, match="must return the type of the call"):
        verify(module.with_functions({"main": b.function(wrapped)}))
