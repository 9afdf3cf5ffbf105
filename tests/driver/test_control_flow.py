"""Branches, loops and calls, compiled: who runs what, right results, saved and loaded, misuse."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_flow_modules import COUNT, PRIVATE, branching, collecting, counting, growing, rows

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import ArtifactCorruptedError, ExecutionError, InputShapeError
from kernelyard.ir import Call, Constant, FunctionBuilder, IRModule, TensorType, TupleType, get_op
from kernelyard.ops.interpreter import run
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.execute.bytecode_interpreter import BytecodeInterpreter
from kernelyard.runtime.program.vm_function import BIND, CALL, MOVE, RETURN, Instruction, VMFunction
from kernelyard.testing import assert_offloaded

X = np.arange(8, dtype=np.float32).reshape(2, 4) / 8 - 0.5
CASES = [
    (branching(symbol("n")), [X, np.array(True)]),
    (branching(), [X, np.array(False)]),
    (counting(3), [X]),
    (counting(0), [X]),
    (growing(), [X, np.array(3)]),
    (growing(), [X, np.array(0)]),
    (collecting(), [X, np.array(3)]),
    (collecting(), [X, np.array(0)]),
]


def results_of(exe: ky.Executable, feeds: list[np.ndarray], function: str = "main") -> list[np.ndarray]:
    given = ky.VirtualMachine(exe)[function](*feeds)
    return [np.asarray(each) for each in (given if isinstance(given, tuple) else (given,))]


@pytest.mark.parametrize("backends", [[], ["dnnl"]])
@pytest.mark.parametrize(("module", "feeds"), CASES)
def test_runs_as_the_interpreter_does(
    module: IRModule, feeds: list[np.ndarray], backends: list[str], tmp_path: Path
) -> None:
    exe = ky.compile(module, backends=backends)
    expected = run(module, feeds)
    for found, wanted in zip(results_of(exe, feeds), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
    exe.save(tmp_path / "m.kyar")
    loaded = ky.load(tmp_path / "m.kyar")
    assert loaded.vm_functions == exe.vm_functions
    for found, wanted in zip(results_of(loaded, feeds), results_of(exe, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_what_is_in_branches_is_offloaded_and_reported() -> None:
    exe = ky.compile(branching(), backends=["dnnl"])
    assert_offloaded(exe, "dnnl", at_least=2)
    assert {node.backend for node in exe.report.placed if node.op == "if"} == {"vm"}
    assert set(exe.report.coverage) <= {"dnnl", "vm", "native-cpu"}


def test_only_public_functions_are_entries() -> None:
    exe = ky.compile(counting(2), backends=[])
    assert list(exe.entries) == ["main"]
    assert [each.name for each in exe.inputs] == ["x"]
    with pytest.raises(ExecutionError, match="no entry function 'turn'"):
        ky.VirtualMachine(exe)["turn"]


def test_results_are_the_callers_own() -> None:
    b = FunctionBuilder()
    x, c = b.input("x", (2, 4)), b.input("c", (), "bool")
    same = FunctionBuilder()
    same_function = same.function(same.input("x", (2, 4)), attrs=PRIVATE)
    y = b.if_(c, "same", "same", [x], rows(2))
    constant = b.if_(c, "same", "same", [Constant(X)], rows(2))
    exe = ky.compile(IRModule({"main": b.function(y, y, constant), "same": same_function}), backends=[])
    feed = X.copy()
    first, second, third = results_of(exe, [feed, np.array(True)])
    assert not any(np.shares_memory(a, b) for a, b in ((first, feed), (first, second), (second, feed)))
    third[:] = 7
    np.testing.assert_array_equal(results_of(exe, [feed, np.array(True)])[2], X)


def test_many_threads_run_a_loop_at_once() -> None:
    exe = ky.compile(growing(), backends=[])
    feeds = [(X * k, np.array(k % 4)) for k in range(40)]
    expected = [np.asarray(exe(*each)) for each in feeds]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(lambda each: np.asarray(exe(*each)), feeds), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_turns_of_one_block_need_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = BytecodeInterpreter._frame

    def counted(self: BytecodeInterpreter, *args: Any) -> Any:
        made.append(self.vm_function.name)
        return make(self, *args)

    monkeypatch.setattr(BytecodeInterpreter, "_frame", counted)
    y, turns = results_of(ky.compile(counting(5), backends=[]), [X])
    np.testing.assert_allclose(y, -32 * X)
    assert int(turns) == 5
    assert made == ["main"]


def test_an_instrument_sees_the_steps_of_every_turn() -> None:
    machine = ky.VirtualMachine(ky.compile(counting(3), backends=[]))
    seen: list[str] = []
    machine.set_instrument(lambda step, name, before, result, *args: seen.append(name) if before else None)
    machine["main"](X)
    assert len([name for name in seen if "less" in name]) == 4


def test_operators_may_decide_the_sizes_of_their_results() -> None:
    n, k = symbol("n"), symbol("k")
    b = FunctionBuilder()
    x = b.input("x", (n,))
    found = b.bind(Call(get_op("nonzero"), [x], type_=TensorType((1, k - 1), "int64")))
    flat = b.op("reshape", found, shape=(k - 1,))
    exe = ky.compile(IRModule({"main": b.function(b.op("exp", b.op("take", x, flat, axis=0)))}), backends=[])
    for feed in ([0, 2, 0, 3], [1], [0, 0]):
        values = np.array(feed, np.float32)
        np.testing.assert_allclose(np.asarray(exe(values)), np.exp(values[values != 0]), rtol=1e-6)
    assert exe.report.coverage["host"]["ops"] == 1


def test_sizes_that_only_the_caller_knows() -> None:
    n = symbol("n")
    b = FunctionBuilder()
    inner = b.function(b.op("exp", b.op("broadcast_to", b.input("x", (4,)), shape=(n, 4))), attrs=PRIVATE)
    b = FunctionBuilder()
    x, c, like = b.input("x", (4,)), b.input("c", (), "bool"), b.input("like", (n,))
    y = b.if_(c, "inner", "inner", [x], rows(n))
    exe = ky.compile(IRModule({"main": b.function(y, b.op("exp", like)), "inner": inner}), backends=[])
    for size in (3, 1, 3):
        result = results_of(exe, [X[0], np.array(True), np.zeros(size, np.float32)])[0]
        np.testing.assert_allclose(result, np.exp(np.tile(X[0], (size, 1))), rtol=1e-6)


def recursive() -> IRModule:
    """count(x, n) = n ? count(x + x, n - 1) : x, by a branch that calls its own function."""
    b = FunctionBuilder()
    x, n = b.input("x", (2, 4)), b.input("n", (), "int64")
    go_on = b.function(b.call_function("main", [b.op("add", x, x), b.op("subtract", n, 1)], rows(2)), attrs=PRIVATE)
    b = FunctionBuilder()
    x = b.input("x", (2, 4))
    b.input("n", (), "int64")
    stop = b.function(x, attrs=PRIVATE)
    b = FunctionBuilder()
    x, n = b.input("x", (2, 4)), b.input("n", (), "int64")
    main = b.function(b.if_(b.op("greater", n, 0), "go_on", "stop", [x, n], rows(2)))
    return IRModule({"main": main, "go_on": go_on, "stop": stop})


def test_a_function_may_call_itself() -> None:
    exe = ky.compile(recursive(), backends=[])
    np.testing.assert_array_equal(np.asarray(exe(X, np.array(5))), X * 32)
    with pytest.raises(ExecutionError, match="maximum call depth"):
        exe(X, np.array(1000))
    np.testing.assert_array_equal(np.asarray(exe(X, np.array(0))), X)


def test_sizes_are_checked_at_every_turn() -> None:
    n, k, s = symbol("n"), symbol("k"), symbol("s")
    b = FunctionBuilder()
    i = b.input("i", (), "int64")
    b.input("x", (k,))
    condition = b.function(b.op("less", i, 3), attrs=PRIVATE)
    b = FunctionBuilder()
    i, x = b.input("i", (), "int64"), b.input("x", (k,))
    b.op("exp", x)
    shorter = b.op("strided_slice", x, begin=(1,), end=(k,), strides=(1,), axes=(0,))
    body = b.function(b.op("add", i, 1), shorter, attrs=PRIVATE)
    b = FunctionBuilder()
    result = b.while_(
        "condition",
        "body",
        [Constant(np.array(0)), b.input("x", (n,))],
        TupleType((COUNT, TensorType((s,), "float32"))),
    )
    module = IRModule({"main": b.function(b.op("exp", b.get(result, 1))), "condition": condition, "body": body})
    exe = ky.compile(module, backends=[])
    np.testing.assert_allclose(np.asarray(exe(np.arange(4, dtype=np.float32))), np.exp([3.0]), rtol=1e-6)
    with pytest.raises(InputShapeError, match="empty"):
        exe(np.arange(3, dtype=np.float32))


SPEC = TensorSpec((2,), "float32", "x")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ((), "returns"),
        ((Instruction(BIND, (0,)),), "returns"),
        ((Instruction("jump"), Instruction(RETURN, (0,))), "jump"),
        ((Instruction(RETURN, ()),), "operands"),
        ((Instruction("goto", target=7), Instruction(RETURN, (0,))), "below"),
        ((Instruction("if", (0,), target=0), Instruction(RETURN, (0,))), "truth value"),
        ((Instruction("run", (0,), (0,), 0), Instruction(RETURN, (0,))), "below"),
    ],
)
def test_malformed_code_is_refused(code: tuple[Instruction, ...], message: str) -> None:
    with pytest.raises(ArtifactCorruptedError, match=message):
        VMFunction("main", (), (SPEC,), (SPEC,), (SPEC,), (), code)


def test_a_call_of_what_is_not_there_is_refused() -> None:
    code = (Instruction(CALL, (0,), (0,), symbol="missing"), Instruction(RETURN, (0,)))
    vm_function = VMFunction("main", (), (SPEC,), (SPEC,), (SPEC,), (), code)
    with pytest.raises(ArtifactCorruptedError, match="as many values"):
        ky.Executable({}, [], {}, vm_functions={"main": vm_function})


FLAG = TensorSpec((), "bool", "flag")


@pytest.mark.parametrize(
    "code",
    [
        (Instruction(RETURN, (2,)),),
        # Written in one branch alone, and at the end of a loop that reads it at the start.
        (Instruction("if", (1,), target=2), Instruction(MOVE, (0,), (2,)), Instruction(RETURN, (2,))),
        (
            Instruction(MOVE, (2,), (0,)),
            Instruction(MOVE, (0,), (2,)),
            Instruction("if", (1,), target=0),
            Instruction(RETURN, (0,)),
        ),
    ],
)
def test_code_that_may_read_what_nothing_wrote_is_refused(code: tuple[Instruction, ...]) -> None:
    values = (SPEC, FLAG, TensorSpec((2,), "float32"))
    with pytest.raises(ArtifactCorruptedError, match="may not be written"):
        VMFunction("main", (), values[:2], (SPEC,), values, (), code)


def test_a_value_may_be_written_on_every_way() -> None:
    values = (SPEC, FLAG, TensorSpec((2,), "float32"))
    code = (
        Instruction("if", (1,), target=3),
        Instruction(MOVE, (0,), (2,)),
        Instruction("goto", target=4),
        Instruction(MOVE, (0,), (2,)),
        Instruction(RETURN, (2,)),
    )
    vm_function = VMFunction("main", (), values[:2], (SPEC,), values, (), code)
    result = ky.Executable({}, [], {}, vm_functions={"main": vm_function})(X[0, :2], True)
    np.testing.assert_array_equal(np.asarray(result), X[0, :2])


def test_a_vm_function_survives_json() -> None:
    for vm_function in ky.compile(growing(), backends=[]).vm_functions.values():
        assert VMFunction.from_json(json.loads(json.dumps(vm_function.to_json()))) == vm_function
