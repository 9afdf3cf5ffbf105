"""Lowering: views, tuples, constants and inputs as results, results given twice, names."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, errors
from kernelyard.driver.lowering.lower import check_names, lower
from kernelyard.ir import Call, Constant, Function, FunctionBuilder, GlobalVar, IRModule, Tuple
from kernelyard.testing import assert_allclose, evaluate

X = np.arange(12, dtype=np.float32).reshape(3, 4)
N = dims.symbol("n")


def builder(*shape: object) -> tuple[FunctionBuilder, object]:
    b = FunctionBuilder()
    return b, b.input("x", shape or (N, 4))


def check(function: Function, *inputs: np.ndarray) -> ky.Executable:
    """Compile, run, and compare with the reference interpreter; results in order."""
    module = IRModule({"main": function})
    exe = ky.compile(module, backends=[])
    results = list(exe.run(dict(zip([i.name for i in exe.inputs], inputs, strict=True))).values())
    expected = evaluate(module, list(inputs))
    assert len(results) == len(expected)
    for result, reference in zip(results, expected, strict=True):
        assert_allclose(result, reference)
    return exe


def test_several_results() -> None:
    b, x = builder()
    exe = check(b.function(Tuple([b.op("exp", x), b.op("negative", x), b.op("sum", x, axes=(1,))])), X)
    assert [info.name for info in exe.outputs] == ["output_0", "output_1", "output_2"]
    assert len(exe(X)) == 3


def test_an_operator_with_several_results() -> None:
    b, x = builder()
    parts = b.op("split", x, axis=1, sections=(1, 3))
    check(b.function(Tuple([b.op("exp", b.get(parts, 1)), b.get(parts, 0)])), X)


def test_all_results_of_an_operator_at_once() -> None:
    b, x = builder()
    check(b.function(b.op("topk", x, k=2, axis=1)), X)


def test_tuples_in_between() -> None:
    b, x = builder()
    pair = b.tuple(b.op("exp", x), x)
    nested = b.tuple(pair, b.op("negative", x))
    inner = b.get(nested, 0)
    check(b.function(Tuple([b.get(nested, 1), b.op("add", b.get(inner, 0), b.get(inner, 1))])), X)


def test_views_are_aliases_and_run_nothing() -> None:
    b, x = builder()
    flat = b.op("reshape", b.op("exp", x), shape=(N * 4,))
    exe = check(b.function(b.op("reshape", flat, shape=(N * 2, 2))), X)
    kinds = [register.kind for register in exe.main.registers]
    assert len(exe.main.steps) == 1
    assert kinds.count("alias") == 1  # one view of a view is one view
    assert kinds.count("buffer") == 1


def test_a_view_of_an_input_and_the_input_itself() -> None:
    b, x = builder()
    exe = check(b.function(Tuple([b.op("reshape", x, shape=(N * 4,)), x])), X)
    assert not exe.main.steps
    first, second = exe(X)
    assert not np.shares_memory(first.numpy(), second.numpy())
    assert not np.shares_memory(second.numpy(), X)


def test_a_constant_as_result() -> None:
    b, x = builder()
    constant = Constant(np.float32([1, 2, 3]))
    exe = check(b.function(Tuple([constant, b.op("exp", x), constant])), X)
    results = exe(X)
    results[0].numpy()[:] = 7
    assert exe(X)[0].numpy().tolist() == [1, 2, 3]
    assert results[2].numpy().tolist() == [1, 2, 3]


def test_only_a_constant() -> None:
    check(FunctionBuilder().function(Constant(np.float32(5))))


def test_a_result_given_twice() -> None:
    b, x = builder()
    y = b.op("exp", x)
    exe = check(b.function(Tuple([y, x, y, x])), X)
    results = exe(X)
    assert not np.shares_memory(results[0].numpy(), results[2].numpy())


def test_an_input_that_nothing_reads() -> None:
    b, x = builder()
    b.input("unused", (2,))
    check(b.function(b.op("exp", x)), X, np.zeros(2, np.float32))


def test_constants_are_kept_once() -> None:
    b, x = builder()
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    y = b.op("matmul", b.op("matmul", x, weight), weight.copy())
    exe = check(b.function(y), X)
    assert sum(array.shape == (4, 4) for array in exe.constants.values()) == 1


def test_names_of_inputs_and_outputs_are_the_models() -> None:
    b, x = builder()
    function = b.function(b.op("exp", x), attrs={"input_names": ("data:0",), "output_names": ("out/y",)})
    exe = ky.compile(IRModule({"main": function}), backends=[])
    assert_allclose(exe.run({"data:0": X})["out/y"], np.exp(X))


@pytest.mark.parametrize(
    ("attrs", "fact"),
    [
        ({"output_names": ("a", "a")}, "output names of @main"),
        ({"output_names": ("a",)}, "2 distinct names"),
        ({"input_names": ("a", "b")}, "input names of @main"),
    ],
)
def test_names_that_do_not_fit_are_refused(attrs: dict, fact: str) -> None:
    b, x = builder()
    function = b.function(Tuple([b.op("exp", x), x]), attrs=attrs)
    with pytest.raises(errors.IRError, match="KY100") as caught:
        ky.compile(IRModule({"main": function}))
    assert fact in str(caught.value)


def test_functions_that_users_do_not_call_need_no_names() -> None:
    """What runs once a size is known takes values of the model, which may have the same names."""
    b, x = builder()
    attrs = {"input_names": ("lv", "lv")}
    function = b.function(b.op("exp", x), attrs=attrs)
    with pytest.raises(errors.IRError, match="1 distinct names"):
        check_names(IRModule({"main": function}))
    check_names(IRModule({"main": function.with_attrs(private=True)}))


def test_a_function_that_nothing_compiled_is_refused() -> None:
    b, x = builder(3, 4)
    called = b.bind(Call(GlobalVar("other"), [x], type_=x.type))
    with pytest.raises(errors.CodegenError, match="@other was not compiled"):
        lower("main", b.function(called), {}, 0)


def test_a_kernel_that_no_module_has_is_refused() -> None:
    from kernelyard.ir import get_op

    b, x = builder(3, 4)
    called = b.bind(Call(get_op("call_tir"), [GlobalVar("gone"), x], type_=x.type))
    with pytest.raises(errors.CodegenError, match="no module has the function 'gone'"):
        lower("main", b.function(called), {"other": 0}, 1)
