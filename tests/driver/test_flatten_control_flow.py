"""VM functions without loops are programs with jumps from the second call on, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from control_flow_modules import PRIVATE, branching, counting, rows
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import InputShapeError
from kernelyard.ir import Expr, Function, FunctionBuilder, IRModule, TupleType
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


def test_loops_are_no_programs() -> None:
    exe = ky.compile(counting(3), backends=[])
    exe.warm({info.name: tuple(2 if isinstance(dim, str) else dim for dim in info.shape) for info in exe.inputs})
    assert flatten_control_flow(exe.vm_functions["main"], exe.vm_functions) is None


OPS = st.lists(st.sampled_from(["exp", "tanh", "nn.relu", "add", "subtract", "matmul"]), min_size=1, max_size=3)


class RandomFunctions:
    """Functions of two tensors and two conditions that give two tensors, with branches inside of branches."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.functions: dict[str, Function] = {}

    def make(self, depth: int, is_private: bool = True) -> Function:
        b = FunctionBuilder()
        values: list[Expr] = [b.input("p", (2, 4)), b.input("q", (2, 4))]
        flags: list[Expr] = [b.input("c", (), "bool"), b.input("d", (), "bool")]
        for _ in range(self.draw(st.integers(1, 2)) if depth else 0):
            self.operators(b, values)
            branches = [self.name(depth - 1), self.name(depth - 1)]
            args = [*map(self.some, (values, values)), *map(self.some, (flags, flags))]
            both = b.if_(self.some(flags), *branches, args, TupleType((rows(2), rows(2))))
            values += [b.get(both, 0), b.get(both, 1)]
        self.operators(b, values)
        results = b.op("sigmoid", self.some(values)), b.op("reshape", b.op("negative", values[-1]), shape=(2, 4))
        return b.function(*results, attrs=PRIVATE if is_private else {})

    def name(self, depth: int) -> str:
        function = self.make(depth)
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
def nested_branches(draw: st.DrawFn) -> IRModule:
    made = RandomFunctions(draw)
    main = made.make(2, is_private=False)
    return IRModule({"main": main, **made.functions})


@settings(deadline=None, max_examples=40)
@given(nested_branches())
def test_branches_in_branches_agree_with_the_interpreter(module: IRModule) -> None:
    exe = ky.compile(module, backends=[])
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
