"""Visitor, mutator and the questions about who uses what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import kernelyard.ops  # noqa: F401
from kernelyard.errors import IRError
from kernelyard.ir import (
    Call,
    Constant,
    Expr,
    ExprVisitor,
    FunctionBuilder,
    FunctionMutator,
    GlobalVar,
    IRModule,
    TupleGetItem,
    get_op,
    uses,
    verify,
)
from kernelyard.ir.visitor import RewriteWith, callees, definitions, reachable_functions, result_vars
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules


def chain():
    b = FunctionBuilder()
    x = b.input("x", (2, 3))
    y = b.op("nn.relu", x)
    z = b.op("add", y, y)
    parts = b.op("split", z, axis=0, sections=(1, 1))
    return b.function(b.get(parts, 1), z), (x, y, z, parts)


class Recorder(ExprVisitor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def visit_param(self, param):
        self.seen.append(f"param {param.name}")

    def visit_call(self, call):
        self.seen.append(call.op_name)
        self.visit_operands(call)

    def visit_tuple_get_item(self, item):
        self.seen.append(f"[{item.index}]")
        self.visit_operands(item)

    def visit_var(self, var):
        self.seen.append(f"%{var.name}")

    def visit_constant(self, constant):
        self.seen.append("constant")


def test_the_visitor_sees_everything_in_order():
    function, _ = chain()
    recorder = Recorder()
    recorder.visit_function(function)
    assert recorder.seen == (
        ["param x", "nn.relu", "%x", "add", "%lv", "%lv", "split", "%lv_1", "[1]", "%lv_2", "%lv_3", "%lv_1"]
    )


def test_unknown_expressions_are_refused():
    with pytest.raises(IRError, match="unknown class"):
        ExprVisitor().visit_expr(Expr())


def test_uses_names_each_reader_once():
    function, (x, y, z, parts) = chain()
    users = uses(function)
    assert [binding.value.op_name for binding in users[x]] == ["nn.relu"]
    assert [binding.value.op_name for binding in users[y]] == ["add"]
    assert [binding.value.op_name for binding in users[z]] == ["split"]
    assert isinstance(users[parts][0].value, TupleGetItem)
    assert result_vars(function) == (function.bindings[-1].var, z)
    assert set(definitions(function)) == {binding.var for binding in function.bindings}


@settings(max_examples=30, deadline=None)
@given(modules(symbolic=True))
def test_a_mutator_that_changes_nothing_returns_the_same_function(program):
    function = program.module["main"]
    assert FunctionMutator().mutate(function) is function


@settings(max_examples=30, deadline=None)
@given(modules(symbolic=True))
def test_a_mutator_that_rebuilds_everything_keeps_the_meaning(program):
    rebuild = RewriteWith(lambda m, var, v: Call(v.op, v.args, v.attrs, v.type) if isinstance(v, Call) else v)
    module = verify(IRModule({"main": rebuild.mutate(program.module["main"])}))
    assert_same_meaning(program.module, module, program.inputs)


def test_returned_atoms_replace_the_variable_everywhere():
    function, (x, _, _, _) = chain()
    without_relu = RewriteWith(lambda m, var, v: v.args[0] if getattr(v, "op_name", "") == "nn.relu" else v)
    new = without_relu.mutate(function)
    assert len(new.bindings) == len(function.bindings) - 1
    assert new.bindings[0].value.args == (x, x)
    verify(IRModule({"main": new}))


def test_results_can_become_constants():
    b = FunctionBuilder()
    b.op("nn.relu", b.input("x", (2,)))
    function = b.function(b.bindings[-1].var)
    new = RewriteWith(lambda m, var, v: Constant(np.zeros(2, np.float32))).mutate(function)
    assert isinstance(new.result, Constant)
    assert not new.bindings


def test_emitted_bindings_come_first_and_can_be_looked_up():
    class Doubler(FunctionMutator):
        def rewrite(self, var, value):
            if not isinstance(value, Call) or value.op_name != "nn.relu":
                return value
            inner = self.emit(Call(get_op("tanh"), value.args), "inner")
            assert self.value_of(inner).op_name == "tanh"
            assert self.emit(inner) is inner
            return Call(value.op, [inner])

    function, (_, y, _, _) = chain()
    new = Doubler().mutate(function)
    assert [b.value.op_name for b in new.bindings[:2]] == ["tanh", "nn.relu"]
    assert new.bindings[1].var is y
    verify(IRModule({"main": new}))


def test_a_change_of_type_reaches_the_readers():
    b = FunctionBuilder()
    x = b.input("x", (4,))
    b.op("reshape", x, shape=(2, 2))
    function = b.function(b.op("nn.relu", b.bindings[-1].var))
    to_column = RewriteWith(lambda m, var, v: Call(v.op, v.args, {"shape": (4, 1)}) if v.op_name == "reshape" else v)
    new = to_column.mutate(function)
    assert new.result.tensor_type.shape == (4, 1)
    verify(IRModule({"main": new}))


def test_reachable_functions_follow_calls_and_operands():
    def calling(*names: str):
        b = FunctionBuilder()
        x = b.input("x", (2,))
        for name in names:
            x = b.call_function(name, [x], x.type)
        return b.function(x)

    module = IRModule({"main": calling("a", "b"), "a": calling("c"), "b": calling(), "c": calling(), "d": calling("a")})
    assert list(callees(module["main"])) == ["a", "b"]
    assert reachable_functions(module, ("main",)) == {"main", "a", "b", "c"}
    b = FunctionBuilder()
    x = b.input("x", (2,))
    b.call(get_op("call_tir"), [GlobalVar("k"), x], x.type)
    assert list(callees(b.function(x))) == ["k"]
