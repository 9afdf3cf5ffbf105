"""Functions as values, compiled: known ones are gone, others are values of vm_functions; saved and loaded; misuse."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from closure_modules import CASES, PRIVATE, ROW, N, X, as_an_argument, composed, from_a_branch, known, recursive

import kernelyard as ky
from kernelyard.errors import ArtifactCorruptedError, ExecutionError
from kernelyard.ir import FunctionBuilder, FunctionType, IRModule, TensorType
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.program.vm_function import (
    CALL,
    CLOSE,
    INVOKE,
    RETURN,
    RUN,
    ClosureSpec,
    Instruction,
    VMFunction,
)
from kernelyard.testing import assert_offloaded


@pytest.mark.parametrize("backends", [[], ["dnnl"]])
@pytest.mark.parametrize(("module", "feeds", "wanted"), CASES)
def test_results_and_those_of_the_saved_program(
    module: IRModule, feeds: list[np.ndarray], wanted: np.ndarray, backends: list[str], tmp_path: Path
) -> None:
    exe = ky.compile(module, backends=backends)
    exe.save(tmp_path / "m.kyar")
    loaded = ky.load(tmp_path / "m.kyar")
    assert loaded.vm_functions == exe.vm_functions
    for each in (exe, loaded):
        np.testing.assert_allclose(np.asarray(each(*feeds)), wanted, rtol=1e-5)


@pytest.mark.parametrize("module", [known(), as_an_argument()])
def test_known_closures_cost_nothing(module: IRModule) -> None:
    exe = ky.compile(module, backends=[])
    assert not exe.vm_functions
    assert len(exe.programs["main"].steps) == 1


def test_others_are_values() -> None:
    exe = ky.compile(from_a_branch(), backends=[])
    names = [instruction.name for instruction in exe.vm_functions["main"].code]
    assert INVOKE in names
    assert [instruction.name for instruction in exe.vm_functions["add_"].code] == [CLOSE, RETURN]
    assert "v1 = close add_x(v0)" in str(exe.vm_functions["add_"])
    assert {node.backend for node in exe.report.placed if "closure" in node.op} == {"vm"}


def test_what_a_closure_does_is_offloaded() -> None:
    inner, b = FunctionBuilder(), FunctionBuilder()
    y = inner.input("y", (2, 4))
    weight = np.ones((4, 4), np.float32)
    product = inner.op("matmul", y, weight)
    outer = FunctionBuilder()
    outer.input("x", (2, 4))
    rows = TensorType((2, 4), "float32")
    closure = outer.closure("product", inner, product)
    functions = {"make": outer.function(closure, attrs=PRIVATE), **outer.lifted}
    x, flag = b.input("x", (2, 4)), b.input("flag", (), "bool")
    chosen = b.if_(flag, "make", "make", [x], FunctionType((rows,), rows))
    exe = ky.compile(IRModule({"main": b.function(b.invoke_closure(chosen, [x])), **functions}), backends=["dnnl"])
    assert_offloaded(exe, "dnnl", at_least=1)
    feed = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_allclose(np.asarray(exe(feed, np.array(True))), feed @ weight)


def test_sizes_of_the_place_where_it_was_made() -> None:
    """What is chosen widens to the size of the feed that its maker saw."""
    inner, make, b = FunctionBuilder(), FunctionBuilder(), FunctionBuilder()
    make.input("x", (N,))
    one = TensorType((1,), "float32")
    widen = make.closure("widen", inner, inner.op("broadcast_to", inner.input("y", (1,)), shape=(N,)))
    x, flag = b.input("x", (N,)), b.input("flag", (), "bool")
    chosen = b.if_(flag, "make", "make", [x], FunctionType((one,), ROW))
    result = b.invoke_closure(chosen, [b.op("sum", x, axes=(0,), keepdims=True)])
    functions = {"main": b.function(result), "make": make.function(widen, attrs=PRIVATE), **make.lifted}
    exe = ky.compile(IRModule(functions), backends=[])
    for size in (1, 5):
        found = exe(np.ones(size, np.float32), np.array(True))
        np.testing.assert_array_equal(np.asarray(found), np.full(size, size, np.float32))


def test_captured_values_stay_what_they_were() -> None:
    """The captured feed is not a copy, and the caller may write to a result."""
    exe = ky.compile(from_a_branch(), backends=[])
    feed = X.copy()
    first = np.asarray(exe(feed, np.array(True)))
    first[:] = 7
    np.testing.assert_array_equal(feed, X)
    np.testing.assert_allclose(np.asarray(exe(feed, np.array(True))), np.tanh(X + np.exp(X)), rtol=1e-6)


def test_many_threads_make_and_invoke_closures() -> None:
    exe = ky.compile(composed(3), backends=[])
    feeds = [X * k for k in range(30)]
    with ThreadPoolExecutor(4) as pool:
        for feed, found in zip(feeds, pool.map(lambda each: np.asarray(exe(each)), feeds), strict=True):
            np.testing.assert_allclose(found, 4 * feed, rtol=1e-6)


def test_depth_is_bounded() -> None:
    with pytest.raises(ExecutionError, match="maximum call depth"):
        ky.compile(recursive(), backends=[])(X, np.array(1000))
    with pytest.raises(ExecutionError, match="maximum call depth"):
        ky.compile(composed(1000), backends=[])(X)


# --- misuse -------------------------------------------------------------------------------------------------------
SPEC = TensorSpec((2,), "float32", "x")
CLOSURE = ClosureSpec()
BACK = Instruction(RETURN, (0,))


def vm_function(*code: Instruction, outputs: tuple[TensorSpec, ...] = (SPEC,), private: bool = False) -> VMFunction:
    return VMFunction("main", (), (SPEC,), outputs, (SPEC, CLOSURE, SPEC), (), code, private=private)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (Instruction(INVOKE, (0,), (2,)), "a closure"),
        (Instruction(INVOKE, (), (2,)), "operands"),
        (Instruction(CLOSE, (0,), (2,), symbol="main"), "a closure"),
        (Instruction(CLOSE, (0,), (), symbol="main"), "operands"),
        (Instruction("collect", (1,), (1,)), "tensors"),
        (Instruction("evaluate", (1,), (2,), 0, "f"), "tensors"),
    ],
)
def test_malformed_code_is_refused(code: Instruction, message: str) -> None:
    with pytest.raises(ArtifactCorruptedError, match=message):
        vm_function(code, BACK)


def test_callers_get_no_closures() -> None:
    with pytest.raises(ArtifactCorruptedError, match="callers"):
        vm_function(Instruction(RETURN, (1,)), outputs=(CLOSURE,))
    with pytest.raises(ArtifactCorruptedError):
        vm_function(Instruction(RETURN, (1,)))


def test_a_closure_of_what_is_not_there_is_refused() -> None:
    code = (Instruction(CLOSE, (0,), (1,), symbol="missing"), BACK)
    with pytest.raises(ArtifactCorruptedError, match="missing"):
        ky.Executable({}, [], {}, vm_functions={"main": vm_function(*code)})


@pytest.mark.parametrize(
    "code",
    [
        (Instruction(CLOSE, (0,), (1,), symbol="main"), Instruction(INVOKE, (1, 0), (2,))),
        (Instruction("move", (0,), (1,)),),
        (Instruction(CLOSE, (), (1,), symbol="main"), Instruction("move", (1,), (2,))),
        (Instruction(CLOSE, (), (1,), symbol="main"), Instruction(CALL, (1,), (2,), symbol="main")),
        (Instruction(CLOSE, (), (1,), symbol="main"), Instruction(INVOKE, (1, 1), (2,))),
        (Instruction(CLOSE, (0,), (1,), symbol="main"), Instruction(INVOKE, (1,), (2, 0))),
    ],
)
def test_code_that_mixes_up_values_is_an_error_when_it_runs(code: tuple[Instruction, ...]) -> None:
    exe = ky.Executable({}, [], {}, vm_functions={"main": vm_function(*code, BACK)})
    with pytest.raises(ExecutionError):
        exe(X[:2])


def test_vm_functions_with_closures_survive_json() -> None:
    for each in ky.compile(from_a_branch(), backends=[]).vm_functions.values():
        assert VMFunction.from_json(json.loads(json.dumps(each.to_json()))) == each
    assert RUN in {i.name for each in ky.compile(from_a_branch(), backends=[]).vm_functions.values() for i in each.code}


SCENARIOS = {
    "vm_build: closure": test_results_and_those_of_the_saved_program,
    "vm_build: closure, known when it is compiled": test_known_closures_cost_nothing,
    "vm_build: closure of a branch": test_others_are_values,
}
