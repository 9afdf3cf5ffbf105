"""VM functions are programs with jumps from the second call on, with the same results."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from control_flow_modules import COUNT, FLAG, PRIVATE, branching, counting, growing, rows
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard.dims import Dim, symbol
from kernelyard.errors import CallTimeoutError, InputShapeError, KernelyardError
from kernelyard.ir import Constant, Expr, Function, FunctionBuilder, IRModule, TensorType, TupleType
from kernelyard.ops.interpreter import run
from kernelyard.runtime.execute import call_table
from kernelyard.runtime.execute.bytecode_interpreter import BytecodeInterpreter
from kernelyard.runtime.program.flatten_control_flow import flatten_control_flow

X = np.arange(8, dtype=np.float32).reshape(2, 4) / 8 - 0.5


def forbid_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("instructions are carried out one by one")

    monkeypatch.setattr(BytecodeInterpreter, "carry_out", fail)


@pytest.mark.parametrize("walker", ["compiled", "ctypes"])
@pytest.mark.parametrize("backends", [[], ["dnnl"]])
def test_branches_are_jumps_from_the_second_call_on(
    backends: list[str], walker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if walker == "ctypes":
        monkeypatch.setattr(call_table, "table_walker", lambda: call_table._walk_with_ctypes)
    module = branching(symbol("n"))
    exe = ky.compile(module, backends=backends)
    exe(X, np.array(True))
    forbid_instructions(monkeypatch)
    for condition in (True, False, True):
        (expected,) = run(module, [X, np.array(condition)])
        np.testing.assert_allclose(exe(X, np.array(condition)), expected, rtol=1e-5, atol=1e-7)


def test_branches_may_hand_on_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a mixture of experts do, where no token uses an expert."""
    functions: dict[str, Function] = {}
    for name, op in (("then", "exp"), ("otherwise", None)):
        b = FunctionBuilder()
        given, other = b.input("p", (2, 4)), b.input("q", (2, 4))
        functions[name] = b.function(b.op(op, given) if op else given, other, attrs=PRIVATE)
    b = FunctionBuilder()
    x, flag = b.input("x", (2, 4)), b.input("c", (), "bool")
    start, other = b.op("tanh", x), b.op("sigmoid", x)
    both = b.if_(flag, "then", "otherwise", [start, other], TupleType((rows(2), rows(2))))
    swapped = b.if_(flag, "otherwise", "then", [b.get(both, 1), b.get(both, 0)], TupleType((rows(2), rows(2))))
    functions["main"] = b.function(b.get(swapped, 0), b.get(swapped, 1), start)
    module = IRModule(functions)
    exe = ky.compile(module, backends=[])
    exe(X, np.array(True))
    forbid_instructions(monkeypatch)
    for condition in (True, False, True):
        for found, expected in zip(exe(X, np.array(condition)), run(module, [X, np.array(condition)]), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_every_set_of_sizes_is_prepared_by_itself_and_checked() -> None:
    module = branching(symbol("n"))
    exe = ky.compile(module, backends=[])
    for count in (2, 3, 2, 3, 2):
        x = np.linspace(-1, 1, count * 4, dtype=np.float32).reshape(count, 4)
        np.testing.assert_allclose(exe(x, np.array(False)), run(module, [x, np.array(False)])[0], rtol=1e-5, atol=1e-7)
    with pytest.raises(InputShapeError):
        exe(X[:, :3], np.array(True))


def test_branches_are_prepared_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    module = branching(symbol("n"))
    exe = ky.compile(module, backends=[])
    exe.warm({exe.inputs[0].name: X.shape})
    misses = exe.cache_info()["bound programs"].misses
    forbid_instructions(monkeypatch)
    (expected,) = run(module, [X, np.array(True)])
    np.testing.assert_allclose(exe(X, np.array(True)), expected, rtol=1e-5, atol=1e-7)
    assert exe.cache_info()["bound programs"].misses == misses


def test_programs_are_kept_for_the_last_sizes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that come again now and then would fill a cache beside the interpreter's, a program of all branches each."""
    exe = ky.compile(branching(symbol("n")), backends=[])
    exe.max_plans = 3

    def plans(*counts: int) -> int:
        for count in counts:
            exe(np.ones((count, 4), np.float32), np.array(True))
        return exe.cache_info()["bound programs"].entries

    interpreted = plans(1, 2, 3)
    assert plans(2, 3) == interpreted + 2
    assert plans(4) == interpreted + 2
    assert plans(3) == interpreted + 2  # the last again: 3 was run after 1 and 2
    assert plans(5, 6) == interpreted + 1
    forbid_instructions(monkeypatch)
    (expected,) = run(branching(symbol("n")), [X[[0, 0, 0]], np.array(True)])
    np.testing.assert_allclose(exe(X[[0, 0, 0]], np.array(True)), expected, rtol=1e-5, atol=1e-7)


def as_one_program(exe: ky.Executable) -> bool:
    return flatten_control_flow(exe.vm_functions["main"], exe.vm_functions) is not None


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_loops_are_jumps_from_the_second_call_on(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = counting(turns)
    exe = ky.compile(module, backends=[])
    exe(X)
    forbid_instructions(monkeypatch)
    for x in (X, -X):
        for found, expected in zip(exe(x), run(module, [x]), strict=True):
            np.testing.assert_array_equal(found, expected)


def scan(turns: Dim, n: Dim = 2, columns: int = 4, collected: Dim | None = None) -> IRModule:
    """main(x: (turns, n, columns)) = the last running sum of its rows, the one before, and differences, stacked.

    collected: how many of these the type says that there are.
    """
    row, count = TensorType((n, columns), "float32"), TensorType((), "int64")
    b = FunctionBuilder()
    i = b.input("i", (), "int64")
    limit = b.op("reshape", b.op("shape_tensor", dims=(turns,)), shape=())
    types = [row, row, TensorType((turns, n, columns), "float32")]
    for number, type_ in enumerate(types):
        b.input(f"unused_{number}", type_.shape)
    condition = b.function(b.op("less", i, limit), attrs=PRIVATE)
    b = FunctionBuilder()
    i, total, before, x = b.input("i", (), "int64"), *(b.input(f"s_{n}", t.shape) for n, t in enumerate(types))
    new = b.op("add", total, b.op("take", x, i, axis=0))
    body = b.function(b.op("add", i, 1), new, total, x, b.op("subtract", new, before), attrs=PRIVATE)
    b = FunctionBuilder()
    x = b.input("x", types[2].shape)
    zeros = b.op("multiply", b.op("take", x, np.int64(0), axis=0), np.float32(0))
    stack = TensorType((turns if collected is None else collected, n, columns), "float32")
    result = b.while_("goes_on", "turn", [Constant(np.array(0)), zeros, zeros, x], TupleType((count, *types, stack)), 1)
    main = b.function(*(b.get(result, place) for place in (1, 2, 4)))
    return IRModule({"main": main, "goes_on": condition, "turn": body})


@pytest.mark.parametrize("turns", [1, 2, 7])
@pytest.mark.parametrize("columns", [4, 5000], ids=["small", "larger than what is copied in"])
def test_values_of_iterations_are_shifted_and_collected(
    turns: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = scan(symbol("t"), symbol("n"), columns)
    exe = ky.compile(module, backends=[])
    assert as_one_program(exe)
    x = np.random.default_rng(0).standard_normal((turns, 3, columns), np.float32)
    exe(x)
    forbid_instructions(monkeypatch)
    for feed in (x, x + 1, x[:, ::-1].copy()):
        for found, expected in zip(exe(feed), run(module, [feed]), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("apart", [-1, 2], ids=["too many", "too few"])
def test_the_number_of_items_is_checked(apart: int) -> None:
    exe = ky.compile(scan(symbol("t"), collected=symbol("t") + apart), backends=[])
    assert as_one_program(exe)
    for _ in range(3):
        with pytest.raises(KernelyardError):
            exe(np.ones((3, 2, 4), np.float32))


def test_a_loop_can_be_cancelled_and_run_again() -> None:
    exe = ky.compile(scan(symbol("t")), backends=[])
    x = np.ones((100, 2, 4), np.float32)
    expected = [np.asarray(each) for each in exe(x)]
    exe(x)
    with pytest.raises(CallTimeoutError):
        exe.run({"x": x}, timeout=1e-9)
    for found, wanted in zip(exe(x), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_loops_whose_sizes_change_are_no_programs() -> None:
    assert not as_one_program(ky.compile(growing(), backends=[]))


OPS = st.lists(st.sampled_from(["exp", "tanh", "nn.relu", "add", "subtract", "matmul"]), min_size=1, max_size=3)


class RandomFunctions:
    """Functions of two tensors and two conditions that give two tensors, with branches and loops inside of each other."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.functions: dict[str, Function] = {}

    def make(self, depth: int, is_private: bool = True) -> Function:
        b = FunctionBuilder()
        values: list[Expr] = [b.input("p", (2, 4)), b.input("q", (2, 4))]
        flags: list[Expr] = [b.input("c", (), "bool"), b.input("d", (), "bool")]
        for _ in range(self.draw(st.integers(1, 2)) if depth else 0):
            self.operators(b, values)
            args = [*map(self.some, (values, values)), *map(self.some, (flags, flags))]
            if self.draw(st.booleans()):
                values += self.loop(b, depth, args)
                continue
            branches = [self.name(depth - 1), self.name(depth - 1)]
            both = b.if_(self.some(flags), *branches, args, TupleType((rows(2), rows(2))))
            values += [b.get(both, 0), b.get(both, 1)]
        self.operators(b, values)
        results = b.op("sigmoid", self.some(values)), b.op("reshape", b.op("negative", values[-1]), shape=(2, 4))
        return b.function(*results, attrs=PRIVATE if is_private else {})

    def loop(self, b: FunctionBuilder, depth: int, args: list[Expr]) -> list[Expr]:
        """Values after a loop of few iterations, and the sum of what it collects."""
        turns, types = self.draw(st.integers(1, 3)), [COUNT, rows(2), rows(2), FLAG, FLAG]
        inner = FunctionBuilder()
        i, p, q, c, d = (inner.input(name, t.shape, t.dtype) for name, t in zip("ipqcd", types, strict=True))
        limit = FunctionBuilder()
        first, *_ = [limit.input(name, t.shape, t.dtype) for name, t in zip("ipqcd", types, strict=True)]
        condition = self.add(limit.function(limit.op("less", first, turns), attrs=PRIVATE))
        both = inner.if_(c, self.name(depth - 1), self.name(depth - 1), [p, q, c, d], TupleType((rows(2), rows(2))))
        made = [inner.get(both, 0), inner.get(both, 1), p, q]
        after = [*map(self.some, (made, made)), *self.draw(st.sampled_from([[c, d], [d, c]]))]
        body = self.add(inner.function(inner.op("add", i, 1), *after, self.some(made), attrs=PRIVATE))
        type_ = TupleType((*types, TensorType((turns, 2, 4), "float32")))
        result = b.while_(condition, body, [Constant(np.array(0)), *args], type_, 1)
        return [b.get(result, 1), b.get(result, 2), b.op("tanh", b.op("sum", b.get(result, 5), axes=(0,)))]

    def name(self, depth: int) -> str:
        return self.add(self.make(max(depth, 0)))

    def add(self, function: Function) -> str:
        name = f"f{len(self.functions)}"
        self.functions[name] = function
        return name

    def operators(self, b: FunctionBuilder, values: list[Expr]) -> None:
        for op in self.draw(OPS):
            a = self.some(values)
            if op == "matmul":
                values.append(b.op(op, a, np.eye(4, dtype=np.float32) / 2))
            else:
                values.append(
                    b.op(op, a, self.some(values)) if op in ("add", "subtract") else b.op("tanh", b.op(op, a))
                )

    def some(self, values: list[Expr]) -> Expr:
        return self.draw(st.sampled_from(values))


@st.composite
def nested_control_flow(draw: st.DrawFn) -> IRModule:
    made = RandomFunctions(draw)
    main = made.make(2, is_private=False)
    return IRModule({"main": main, **made.functions})


@settings(deadline=None, max_examples=40)
@given(nested_control_flow())
def test_branches_and_loops_agree_with_the_interpreter(module: IRModule) -> None:
    exe = ky.compile(module, backends=[])
    assert not exe.vm_functions or as_one_program(exe)
    for _ in range(2):
        for c, d in ((True, True), (True, False), (False, True), (False, False)):
            feeds = [X, X[::-1].copy(), np.array(c), np.array(d)]
            for found, expected in zip(exe(*feeds), run(module, feeds), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_what_lives_across_branches_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the second branch reads `kept`: it outlives the first one, whose own values may not lie in its place."""
    b = FunctionBuilder()
    x, c = b.input("p", (2, 4)), b.input("c", (), "bool")
    kept = b.op("matmul", x, np.eye(4, dtype=np.float32) / 3)
    y = b.if_(c, "first", "second", [x, kept], rows(2))
    main = b.function(b.op("add", y, x))
    b = FunctionBuilder()
    p, _ = b.input("p", (2, 4)), b.input("q", (2, 4))
    for _ in range(3):
        p = b.op("matmul", p, np.eye(4, dtype=np.float32) * 2)
    first = b.function(p, attrs=PRIVATE)
    b = FunctionBuilder()
    p, q = b.input("p", (2, 4)), b.input("q", (2, 4))
    p = b.op("matmul", p, np.eye(4, dtype=np.float32))
    second = b.function(b.op("add", b.op("exp", p), q), attrs=PRIVATE)
    module = IRModule({"main": main, "first": first, "second": second})
    exe = ky.compile(module, backends=[])
    exe(X, np.array(True))
    forbid_instructions(monkeypatch)
    for condition in (False, True, False):
        (expected,) = run(module, [X, np.array(condition)])
        np.testing.assert_allclose(exe(X, np.array(condition)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("calls", [1, 3], ids=["instructions", "one program"])
def test_all_is_freed_with_the_last_reference(calls: int) -> None:
    """In a cycle, programs that are loaded and dropped would wait for the garbage collector."""
    exe = ky.compile(branching(symbol("n")), backends=[])
    for _ in range(calls):
        exe(X, np.array(True))
    environment = weakref.ref(exe._machine.environment)
    gc.disable()
    try:
        del exe
        assert environment() is None
    finally:
        gc.enable()


def test_an_entry_function_outlives_its_machine() -> None:
    module = branching(symbol("n"))
    function = ky.VirtualMachine(ky.compile(module, backends=[]))["main"]
    for condition in (True, False):
        (expected,) = run(module, [X, np.array(condition)])
        np.testing.assert_allclose(function(X, np.array(condition)), expected, rtol=1e-5, atol=1e-7)
